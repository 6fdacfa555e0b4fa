-- One row is one entry of the ledger. A request's settlement is its entry 0,
-- so it can be written only once however often it is delivered; a correction
-- is a further entry of the same request.
-- +goose Up
CREATE TABLE usage_records (
    seq                    BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
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
    input_uncached_tokens  BIGINT  NOT NULL,
    cache_read_tokens      BIGINT  NOT NULL,
    cache_write_tokens     BIGINT  NOT NULL,
    cache_write_1h_tokens  BIGINT  NOT NULL,
    output_tokens          BIGINT  NOT NULL,
    reasoning_tokens       BIGINT  NOT NULL,
    cost_micros            BIGINT  NOT NULL,
    price_version          TEXT    NOT NULL,
    raw_usage              TEXT,
    prompt_tokens_estimate BIGINT  NOT NULL,
    upstream_request_id    TEXT    NOT NULL,
    admitted_at_ms         BIGINT  NOT NULL,
    first_byte_at_ms       BIGINT  NOT NULL,
    ended_at_ms            BIGINT  NOT NULL,
    UNIQUE (request_id, entry_no)
);

CREATE INDEX usage_records_ended ON usage_records (ended_at_ms, seq);
CREATE INDEX usage_records_key ON usage_records (key_id, ended_at_ms);
CREATE INDEX usage_records_identity ON usage_records (identity, ended_at_ms);
CREATE INDEX usage_records_admitted ON usage_records (admitted_at_ms);

-- +goose StatementBegin
CREATE FUNCTION usage_records_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'usage_records is append only';
END;
$$;
-- +goose StatementEnd

-- A statement trigger refuses also a change that would touch no row, and TRUNCATE.
CREATE TRIGGER usage_records_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_records
    FOR EACH STATEMENT EXECUTE FUNCTION usage_records_refuse_change();
