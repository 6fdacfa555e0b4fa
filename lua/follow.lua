#!lua flags=allow-oom
-- Purpose: note, for a while, who follows what a request has its provider make in
--   the background, and what another one needs to go on with it; or take that
--   over once its follower's lease has ended. Like a renewal it keeps the
--   reservation open. Atomic; repeating it only moves ends.
-- KEYS[1] reservation: <tag>:res:<request>, hash, expires after ARGV[5].
-- KEYS[2] open index: <tag>:open, sorted set of requests by lease end, never expires.
-- KEYS[3] followed: <tag>:followed, sorted set of requests by the end of their
--   follower's lease, expires ARGV[5] after its last change.
-- ARGV[1] request: id.
-- ARGV[2] follower: name of the process, unique among all.
-- ARGV[3] lease: ms for which nobody else may follow; 0 leaves it to whoever asks next.
-- ARGV[4] open: ms from now for which the reservation counts as alive, 1 or more.
-- ARGV[5] keep: ms, life of the reservation from now, a day or more.
-- ARGV[6] following: bytes that another one needs; empty takes over what is kept.
-- Returns: {status, following}: 1 ARGV[2] has it, following is what was kept where
--   ARGV[6] is empty, else empty. 0 the request has ended, or has nothing to take
--   over; 2 nobody knows it; 3 another one follows: nothing changed, but that 0
--   and 2 stand in the index no more.
-- Errors: WRONGTYPE of the reservation or of the followed, before any write.
local state, kept, follower = unpack(redis.call('HMGET', KEYS[1], 'state', 'following', 'follower'))
local ends = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[1])) or 0
local takes = ARGV[6] == ''
if state ~= 'reserved' or (takes and not kept) then
  redis.call('ZREM', KEYS[3], ARGV[1])
  return {state and 0 or 2, ''}
end
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if follower and follower ~= ARGV[2] and ends > now then return {3, ''} end
if not takes and kept ~= ARGV[6] then redis.call('HSET', KEYS[1], 'following', ARGV[6]) end
redis.call('HSET', KEYS[1], 'follower', ARGV[2], 'renewed', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[4]), ARGV[1])
redis.call('ZADD', KEYS[3], string.format('%.0f', now + ARGV[3]), ARGV[1])
redis.call('PEXPIRE', KEYS[3], ARGV[5])
return {1, takes and kept or ''}
