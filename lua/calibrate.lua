#!lua
-- Purpose: move correction factors of prompt estimates towards what was seen
--   since the last call. Each call moves a factor by a share that depends on how
--   many requests were seen, never all the way. Atomic; not idempotent: a call
--   that is repeated moves them once more by the same bounded share.
-- KEYS[1] calibration: hash of factors in millionths by class and model, expires after ARGV[1].
-- ARGV[1] keep: ms from now for which unused factors are remembered, 1 or more.
-- ARGV[2] inertia: requests for which a factor weighs as it stands, 1 or more.
-- ARGV[3..] per factor three values: field; the factor seen, in millionths; how
--   many requests it was seen with, 1 or more.
-- Returns: how many factors were moved.
-- Errors: WRONGTYPE before any write; OOM before the script starts.
local inertia, n = tonumber(ARGV[2]), (#ARGV - 2) / 3
for i = 1, n do
  local seen, requests = tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2])
  local old = tonumber(redis.call('HGET', KEYS[1], ARGV[3 * i])) or 1000000
  local new = old + (seen - old) * requests / (requests + inertia)
  redis.call('HSET', KEYS[1], ARGV[3 * i], string.format('%.0f', new))
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return n
