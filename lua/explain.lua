#!lua
-- Purpose: keep how a request was routed and how it ended, for those who ask.
--   It runs before settle, which forgets the decision, and only when there is
--   memory: it is the first thing to do without. Atomic; idempotent by request:
--   what is kept of one that ended before stays.
-- KEYS[1] reservation: {sNN}:res:<request>, hash, expires by itself.
-- KEYS[2] explained: {sNN}:explained, hash of requests, ARGV[3] of them at most,
--   so it needs no expiry.
-- KEYS[3] order: {sNN}:explained:order, list of the same requests, the oldest
--   first, never expires.
-- ARGV[1] request: id.
-- ARGV[2] record: bytes, how it ended.
-- ARGV[3] most: number of requests that are kept, 1 or more.
-- Returns: 1 kept; 0 not, the request had ended before.
-- Errors: WRONGTYPE before any write; OOM before the script starts.
local kept = redis.call('HMGET', KEYS[1], 'state', 'decision')
if kept[1] == 'settled' then return 0 end
local decision = kept[2] or ''
local fresh = redis.call('HSET', KEYS[2], ARGV[1], #decision .. ':' .. decision .. ARGV[2])
if fresh == 1 and redis.call('RPUSH', KEYS[3], ARGV[1]) > tonumber(ARGV[3]) then
  redis.call('HDEL', KEYS[2], redis.call('LPOP', KEYS[3]))
end
return 1
