package worker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

const budgetName = "budget:day:key:key_1:2026-11-29"

// fakeBudgets is the store and the ledger of one budget. Each look takes the
// next of its values, and the last one for good.
type fakeBudgets struct {
	mu       sync.Mutex
	counters []int64
	looks    int
	since    time.Time
	asked    []string
}

func (f *fakeBudgets) Budgets(context.Context) (domain.BudgetBook, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	value := f.counters[min(f.looks, len(f.counters)-1)]
	f.looks++
	return domain.BudgetBook{
		Counters: []domain.BudgetCounter{{Name: budgetName, Micros: value}},
		Pending:  []domain.UsageRecord{{RequestID: "req_1", CostMicros: 10, Budgets: []string{budgetName}}},
	}, nil
}

func (f *fakeBudgets) BudgetSums(_ context.Context, since time.Time, requests []string) (domain.BudgetSums, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since, f.asked = since, requests
	return domain.BudgetSums{Since: since, Spent: map[string]int64{budgetName: 90}}, nil
}

func (f *fakeBudgets) Newest(context.Context) (time.Time, error) { return time.Time{}, nil }

func (f *fakeBudgets) seen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looks
}

func TestDriftCountsWhenItStays(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		counters []int64
		want     float64
	}{
		{"none", []int64{100}, 0},
		{"traffic between two readings", []int64{100, 130, 95, 160, 100}, 0},
		{"a leak", []int64{100, 107}, 7},
		{"money lost", []int64{60}, 40},
		{"a leak that was mended", []int64{107, 107, 107, 100}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &fakeBudgets{counters: tt.counters}
			opts := options(newOutbox(), newLedger(), &fakeStore{})
			opts.Budgets, opts.BudgetSums, opts.DriftInterval = f, f, time.Millisecond
			opts.Now = func() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }
			w := newWorker(t, opts)
			stop := start(t, w)
			defer stop()
			eventually(t, func() bool { return f.seen() > len(tt.counters)+3 }, "several looks")
			stop()
			assert.InDelta(t, tt.want, testutil.ToFloat64(w.metrics.drift), 0)
			assert.InDelta(t, 1, testutil.ToFloat64(w.metrics.comparedBudgets), 0)
			assert.Equal(t, domain.MonthBegin(opts.Now()), f.since)
			assert.Equal(t, []string{"req_1"}, f.asked)
		})
	}
}

func TestDriftNeedsBothSides(t *testing.T) {
	t.Parallel()
	opts := options(newOutbox(), newLedger(), &fakeStore{})
	opts.Budgets = &fakeBudgets{}
	_, err := New(opts)
	require.ErrorContains(t, err, "Budgets needs BudgetSums")
}
