-- The names of the budget counters that an entry was charged to, separated by
-- blanks, so that the ledger alone adds up to every counter. Entries from
-- before name none.
-- +goose Up
ALTER TABLE usage_records ADD COLUMN budgets TEXT NOT NULL DEFAULT '';
