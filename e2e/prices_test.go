package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// Every part of a price, from the provider's answer through Envoy and the store
// to the ledger, in the version and with the multiplier of the admission.
func TestEveryPartOfAPriceReachesTheLedger(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, tc := range []struct {
		name, identity, path, body string
		want                       domain.Usage
		micros                     int64
	}{
		{
			// 60×2 + 40×20 in, 10×0.2 read; 20×8 + 10×9 reasoned + 20×40 sound
			"sound and reasoning", "wide", "/v1/chat/completions",
			chat("priced", `{"usage":{"input_uncached":100,"cache_read":10,"input_audio":40,"output":50,"reasoning":10,"output_audio":20}}`, `"stream":true`),
			domain.Usage{InputUncached: 100, CacheRead: 10, InputAudio: 40, Output: 50, Reasoning: 10, OutputAudio: 20},
			120 + 800 + 2 + 160 + 90 + 800,
		},
		{
			// (25×2 + 10×2.5 + 20×4 + 5×8) × 1.5, two searches 2×10000; all × 0.9
			"lifetimes, a tier, tools and a multiplier", "partner", "/v1/messages",
			messages("priced", `{"usage":{"input_uncached":25,"cache_write":30,"cache_write_1h":20,"output":5,"tier":"priority","tools":[2,3]}}`),
			domain.Usage{
				InputUncached: 25, CacheWrite: 30, CacheWrite1h: 20, Output: 5, Tier: "priority",
				Tools: [domain.ToolKinds]int64{domain.ToolWebSearch: 2, domain.ToolWebFetch: 3},
			},
			18264, // 195 × 1.5 = 292.5; 20292.5 × 0.9 = 18263.25
		},
		{
			// 901×4 + 100×0.4 + 3×16
			"a long prompt", "wide", "/v1/chat/completions",
			chat("priced", `{"usage":{"input_uncached":901,"cache_read":100,"output":3}}`),
			domain.Usage{InputUncached: 901, CacheRead: 100, Output: 3},
			3604 + 40 + 48,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			key, id := s.key(t, "--identity", tc.identity, "--policy", "wide")
			resp, body := s.post(t, tc.path, key, tc.body)
			require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
			r := s.records(t, id, 1)[0]
			assert.Equal(t, tc.want, r.Usage)
			assert.Equal(t, tc.micros, r.CostMicros)
			assert.Equal(t, "v2", r.PriceVersion)
			assert.Len(t, r.Budgets, 4, "a day and a month, of the key and of the identity: %v", r.Budgets)
			requireNoDrift(t, s, id)

			s.cli(t, "ledger", "correct", r.RequestID, "--cost", "0.001", "--reason", "test", "--ledger", s.ready.Ledger, "--store", s.ready.RedisURL)
			var entries []int64
			for _, e := range s.rowsOf(t, r.RequestID) {
				entries = append(entries, e.CostMicros)
			}
			assert.Equal(t, []int64{tc.micros, -tc.micros, 1000}, entries)
			requireNoDrift(t, s, id)
		})
	}
}

// requireNoDrift waits until the budgets of a key are in the store what the
// ledger says.
func requireNoDrift(t *testing.T, s *stack, keyID string) {
	t.Helper()
	var last []domain.BudgetDrift
	eventually(t, func() bool {
		book, err := s.store.Budgets(t.Context())
		require.NoError(t, err)
		sums, err := s.ledger.BudgetSums(t.Context(), domain.MonthBegin(time.Now()), book.PendingRequests())
		require.NoError(t, err)
		last = last[:0]
		settled := true
		for _, d := range book.Compare(sums) {
			if strings.Contains(d.Name, keyID) {
				last = append(last, d)
				settled = settled && d.Micros() == 0 && d.Counter > 0
			}
		}
		return settled && len(last) == 2
	}, 20*time.Second, 50*time.Millisecond, "%+v", &last)
}
