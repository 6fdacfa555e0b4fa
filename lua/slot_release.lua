#!lua flags=allow-oom
-- Purpose: give back a request's slot. Atomic; idempotent by request: a slot
--   that ended and went to another request stays with that one.
-- KEYS[1] slots: {cNN}:slot:<channel>, sorted set of requests by lease end,
--   expires with its last lease.
-- ARGV[1] request: id.
-- Returns: 1 a slot was given back; 0 the request had none.
-- Errors: WRONGTYPE before any write.
return redis.call('ZREM', KEYS[1], ARGV[1])
