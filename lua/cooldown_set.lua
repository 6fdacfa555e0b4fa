#!lua flags=allow-oom
-- Purpose: leave a channel alone because its upstream failed: cool one of its
--   classes, or take it out. Atomic; the longest time wins, and repeating a call
--   does not add to it. A failure after the cooldown's end doubles the next one.
-- KEYS[1] cooldown: {cNN}:cool:<channel>:<class>, hash of until (ms), level, account,
--   reason, out (0 or 1), trial (request), trial_ends (ms); expires after its end
--   and ARGV[8]; one that is out never.
-- KEYS[2] index: {cNN}:cooling, sorted set of <channel>:<class> by expiry, never expires.
-- ARGV[1] member: <channel>:<class>.
-- ARGV[2] account: what a record of another account is replaced by.
-- ARGV[3] reason: a word.
-- ARGV[4] out: 0 or 1.
-- ARGV[5] wait: ms that the upstream asks for; 0 is unknown.
-- ARGV[6] first: ms, where it is unknown; doubled by every failed trial.
-- ARGV[7] bounds: least and most ms, as two numbers with a blank.
-- ARGV[8] keep: ms for which the level outlives the cooldown.
-- ARGV[9] channel: where the change is published.
-- Returns: {changed, left}: changed is 1 or 0; left is ms until its end, 0 when out.
-- Errors: WRONGTYPE of the cooldown, before any write.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local old = redis.call('HMGET', KEYS[1], 'account', 'until', 'level', 'out')
local known = old[1] == ARGV[2]
local ends, level = known and tonumber(old[2]) or 0, known and tonumber(old[3]) or 0
if known and old[4] == '1' then return {0, 0} end
local wait = 0
if ARGV[4] ~= '1' then
  local asked, least, most = tonumber(ARGV[5]), string.match(ARGV[7], '(%d+) (%d+)')
  if known and ends <= now then level = math.min(level + 1, 30) end
  wait = asked
  if asked == 0 or level > 0 then wait = math.max(asked, ARGV[6] * 2 ^ level) end
  wait = math.floor(math.max(tonumber(least), math.min(tonumber(most), wait)))
  -- What was in flight when it began adds nothing, unless the upstream names a later time.
  if ends > now and (asked == 0 or now + wait <= ends + wait / 20) then return {0, ends - now} end
end
local gone = now + wait + ARGV[8]
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'account', ARGV[2], 'reason', ARGV[3], 'out', ARGV[4], 'level', level,
  'until', string.format('%.0f', now + wait))
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
if ARGV[4] == '1' then
  redis.call('ZADD', KEYS[2], '+inf', ARGV[1])
else
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', gone))
  redis.call('ZADD', KEYS[2], string.format('%.0f', gone), ARGV[1])
end
redis.call('PUBLISH', ARGV[9], ARGV[1])
return {1, wait}
