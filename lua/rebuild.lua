#!lua flags=allow-oom
-- Purpose: bring windows of a shard that has lost writes to what they should
--   count. What is to be added was reckoned by the caller from one look at the
--   shard; every other change of a window is an addition as well, so it does not
--   matter which come in between. Atomic; a look serves its own calls only.
-- KEYS[1] generation: {sNN}:generation, integer, never expires; missing until this
--   script has set it.
-- KEYS[2] look: {sNN}:rebuild, string, names the latest look, expires by itself.
-- KEYS[3..] windows: integers, each expires by itself.
-- ARGV[1] look: the name of the caller's.
-- ARGV[2] seen: the generation will be higher than this; empty when further
--   windows follow in another call, and then it is not set.
-- ARGV[3..] per window two values: what to add, whole, between -2^52 and 2^52; ttl (ms).
-- Returns: the generation set, 0 where it is not set yet, -1 when nothing was done
--   because there was a later look or a generation.
-- Errors: WRONGTYPE of a window, before any write.
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('GET', KEYS[2]) ~= ARGV[1] then return -1 end
for i = 1, #KEYS - 2 do redis.call('GET', KEYS[i + 2]) end
for i = 1, #KEYS - 2 do
  -- A window may stand twice in one call, so its value is read here.
  local value = (tonumber(redis.call('GET', KEYS[i + 2])) or 0) + tonumber(ARGV[2 * i + 1])
  if value > 0 then
    redis.call('SET', KEYS[i + 2], string.format('%.0f', value), 'PX', ARGV[2 * i + 2])
  else
    redis.call('DEL', KEYS[i + 2])
  end
end
if ARGV[2] == '' then return 0 end
local now = redis.call('TIME')
local generation = math.max(tonumber(ARGV[2]) + 1, now[1] * 1000 + math.floor(now[2] / 1000))
redis.call('SET', KEYS[1], string.format('%.0f', generation))
redis.call('DEL', KEYS[2])
return generation
