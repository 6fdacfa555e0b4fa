#!lua flags=allow-oom
-- Purpose: end one reservation: correct every bucket from what was held to what
--   was used, free its leases, append the record to the outbox. Without a record
--   it is a refund: everything goes back. Atomic; idempotent by request.
--   Runs when memory is full, because it gives memory back.
--   The tag is {sNN}, or {region} for the region's own buckets, which keep no
--   record: theirs is a refund with amounts.
-- KEYS[1] reservation: <tag>:res:<request>, hash; what stays of it expires after ARGV[2].
-- KEYS[2] open index: <tag>:open, sorted set of requests by lease end, never expires.
-- KEYS[3] outbox: <tag>:outbox, stream of v (schema version) and r (record).
-- KEYS[4] repair: <tag>:repair, stream of request and why, the newest 10000 or so.
-- KEYS[5] explained: <tag>:explained, hash of requests, ARGV[6] of them at most, so
--   it needs no expiry: how each was routed and how it ended, for those who ask.
-- KEYS[6] order: <tag>:explained:order, list of the same requests, the oldest
--   first, never expires.
-- KEYS[7..] buckets in the order of the reserve call, and behind them those whose
--   amount came out of a lease; each expires by itself.
-- ARGV[1] request: id.
-- ARGV[2] keep: ms for which the end is remembered, so that a reserve that comes
--   late is refused; 0 forgets the request at once.
-- ARGV[3] record: bytes for the outbox; empty is a refund, of which the
--   amounts below are usually 0.
-- ARGV[4] version: of the record's schema, 1 or more.
-- ARGV[5] told: bytes to explain the request with, beside its decision; empty is
--   the record.
-- ARGV[6] most: number of requests that are explained, 1 or more.
-- ARGV[7..] per hold three values: class (rate, lease, window, lent); amount used,
--   in the bucket's unit, of lent what was used beyond the lease, which may be
--   below 0; ttl (ms, windows only), of lent the limit. Whole numbers below 2^53.
-- Returns: 0 ended by this call; 1 had ended before, nothing changed; 2 unknown:
--   a record was kept all the same, its money counted and the request noted in
--   repair; a refund left a tombstone. A request with nothing but lent holds is
--   never unknown: it went out before its reservation was written.
-- Errors: WRONGTYPE of the reservation, before any write. A rate or a window of
--   another type counts as gone; explaining fails nothing.
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local request, keep, record = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local n, kept, totals, limits = #KEYS - 6, {}, {}, {}
local lent = n > 0
local state, all, decision = unpack(redis.call('HMGET', KEYS[1], 'state', 'held', 'decision'))
for number in string.gmatch(all or '', '%S+') do kept[#kept + 1] = tonumber(number) end
if state == 'settled' or (state == 'refunded' and record == '') then return 1 end
local known, values = state == 'reserved', n > 0 and redis.call('MGET', unpack(KEYS, 7)) -- of a lease there is none
for i = 1, n do
  local class, amount = ARGV[3 * i + 4], tonumber(ARGV[3 * i + 5])
  local held, limit = kept[2 * i - 1] or 0, kept[2 * i] or 0
  lent = lent and class == 'lent'
  if class == 'lent' and state ~= 'refunded' then class, limit = 'rate', tonumber(ARGV[3 * i + 6]) end
  if class == 'rate' and limit > 0 and amount ~= held then
    local u, t = string.match(values[i] or '', '(%d+) (%d+)')
    limits[i] = limit
    totals[i] = math.max(0, (u and math.max(0, u - math.max(0, now - t) * limit) or 0) + (amount - held) * 60000)
  elseif class == 'window' and (known or amount > 0) then
    local used = tonumber(values[i])
    -- A counter that is gone took the hold with it: what was used counts whole.
    totals[i] = used and math.max(0, used + amount - held) or amount
  end
end
for i = 1, n do
  local key, class = KEYS[i + 6], ARGV[3 * i + 4]
  if class == 'lease' then
    redis.call('ZREM', key, request)
  elseif totals[i] == 0 then
    redis.call('DEL', key)
  elseif limits[i] then
    redis.call('SET', key, string.format('%d %d %d', totals[i], now, limits[i]), 'PX', math.ceil(totals[i] / limits[i]))
  elseif totals[i] then
    redis.call('SET', key, string.format('%d', totals[i]), 'PX', ARGV[3 * i + 6])
  end
end
redis.call('ZREM', KEYS[2], request)
if keep > 0 then
  redis.call('HSET', KEYS[1], 'state', record == '' and 'refunded' or 'settled')
  -- One that was open has the expiry of its last sign of life.
  if known then redis.call('HDEL', KEYS[1], 'decision', 'held', 'renewed', 'following', 'follower') else redis.call('PEXPIRE', KEYS[1], keep) end
else
  redis.call('DEL', KEYS[1])
end
if record ~= '' then
  redis.call('XADD', KEYS[3], '*', 'v', ARGV[4], 'r', record)
  if not (known or lent) then
    redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'request', request, 'why', state or 'unknown')
  end
  local told = #(decision or '') .. ':' .. (decision or '') .. (ARGV[5] ~= '' and ARGV[5] or record)
  local order = redis.pcall('HSET', KEYS[5], request, told) == 1 and redis.pcall('RPUSH', KEYS[6], request)
  if type(order) == 'number' and order > tonumber(ARGV[6]) then redis.pcall('HDEL', KEYS[5], redis.pcall('LPOP', KEYS[6])) end
end
return (known or lent) and 0 or 2
