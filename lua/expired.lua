#!lua flags=no-writes
-- Purpose: name the requests of an index whose lease has ended, oldest first, by
--   the store's own clock. Reads only.
--   Where writes were lost it names none: an end that was lost with them would be
--   charged again.
-- KEYS[1] index: <tag>:open or <tag>:followed, sorted set of requests by lease end.
-- KEYS[2] generation: <tag>:generation, integer, missing where writes were lost;
--   the region, and who follows, have none, and give the index again.
-- ARGV[1] max: how many at most, 1 or more.
-- Returns: a list of request ids, empty when every lease is alive.
-- Errors: WRONGTYPE.
if redis.call('EXISTS', KEYS[2]) == 0 then return {} end
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, tonumber(ARGV[1]))
