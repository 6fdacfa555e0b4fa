#!lua
-- Purpose: take tokens out of one rate bucket for a replica that gives them out
--   itself, or put back what it did not need. Atomic; not idempotent: a call that
--   is repeated takes, or puts back, once more. So a call whose outcome is unknown
--   is not repeated, and counts as nothing taken or all put back: tokens may be
--   lost, which the bucket makes up for as it drains; none is given out twice.
-- KEYS[1] bucket: <tag>:rpm:<owner> or <tag>:tpm:<owner>, "used at limit" as in
--   reserve; expires once it has drained.
-- ARGV[1] limit: what the bucket gives a minute, 1 or more.
-- ARGV[2] size: the most that it gives at once, 1 or more.
-- ARGV[3] want: tokens; below 0 puts back. Whole numbers below 2^52.
-- Returns: {granted, left, wait}. granted is 0 to want, or want itself where it is
--   below 0; left is what the bucket can still give; wait is ms until it can give
--   one more, 0 when it can now.
-- Errors: WRONGTYPE of the bucket, before any write; OOM before the script starts.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local limit, size, want = tonumber(ARGV[1]), tonumber(ARGV[2]) * 60000, tonumber(ARGV[3])
local u, t = string.match(redis.call('GET', KEYS[1]) or '', '(%d+) (%d+)')
local used = u and math.max(0, u - math.max(0, now - t) * limit) or 0
local granted = math.min(want, math.max(0, math.floor((size - used) / 60000)))
if granted ~= 0 then
  used = math.max(0, used + granted * 60000)
  if used == 0 then
    redis.call('DEL', KEYS[1])
  else
    redis.call('SET', KEYS[1], string.format('%.0f %.0f %.0f', used, now, limit), 'PX', math.ceil(used / limit))
  end
end
local left = math.max(0, math.floor((size - used) / 60000))
return {granted, left, math.max(0, math.ceil((used + 60000 - size) / limit))}
