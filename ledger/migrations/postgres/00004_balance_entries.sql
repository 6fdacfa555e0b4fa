-- What was paid in by prepaid identities, and taken back: an entry for each
-- payment, by its source and reference. What requests cost stands in
-- usage_records; those that were charged to a balance name it first among their
-- budgets, by which the partial index finds them.
-- +goose Up
CREATE TABLE balance_entries (
    seq           BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    identity      TEXT    NOT NULL CHECK (identity <> ''),
    amount_micros BIGINT  NOT NULL CHECK (amount_micros <> 0),
    source        TEXT    NOT NULL CHECK (source <> ''),
    reference     TEXT    NOT NULL CHECK (reference <> ''),
    note          TEXT    NOT NULL,
    at_ms         BIGINT  NOT NULL,
    UNIQUE (source, reference)
);

CREATE INDEX balance_entries_identity ON balance_entries (identity, seq);
CREATE INDEX usage_records_balance ON usage_records (identity, admitted_at_ms, cost_micros) WHERE budgets LIKE 'budget:balance:%';

-- +goose StatementBegin
CREATE FUNCTION balance_entries_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'balance_entries is append only';
END;
$$;
-- +goose StatementEnd

CREATE TRIGGER balance_entries_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON balance_entries
    FOR EACH STATEMENT EXECUTE FUNCTION balance_entries_refuse_change();
