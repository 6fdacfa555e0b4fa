#!lua
-- Purpose: move a channel's averages towards what its last attempts showed, as
--   if each had come alone with the weight 0.2. Atomic; not idempotent: a call
--   that is repeated counts twice, which the next attempts undo.
-- KEYS[1] averages: {cNN}:stat:<channel>, hash of e:<class> (share of failures in
--   millionths), t:<class> (first byte in microseconds), q:<class> (quota left in
--   millionths) and r:<class> (when it is whole again, ms), expires after ARGV[1].
-- ARGV[1] keep: ms; averages that nothing was added to for so long are forgotten.
-- ARGV[2..] per class seven values: class; attempts, 1 or more; failed of them;
--   timed, how many had a first byte; microseconds of these together; quota left
--   in millionths; ms until it is whole again, 0 where nothing is known of it.
-- Returns: the number of classes.
-- Errors: WRONGTYPE before any write; OOM before the script starts.
local n = (#ARGV - 1) / 7
local now = redis.call('TIME')
local function move(field, mean, count, start)
  local old = tonumber(redis.call('HGET', KEYS[1], field)) or start
  local kept = 0.8 ^ count
  redis.call('HSET', KEYS[1], field, string.format('%.0f', old * kept + mean * (1 - kept)))
end
for i = 1, n do
  local class, attempts = ARGV[7 * i - 5], tonumber(ARGV[7 * i - 4])
  local timed = tonumber(ARGV[7 * i - 2])
  move('e:' .. class, ARGV[7 * i - 3] / attempts * 1000000, attempts, 0)
  if timed > 0 then
    local mean = ARGV[7 * i - 1] / timed
    move('t:' .. class, mean, timed, mean)
  end
  if tonumber(ARGV[7 * i + 1]) > 0 then
    local whole = now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[7 * i + 1]
    redis.call('HSET', KEYS[1], 'q:' .. class, ARGV[7 * i], 'r:' .. class, string.format('%.0f', whole))
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return n
