package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// The sums are what a store that lost its windows is rebuilt from, so each kind
// is in its own unit, and a model's name does not cut that of its window.
func TestBudgetSumsOfEveryWindow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		newest, err := l.Newest(t.Context())
		require.NoError(t, err)
		assert.Zero(t, newest)
		const day, model, images = "budget:day:key:k:2026-11-29", "budget:month:key_model:k m large:2026-11", "images:day:identity:acme:2026-11-29"
		rec := func(id string, cost, made int64, names ...string) domain.UsageRecord {
			r := domain.UsageRecord{
				RequestID: id, KeyID: "k", Identity: "acme", Outcome: domain.OutcomeSuccess, Source: domain.SourceUpstream,
				CostMicros: cost, AdmittedAt: noon, EndedAt: noon.Add(time.Hour), SettledAt: noon.Add(time.Duration(cost) * time.Second), Budgets: names,
			}
			r.Usage.Tools[domain.ToolImageGeneration] = made
			return r
		}
		other := rec("d", 1, 0, "budget:day:key:z:2026-11-29")
		other.Identity = "other"
		_, err = l.Append(t.Context(), []domain.UsageRecord{
			rec("a", 10, 2, day, images), rec("b", 20, 0, day, model), rec("c", 5, 3, model, images), other, rec("e", 9, 9),
		})
		require.NoError(t, err)
		sums, err := l.BudgetSums(t.Context(), noon, []string{"a", "none"})
		require.NoError(t, err)
		assert.Equal(t, domain.BudgetSums{
			Since:   noon,
			Spent:   map[string]int64{day: 30, model: 25, images: 5, "budget:day:key:z:2026-11-29": 1},
			Owner:   map[string]string{day: "acme", model: "acme", images: "acme", "budget:day:key:z:2026-11-29": "other"},
			Settled: map[string]bool{"a": true},
		}, sums)
		newest, err = l.Newest(t.Context())
		require.NoError(t, err)
		assert.Equal(t, noon.Add(20*time.Second), newest)
		for _, r := range all(t, l, Query{KeyID: "k"}) {
			if r.RequestID == "b" {
				assert.Equal(t, []string{day, model}, r.Budgets)
			}
		}
	})
}
