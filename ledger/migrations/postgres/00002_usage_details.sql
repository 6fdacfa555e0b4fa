-- What a price may tell apart beyond plain tokens, and why a correction was
-- made. Entries from before have none of it: the defaults are their truth.
-- +goose Up
ALTER TABLE usage_records ADD COLUMN cache_write_30m_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_records ADD COLUMN cache_write_12h_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_records ADD COLUMN input_audio_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_records ADD COLUMN input_image_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_records ADD COLUMN output_audio_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_records ADD COLUMN output_image_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_records ADD COLUMN tool_calls TEXT NOT NULL DEFAULT '{}';
ALTER TABLE usage_records ADD COLUMN service_tier TEXT NOT NULL DEFAULT '';
ALTER TABLE usage_records ADD COLUMN reason TEXT NOT NULL DEFAULT '';
