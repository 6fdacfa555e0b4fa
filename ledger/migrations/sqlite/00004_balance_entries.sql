-- What was paid in by prepaid identities, and taken back: an entry for each
-- payment, by its source and reference. What requests cost stands in
-- usage_records; those that were charged to a balance name it first among their
-- budgets, by which the partial index finds them.
-- +goose Up
CREATE TABLE balance_entries (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    identity      TEXT    NOT NULL CHECK (identity <> ''),
    amount_micros INTEGER NOT NULL CHECK (amount_micros <> 0),
    source        TEXT    NOT NULL CHECK (source <> ''),
    reference     TEXT    NOT NULL CHECK (reference <> ''),
    note          TEXT    NOT NULL,
    at_ms         INTEGER NOT NULL,
    UNIQUE (source, reference)
);

CREATE INDEX balance_entries_identity ON balance_entries (identity, seq);
CREATE INDEX usage_records_balance ON usage_records (identity, admitted_at_ms, cost_micros) WHERE budgets LIKE 'budget:balance:%';

-- +goose StatementBegin
CREATE TRIGGER balance_entries_no_update BEFORE UPDATE ON balance_entries
BEGIN
    SELECT RAISE(ABORT, 'balance_entries is append only');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER balance_entries_no_delete BEFORE DELETE ON balance_entries
BEGIN
    SELECT RAISE(ABORT, 'balance_entries is append only');
END;
-- +goose StatementEnd
