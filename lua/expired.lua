#!lua flags=no-writes
-- Purpose: name the open reservations whose lease has ended, oldest first, by
--   the store's own clock. Reads only.
-- KEYS[1] open index: {sNN}:open, sorted set of requests by lease end, never expires.
-- ARGV[1] max: how many at most, 1 or more.
-- Returns: a list of request ids, empty when every lease is alive.
-- Errors: WRONGTYPE.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, tonumber(ARGV[1]))
