#!lua flags=allow-oom
-- Purpose: bring one correction of the ledger to the budgets that the settlement
--   was charged to. Atomic; idempotent by request and entry.
-- KEYS[1] mark: {sNN}:corrected:<request>:<entry>, string, expires after ARGV[2].
-- KEYS[2..] budgets: integers, each with its own expiry, which stays.
-- ARGV[1] delta: micro-units, whole, may be below 0; between -2^52 and 2^52.
-- ARGV[2] keep: ms for which the mark stays, longer than any budget's counter.
-- ARGV[3..] per budget: ttl (ms) with which one that is gone begins at 0; 0 where it
--   stays gone, because its window is over or it is rebuilt from the ledger.
-- Returns: the number of budgets that were changed; -1 when the correction was
--   here before and nothing changed.
-- Errors: WRONGTYPE of a budget, before any write.
local values, changed = {}, 0
if redis.call('EXISTS', KEYS[1]) == 1 then return -1 end
for i = 2, #KEYS do values[i] = tonumber(redis.call('GET', KEYS[i])) end
for i = 1, #KEYS - 1 do
  local key, old, ttl = KEYS[i + 1], values[i + 1], ARGV[i + 2]
  if old or ttl ~= '0' then
    local value = string.format('%.0f', math.max(0, (old or 0) + tonumber(ARGV[1])))
    if old then redis.call('SET', key, value, 'KEEPTTL') else redis.call('SET', key, value, 'PX', ttl) end
    changed = changed + 1
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return changed
