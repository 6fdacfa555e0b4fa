#!lua
-- Purpose: tell the store what an identity has paid in, as a sum. Atomic;
--   idempotent by entry: a sum that is not newer than the store's changes nothing.
-- KEYS[1] credit: {sNN}:credit:<identity>, hash of micros and entry, never expires.
-- ARGV[1] micros: micro-units paid in less those taken back, whole, between -2^51 and 2^51.
-- ARGV[2] entry: number in the ledger of the last entry in the sum, 1 or more.
-- Returns: 1 the sum was set; 0 the store knew it or a later one.
-- Errors: WRONGTYPE before any write; OOM before the script starts.
local known = tonumber(redis.call('HGET', KEYS[1], 'entry')) or 0
if tonumber(ARGV[2]) <= known then return 0 end
redis.call('HSET', KEYS[1], 'micros', ARGV[1], 'entry', ARGV[2])
return 1
