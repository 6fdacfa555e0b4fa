-- One row is one entry of the ledger. A request's settlement is its entry 0,
-- so it can be written only once however often it is delivered; a correction
-- is a further entry of the same request.
-- +goose Up
CREATE TABLE IF NOT EXISTS usage_records (
    seq                    INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id             TEXT    NOT NULL CHECK (request_id <> ''),
    entry_no               INTEGER NOT NULL DEFAULT 0 CHECK (entry_no >= 0),
    attempt                INTEGER NOT NULL,
    key_id                 TEXT    NOT NULL,
    identity               TEXT    NOT NULL,
    api                    TEXT    NOT NULL,
    model                  TEXT    NOT NULL,
    model_served           TEXT    NOT NULL,
    channel                TEXT    NOT NULL,
    attempts               TEXT    NOT NULL,
    outcome                TEXT    NOT NULL CHECK (outcome IN ('success', 'failed', 'cancelled', 'upstream_cut', 'abandoned')),
    source                 TEXT    NOT NULL CHECK (source IN ('upstream', 'estimate')),
    status                 INTEGER NOT NULL,
    input_uncached_tokens  INTEGER NOT NULL,
    cache_read_tokens      INTEGER NOT NULL,
    cache_write_tokens     INTEGER NOT NULL,
    cache_write_1h_tokens  INTEGER NOT NULL,
    output_tokens          INTEGER NOT NULL,
    reasoning_tokens       INTEGER NOT NULL,
    cost_micros            INTEGER NOT NULL,
    price_version          TEXT    NOT NULL,
    raw_usage              TEXT,
    prompt_tokens_estimate INTEGER NOT NULL,
    upstream_request_id    TEXT    NOT NULL,
    admitted_at_ms         INTEGER NOT NULL,
    first_byte_at_ms       INTEGER NOT NULL,
    ended_at_ms            INTEGER NOT NULL,
    UNIQUE (request_id, entry_no)
);

CREATE INDEX IF NOT EXISTS usage_records_ended ON usage_records (ended_at_ms, seq);
CREATE INDEX IF NOT EXISTS usage_records_key ON usage_records (key_id, ended_at_ms);
CREATE INDEX IF NOT EXISTS usage_records_identity ON usage_records (identity, ended_at_ms);
CREATE INDEX IF NOT EXISTS usage_records_admitted ON usage_records (admitted_at_ms);

-- +goose StatementBegin
CREATE TRIGGER IF NOT EXISTS usage_records_no_update BEFORE UPDATE ON usage_records
BEGIN
    SELECT RAISE(ABORT, 'usage_records is append only');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER IF NOT EXISTS usage_records_no_delete BEFORE DELETE ON usage_records
BEGIN
    SELECT RAISE(ABORT, 'usage_records is append only');
END;
-- +goose StatementEnd
