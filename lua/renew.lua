#!lua flags=allow-oom
-- Purpose: keep one running request alive: move the end of its leases, and note
--   that somebody runs it. A lease that was lost is taken again even over the
--   limit, because the request does run. Atomic; repeating it only moves ends.
-- KEYS[1] reservation: <tag>:res:<request>, hash, expires after ARGV[3].
-- KEYS[2] open index: <tag>:open, sorted set of requests by lease end, never expires.
-- KEYS[3..] leases: <tag>:inflight:<scope>:<id>, sorted set of requests by lease
--   end, expires with its last lease.
-- ARGV[1] request: id.
-- ARGV[2] lease: ms from now, 1 or more.
-- ARGV[3] keep: ms, life of the reservation from now, a day or more.
-- Returns: 1 renewed; 0 the request has ended, 2 nobody knows it: nothing changed.
-- Errors: WRONGTYPE of the reservation before any write.
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'reserved' then return state and 0 or 2 end
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local lease, ends = tonumber(ARGV[2]), string.format('%.0f', now + ARGV[2])
redis.call('HSET', KEYS[1], 'renewed', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], ends, ARGV[1])
for i = 3, #KEYS do
  redis.call('ZADD', KEYS[i], ends, ARGV[1])
  if redis.call('PTTL', KEYS[i]) < lease then redis.call('PEXPIRE', KEYS[i], 2 * lease) end
end
return 1
