package store

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// Every model that may be dispatched holds its own limits, and only the one that
// served is charged: in the counters and in what the ledger is told.
func TestOnlyTheModelThatServedIsCharged(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for attempt, charged := range map[int]string{0: "m", 1: "m", 2: "n"} {
		o := newTenant()
		of := func(kind domain.LimitKind, model string) domain.Hold {
			h := o.hold(kind, 300, 100) // slow to drain, so that it still shows
			if model != "" {
				h.Scope, h.ID = domain.ScopeKeyModel, o.key+" "+model
			}
			return h
		}
		var holds []domain.Hold
		for _, model := range []string{"", "m", "n"} {
			holds = append(holds, of(domain.LimitTPM, model), of(domain.LimitBudgetDay, model))
		}
		d := o.decide(holds...)
		d.Candidates = []domain.Candidate{{Channel: unique("channel")}, {Channel: unique("channel"), Model: "n", Price: &domain.Price{Version: "n1"}}}
		admit(t, s, d)
		settlement := ends(d, 40, 7)
		settlement.Record.Attempt = attempt
		_, err := s.Settle(t.Context(), settlement)
		require.NoError(t, err)

		all, err := s.Counters(t.Context(), o.identity)
		require.NoError(t, err)
		budgets := map[string]int64{}
		for _, model := range []string{"", "m", "n"} {
			if v := all[bucketKey(o.identity, of(domain.LimitBudgetDay, model))]; v > 0 {
				budgets[model] = v
			}
			tokens := all[bucketKey(o.identity, of(domain.LimitTPM, model))]
			assert.Equal(t, model == "" || model == charged, tokens > 0, "attempt %d, tokens of %q", attempt, model)
		}
		assert.Equal(t, map[string]int64{"": 7, charged: 7}, budgets)
		book, err := s.Budgets(t.Context())
		require.NoError(t, err)
		for _, r := range book.Pending {
			if r.RequestID == d.RequestID {
				assert.Equal(t, []string{"budget:day:key:" + o.key + ":2026-11-29", "budget:day:key_model:" + o.key + " " + charged + ":2026-11-29"}, r.Budgets)
			}
		}
	}
}
