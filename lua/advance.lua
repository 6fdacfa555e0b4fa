#!lua flags=allow-oom
-- Purpose: move the generation of one shard on, or find that the shard has lost
--   writes. A generation that went back is removed, so that everyone sees the
--   loss until rebuild.lua has mended it.
-- KEYS[1] generation: {sNN}:generation, integer, ms of the store's clock at the
--   last advance, never expires.
-- ARGV[1] seen: the highest that the caller has seen, 0 for none.
-- Returns: the new generation; 0 when there is none, or there is none any more.
-- Errors: none.
local now, generation = redis.call('TIME'), tonumber(redis.call('GET', KEYS[1])) or 0
if generation == 0 then return 0 end
if generation < tonumber(ARGV[1]) then
  redis.call('DEL', KEYS[1])
  return 0
end
generation = math.max(generation + 1, now[1] * 1000 + math.floor(now[2] / 1000))
redis.call('SET', KEYS[1], string.format('%.0f', generation))
return generation
