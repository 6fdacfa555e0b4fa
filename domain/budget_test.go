package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func TestCompareBudgets(t *testing.T) {
	t.Parallel()
	const day, month, old = "budget:day:key:k:2026-11-29", "budget:month:identity:acme:2026-11", "budget:day:key:k:2026-10-31"
	book := domain.BudgetBook{
		Counters: []domain.BudgetCounter{{Name: day, Micros: 100}, {Name: month, Micros: 70}, {Name: old, Micros: 5}},
		Held:     map[string]int64{day: 30},
		Pending: []domain.UsageRecord{
			{RequestID: "on its way", CostMicros: 20, Budgets: []string{day, month}},
			{RequestID: "there already", CostMicros: 9, Budgets: []string{day, month}},
		},
	}
	sums := domain.BudgetSums{
		Since:   domain.MonthBegin(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)),
		Spent:   map[string]int64{day: 50, month: 49, "budget:day:key:lost:2026-11-29": 3, "no budget": 1},
		Settled: map[string]bool{"there already": true},
	}
	got := book.Compare(sums)
	require.Equal(t, []domain.BudgetDrift{
		{Name: day, Counter: 100, Held: 30, Pending: 20, Ledger: 50},
		{Name: "budget:day:key:lost:2026-11-29", Ledger: 3},
		{Name: month, Counter: 70, Pending: 20, Ledger: 49},
	}, got, "a window that began before the sums is left out")
	var drift []int64
	for _, d := range got {
		drift = append(drift, d.Micros())
	}
	require.Equal(t, []int64{0, -3, 1}, drift)
}

// Balances have no window, whatever their identities are called.
func TestCompareBalances(t *testing.T) {
	t.Parallel()
	spent, paid := domain.BalanceCounter("2020-01"), domain.CreditPrefix+"2020-01"
	require.Equal(t, "budget:balance:identity:2020-01", spent)
	book := domain.BudgetBook{
		Counters: []domain.BudgetCounter{{Name: spent, Micros: 70}, {Name: paid, Micros: 500}},
		Held:     map[string]int64{spent: 30},
	}
	sums := domain.BudgetSums{Since: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), Spent: map[string]int64{spent: 40, paid: 400}}
	require.Equal(t, []domain.BudgetDrift{
		{Name: spent, Counter: 70, Held: 30, Ledger: 40},
		{Name: paid, Counter: 500, Ledger: 400},
	}, book.Compare(sums))
}

func TestBudgetWindowBegin(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 10, 31, 10, 0, 0, 0, time.UTC) // midnight at UTC+14
	for _, name := range []string{"budget:day:key:a:b:2026-11-01", "budget:month:key:k:2026-11"} {
		at, ok := domain.BudgetWindowBegin(name)
		require.True(t, ok, name)
		require.Equal(t, begin, at, name)
	}
	require.Equal(t, begin, domain.MonthBegin(time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)))
	for _, name := range []string{"", "rpm:key:k", "budget:day:key:k:2026-13-01"} {
		_, ok := domain.BudgetWindowBegin(name)
		require.False(t, ok, name)
	}
}
