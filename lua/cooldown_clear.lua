#!lua flags=allow-oom
-- Purpose: forget what is known against a channel's class: after a trial that
--   succeeded, or because an operator says so. Atomic; idempotent.
-- KEYS[1] cooldown: {cNN}:cool:<channel>:<class>, hash, expires by itself.
-- KEYS[2] index: {cNN}:cooling, sorted set of <channel>:<class> by expiry, never expires.
-- ARGV[1] member: <channel>:<class>.
-- ARGV[2] when: always clears in every state; over only what a trial may run for,
--   so that an answer to an earlier request does not end a cooldown; another word
--   only what is out for that reason.
-- ARGV[3] channel: where the change is published.
-- Returns: 1 forgotten; 0 nothing was changed.
-- Errors: WRONGTYPE before any write.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local c = redis.call('HMGET', KEYS[1], 'until', 'out', 'reason')
if not c[1] then return 0 end
local out, over = c[2] == '1', tonumber(c[1]) <= now
if not (ARGV[2] == 'always' or ARGV[2] == 'over' and over and not out or out and ARGV[2] == c[3]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('PUBLISH', ARGV[3], ARGV[1])
return 1
