#!lua
-- Purpose: check every limit of one request, then charge every limit, or charge
--   nothing. Atomic; idempotent by request: a second call charges nothing.
--   The tag is {sNN} for what an identity holds, {region} for what it takes of
--   the region's own buckets.
-- KEYS[1] reservation: <tag>:res:<request>, hash of state, decision and held (amount
--   and limit of each hold), expires after ARGV[3].
-- KEYS[2] open index: <tag>:open, sorted set of requests by lease end, never expires.
-- KEYS[3] generation: <tag>:generation, integer, never expires; gone or lower than
--   before when the store has lost writes, so that its windows count too little.
-- KEYS[4..] buckets, one per hold: "used at limit", at in ms, for rate; sorted
--   set of requests by lease end for lease; integer for window; each expires by
--   itself. Behind them, where a limit is -1, the credit that is the
--   limit: {sNN}:credit:<identity>, hash of micros and entry, never expires.
-- ARGV[1] request: id, the member of leases and index.
-- ARGV[2] lease: ms, how long leases live unrenewed, 1 or more.
-- ARGV[3] keep: ms, life of the reservation, a day or more.
-- ARGV[4] decision: bytes, kept beside the reservation.
-- ARGV[5] seen: the highest generation that the caller has seen, 0 for none; empty
--   when no hold is a window, and then the generation is not looked at.
-- ARGV[6..] per hold five values: class (rate, lease, window); limit, -1 for a
--   window that gives what the credit says; size, the most that the bucket gives
--   at once; amount; ttl (ms, windows only). Whole
--   numbers below 2^53. A rate bucket counts in 1/60000 of its unit, so that a
--   limit of L drains exactly L a millisecond.
-- Returns: {status, index, wait, generation, left 1, reset 1, left 2, reset 2, ...}.
--   status 0 charged, 1 refused, 2 refused because the request was closed before,
--   3 refused because the windows have to be rebuilt first;
--   index is the hold that refuses, from 1, else 0: of several one that waiting
--   does not help, else the one that frees soonest; wait is ms until it can fit,
--   0 when waiting does not help; left is what each bucket could still give, reset
--   is ms until a rate bucket is full again.
-- Errors: WRONGTYPE of the reservation or a lease, before any write; OOM before the
--   script starts. A rate or a window of another type counts as none.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local request, lease, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HGET', KEYS[1], 'state')
if state and state ~= 'reserved' then return {2, 0, 0, 0} end
local fresh, never, n, values = not state, -1, (#ARGV - 5) / 5, {KEYS[3]} -- never comes before any wait
for i = 1, n do values[i + 1] = KEYS[i + 3] end
values = redis.call('MGET', unpack(values)) -- of a lease there is none
local generation = fresh and ARGV[5] ~= '' and tonumber(values[1]) or 0
if fresh and ARGV[5] ~= '' and (generation == 0 or generation < tonumber(ARGV[5])) then return {3, 0, 0, 0} end
local at, ends = string.format('%d', now), string.format('%d', now + lease)
local reply, used, refused, soonest = {0, 0, 0, generation}, {}, 0, 0
for i = 1, n do
  local key, class, limit, size = KEYS[i + 3], ARGV[5 * i + 1], tonumber(ARGV[5 * i + 2]), tonumber(ARGV[5 * i + 3])
  local amount = fresh and tonumber(ARGV[5 * i + 4]) or 0
  local unit, wait, reset = 1, never, 0
  if class == 'rate' then
    unit = 60000
    local u, t = string.match(values[i + 1] or '', '(%d+) (%d+)')
    used[i] = u and math.max(0, u - math.max(0, now - t) * limit) or 0
    reset = math.ceil(used[i] / limit)
    if amount <= size then wait = math.ceil((used[i] + amount * unit - size * unit) / limit) end
  elseif class == 'lease' then
    used[i] = redis.call('ZCOUNT', key, '(' .. at, '+inf')
    wait = 1000 -- a request can end at any moment: worth a look in a second
  else
    used[i] = tonumber(values[i + 1]) or 0
    if limit < 0 then size = tonumber(redis.call('HGET', KEYS[#KEYS], 'micros')) or 0 end
  end
  local left = size * unit - used[i]
  if left < amount * unit and (refused == 0 or wait < soonest) then refused, soonest = i, wait end
  reply[2 * i + 3], reply[2 * i + 4] = math.max(0, math.floor(left / unit)), reset
end
if fresh and refused > 0 then reply[1], reply[2], reply[3] = 1, refused, math.max(0, soonest) end
if not fresh or refused > 0 then return reply end
local held = {}
for i = 1, n do
  local key, class, limit, amount = KEYS[i + 3], ARGV[5 * i + 1], ARGV[5 * i + 2], ARGV[5 * i + 4]
  if class == 'rate' then
    local total = used[i] + amount * 60000
    reply[2 * i + 4] = math.ceil(total / limit)
    redis.call('SET', key, string.format('%d %s %s', total, at, limit), 'PX', math.max(1, reply[2 * i + 4]))
  elseif class == 'lease' then
    -- One request in sixteen clears away; more than come in between cannot have ended.
    local gone = string.byte(request, -1) % 16 == 0 and redis.call('ZRANGEBYSCORE', key, '-inf', at, 'LIMIT', 0, 100) or {}
    if #gone > 0 then redis.call('ZREM', key, unpack(gone)) end
    redis.call('ZADD', key, ends, request)
    if redis.call('PTTL', key) < lease then redis.call('PEXPIRE', key, 2 * lease) end
  else
    redis.call('SET', key, string.format('%d', used[i] + amount), 'PX', ARGV[5 * i + 5])
  end
  reply[2 * i + 3] = reply[2 * i + 3] - amount
  held[2 * i - 1], held[2 * i] = amount, limit
end
redis.call('HSET', KEYS[1], 'state', 'reserved', 'decision', ARGV[4], 'held', table.concat(held, ' '))
redis.call('PEXPIRE', KEYS[1], keep)
redis.call('ZADD', KEYS[2], ends, request)
return reply
