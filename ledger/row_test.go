package ledger

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	keywayv1 "keyway/api/keyway/v1"
)

// The names are a contract with the protobuf message, in both directions.
func TestRowHasTheNamesOfTheMessage(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(ToRow(full("req_1")))
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(b, &got))
	var have, want []string
	for name := range got {
		have = append(have, name)
	}
	fields := (&keywayv1.UsageRecord{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		want = append(want, string(fields.Get(i).Name()))
	}
	assert.ElementsMatch(t, want, have)
}

func TestRowJSON(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(ToRow(full("req_1")))
	require.NoError(t, err)
	assert.JSONEq(t, `{
		"request_id": "req_1", "attempt": 2, "key_id": "key_1", "identity": "acme", "api": "chat",
		"model": "gpt/x:1", "model_served": "gpt-x-2026", "model_dispatched": "gpt/x", "channel": "b",
		"attempts": [{"channel": "a", "status": 429}, {"channel": "b", "status": 200}],
		"outcome": "success", "source": "upstream", "status": 200,
		"input_tokens": 60, "input_uncached_tokens": 10, "cache_read_tokens": 20,
		"cache_write_tokens": 30, "cache_write_1h_tokens": 5, "output_tokens": 40, "reasoning_tokens": 7,
		"cost_micros": 9007199254740993, "price_version": "2026-11",
		"raw_usage": {"prompt_tokens": 60, "x": "ü"},
		"prompt_tokens_estimate": 58, "upstream_request_id": "up_1",
		"admitted_at_ms": 1795953600000, "first_byte_at_ms": 1795953600300, "ended_at_ms": 1795953602000,
		"cache_write_30m_tokens": 3, "cache_write_12h_tokens": 2, "input_audio_tokens": 1, "input_image_tokens": 4,
		"output_audio_tokens": 6, "output_image_tokens": 8, "tool_calls": {"web_search": 2, "mcp": 1},
		"service_tier": "flex", "entry_no": 0, "reason": "",
		"budgets": ["budget:day:key:key_1:2026-11-29", "budget:month:identity:acme:2026-11"]
	}`, string(b))
	assert.Contains(t, string(b), `"cost_micros":9007199254740993`, "to the last digit")
}

func TestRowRawUsage(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, raw, want string }{
		{name: "none", raw: "", want: `null`},
		{name: "object", raw: `{"a":1}`, want: `{"a":1}`},
		{name: "no JSON", raw: `{"a":`, want: `"{\"a\":"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := least("req_1")
			r.RawUsage = []byte(tt.raw)
			b, err := json.Marshal(ToRow(r))
			require.NoError(t, err)
			var got struct {
				Raw      json.RawMessage `json:"raw_usage"`
				Attempts json.RawMessage `json:"attempts"`
			}
			require.NoError(t, json.Unmarshal(b, &got))
			assert.Equal(t, tt.want, string(got.Raw))
			assert.Equal(t, `[]`, string(got.Attempts), "never null")
		})
	}
}
