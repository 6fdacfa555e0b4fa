-- When a settlement reached the store, by the store's own clock: what tells whether
-- the store is older than the ledger must not depend on a gateway's. Entries from
-- before, and corrections that never were in a store, have none.
-- +goose Up
ALTER TABLE usage_records ADD COLUMN settled_at_ms INTEGER NOT NULL DEFAULT 0;
