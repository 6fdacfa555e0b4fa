#!lua flags=no-writes
-- Purpose: tell how long a channel's class is left alone, by the store's own
--   clock. Reads only.
-- KEYS[1] cooldown: {cNN}:cool:<channel>:<class>, hash, expires by itself.
-- ARGV[1] class: given back as it came.
-- Returns: {account, reason, out, level, left, trial left, class}; left in ms, 0 or
--   less when over; empty when nothing is known against it.
-- Errors: WRONGTYPE.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local c = redis.call('HMGET', KEYS[1], 'account', 'reason', 'out', 'level', 'until', 'trial_ends')
if not c[1] then return {} end
return {c[1], c[2], tonumber(c[3]), tonumber(c[4]), tonumber(c[5]) - now, (tonumber(c[6]) or 0) - now, ARGV[1]}
