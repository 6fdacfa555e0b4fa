package ledger

import (
	"encoding/json"

	"keyway/domain"
)

// Row is a UsageRecord as people and their tools read it: JSON under the field
// names of keyway.v1.UsageRecord. Numbers are JSON numbers, times milliseconds
// since the epoch with 0 for never.
type Row struct {
	RequestID   string `json:"request_id"`
	Attempt     int    `json:"attempt"`
	KeyID       string `json:"key_id"`
	Identity    string `json:"identity"`
	API         string `json:"api"`
	Model       string `json:"model"`
	ModelServed string `json:"model_served"`
	// ModelDispatched is the model whose limits and price counted.
	ModelDispatched string        `json:"model_dispatched"`
	Channel         string        `json:"channel"`
	Attempts        []attemptJSON `json:"attempts"`
	Outcome         string        `json:"outcome"`
	Source          string        `json:"source"`
	Status          int           `json:"status"`
	// InputTokens is the whole prompt: the sum of the next three.
	InputTokens         int64 `json:"input_tokens"`
	InputUncachedTokens int64 `json:"input_uncached_tokens"`
	CacheReadTokens     int64 `json:"cache_read_tokens"`
	CacheWriteTokens    int64 `json:"cache_write_tokens"`
	CacheWrite1hTokens  int64 `json:"cache_write_1h_tokens"`
	OutputTokens        int64 `json:"output_tokens"`
	ReasoningTokens     int64 `json:"reasoning_tokens"`
	// CostMicros is millionths of the currency unit.
	CostMicros   int64  `json:"cost_micros"`
	PriceVersion string `json:"price_version"`
	// RawUsage is the provider's usage object as it came; null when none came,
	// a JSON string when what came was no JSON.
	RawUsage             json.RawMessage `json:"raw_usage"`
	PromptTokensEstimate int64           `json:"prompt_tokens_estimate"`
	UpstreamRequestID    string          `json:"upstream_request_id"`
	AdmittedAtMs         int64           `json:"admitted_at_ms"`
	FirstByteAtMs        int64           `json:"first_byte_at_ms"`
	EndedAtMs            int64           `json:"ended_at_ms"`

	CacheWrite30mTokens int64 `json:"cache_write_30m_tokens"`
	CacheWrite12hTokens int64 `json:"cache_write_12h_tokens"`
	InputAudioTokens    int64 `json:"input_audio_tokens"`
	InputImageTokens    int64 `json:"input_image_tokens"`
	OutputAudioTokens   int64 `json:"output_audio_tokens"`
	OutputImageTokens   int64 `json:"output_image_tokens"`
	// ToolCalls are by the name of the tool; {} when none was called.
	ToolCalls   map[string]int64 `json:"tool_calls"`
	ServiceTier string           `json:"service_tier"`
	// EntryNo is 0 for a settlement and counts its corrections from 1.
	EntryNo int    `json:"entry_no"`
	Reason  string `json:"reason"`
	// Budgets are the names of the budgets that it was charged to; [] for none.
	Budgets []string `json:"budgets"`
}

// ToRow returns rec as a Row.
func ToRow(rec domain.UsageRecord) Row {
	u := rec.Usage
	return Row{
		RequestID:            rec.RequestID,
		Attempt:              rec.Attempt,
		KeyID:                rec.KeyID,
		Identity:             rec.Identity,
		API:                  string(rec.API),
		Model:                rec.Model,
		ModelServed:          rec.ModelServed,
		ModelDispatched:      rec.ModelDispatched,
		Channel:              rec.Channel,
		Attempts:             attemptsToJSON(rec.Attempts),
		Outcome:              string(rec.Outcome),
		Source:               string(rec.Source),
		Status:               rec.Status,
		InputTokens:          u.Input(),
		InputUncachedTokens:  u.InputUncached,
		CacheReadTokens:      u.CacheRead,
		CacheWriteTokens:     u.CacheWrite,
		CacheWrite1hTokens:   u.CacheWrite1h,
		OutputTokens:         u.Output,
		ReasoningTokens:      u.Reasoning,
		CostMicros:           rec.CostMicros,
		PriceVersion:         rec.PriceVersion,
		RawUsage:             rawJSON(rec.RawUsage),
		PromptTokensEstimate: rec.PromptTokensEstimate,
		UpstreamRequestID:    rec.UpstreamRequestID,
		AdmittedAtMs:         toMs(rec.AdmittedAt),
		FirstByteAtMs:        toMs(rec.FirstByteAt),
		EndedAtMs:            toMs(rec.EndedAt),
		CacheWrite30mTokens:  u.CacheWrite30m,
		CacheWrite12hTokens:  u.CacheWrite12h,
		InputAudioTokens:     u.InputAudio,
		InputImageTokens:     u.InputImage,
		OutputAudioTokens:    u.OutputAudio,
		OutputImageTokens:    u.OutputImage,
		ToolCalls:            toolsToJSON(u.Tools),
		ServiceTier:          u.Tier,
		EntryNo:              rec.EntryNo,
		Reason:               rec.Reason,
		Budgets:              append([]string{}, rec.Budgets...),
	}
}

func rawJSON(raw []byte) json.RawMessage {
	switch {
	case len(raw) == 0:
		return nil
	case json.Valid(raw):
		return raw
	}
	text, err := json.Marshal(string(raw))
	if err != nil {
		return nil // a string always marshals
	}
	return text
}
