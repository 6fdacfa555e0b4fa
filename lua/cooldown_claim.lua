#!lua flags=allow-oom
-- Purpose: let one request try a channel whose cooldown is over, while the
--   others wait. Atomic; idempotent by request.
-- KEYS[1] cooldown: {cNN}:cool:<channel>:<class>, hash, expires by itself.
-- ARGV[1] request: id.
-- ARGV[2] lease: ms for which others wait for its end; 0 gives the claim back.
-- ARGV[3] member: <channel>:<class>.
-- ARGV[4] channel: where the change is published.
-- Returns: 1 the request may go there, by its claim or because nothing is known
--   against the channel any more; 0 it may not, or gave its claim back.
-- Errors: WRONGTYPE before any write.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local c = redis.call('HMGET', KEYS[1], 'until', 'out', 'trial', 'trial_ends')
local lease, mine = tonumber(ARGV[2]), c[3] == ARGV[1]
if not c[1] then return lease > 0 and 1 or 0 end
if lease == 0 then
  if mine then
    redis.call('HDEL', KEYS[1], 'trial', 'trial_ends')
    redis.call('PUBLISH', ARGV[4], ARGV[3])
  end
  return 0
end
if c[2] == '1' or tonumber(c[1]) > now then return 0 end
if not mine and (tonumber(c[4]) or 0) > now then return 0 end
redis.call('HSET', KEYS[1], 'trial', ARGV[1], 'trial_ends', string.format('%.0f', now + lease))
redis.call('PUBLISH', ARGV[4], ARGV[3])
return 1
