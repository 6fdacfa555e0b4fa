#!lua
-- Purpose: take one of a channel's slots for a request, or move the end of the
--   one it has. Atomic; idempotent by request: it never holds two.
-- KEYS[1] slots: {cNN}:slot:<channel>, sorted set of requests by lease end,
--   expires with its last lease.
-- ARGV[1] request: id.
-- ARGV[2] lease: ms from now, 1 or more.
-- ARGV[3] limit: slots of the channel, 1 or more; 0 takes one even when all are
--   taken; -1 only moves a slot that the request has.
-- Returns: 1 the request holds a slot; 0 it does not, nothing was taken.
-- Errors: WRONGTYPE before any write; OOM before the script starts.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local request, lease, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ends = redis.call('ZSCORE', KEYS[1], request)
local taken = redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now), '+inf')
if limit < 0 and not ends then return 0 end
if limit > 0 and taken >= limit and not (ends and tonumber(ends) > now) then return 0 end
-- One request in sixteen clears away; more than come in between cannot have ended.
local gone = string.byte(request, -1) % 16 == 0 and redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100) or {}
if #gone > 0 then redis.call('ZREM', KEYS[1], unpack(gone)) end
redis.call('ZADD', KEYS[1], now + lease, request)
if redis.call('PTTL', KEYS[1]) < lease then redis.call('PEXPIRE', KEYS[1], 2 * lease) end
return 1
