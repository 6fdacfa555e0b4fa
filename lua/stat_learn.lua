#!lua
-- Purpose: move a channel's averages towards what its last attempts showed, as
--   if each had come alone with the weight 0.2. Atomic; not idempotent: a call
--   that is repeated counts twice, which the next attempts undo.
-- KEYS[1] averages: {cNN}:stat:<channel>, hash of e:<class> (share of failures in
--   millionths) and t:<class> (first byte in microseconds), expires after ARGV[1].
-- ARGV[1] keep: ms; averages that nothing was added to for so long are forgotten.
-- ARGV[2..] per class five values: class; attempts, 1 or more; failed of them;
--   timed, how many had a first byte; microseconds of these together.
-- Returns: the number of classes.
-- Errors: WRONGTYPE before any write; OOM before the script starts.
local n = (#ARGV - 1) / 5
local function move(field, mean, count, start)
  local old = tonumber(redis.call('HGET', KEYS[1], field)) or start
  local kept = 0.8 ^ count
  redis.call('HSET', KEYS[1], field, string.format('%.0f', old * kept + mean * (1 - kept)))
end
for i = 1, n do
  local class, attempts = ARGV[5 * i - 3], tonumber(ARGV[5 * i - 2])
  local timed = tonumber(ARGV[5 * i])
  move('e:' .. class, ARGV[5 * i - 1] / attempts * 1000000, attempts, 0)
  if timed > 0 then
    local mean = ARGV[5 * i + 1] / timed
    move('t:' .. class, mean, timed, mean)
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return n
