-- The model whose limits and price counted: the one asked for, the one behind an
-- alias, or a fallback. Entries from before have none; theirs is the one asked for.
-- +goose Up
ALTER TABLE usage_records ADD COLUMN model_dispatched TEXT NOT NULL DEFAULT '';
