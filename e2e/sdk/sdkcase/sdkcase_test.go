package sdkcase_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"keyway/e2e/sdk/sdkcase"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCounts(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, usage string
		want        sdkcase.Counts
		ok          bool
	}{
		{"none", ``, sdkcase.Counts{}, false},
		{"null", `null`, sdkcase.Counts{}, false},
		{"not an object", `[1]`, sdkcase.Counts{}, false},
		{"chat", `{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":90,"cache_write_tokens":5},"completion_tokens_details":{"reasoning_tokens":7}}`, sdkcase.Counts{Input: 100, CacheRead: 90, CacheWrite: 5, Output: 20, Reasoning: 7}, true},
		{"responses", `{"input_tokens":100,"output_tokens":20,"input_tokens_details":{"cached_tokens":90},"output_tokens_details":{"reasoning_tokens":7}}`, sdkcase.Counts{Input: 100, CacheRead: 90, Output: 20, Reasoning: 7}, true},
		{"messages", `{"input_tokens":10,"cache_read_input_tokens":90,"cache_creation_input_tokens":5,"output_tokens":20}`, sdkcase.Counts{Input: 10, CacheRead: 90, CacheWrite: 5, Output: 20}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got, ok := sdkcase.Result{Usage: json.RawMessage(row.usage)}.Counts()
			assert.Equal(t, row.ok, ok)
			assert.Equal(t, row.want, got)
		})
	}
}
