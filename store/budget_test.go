package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// sumsOf are what a ledger would say that has the records of settlements.
func sumsOf(records ...domain.UsageRecord) domain.BudgetSums {
	sums := domain.BudgetSums{Spent: map[string]int64{}, Settled: map[string]bool{}}
	for _, r := range records {
		sums.Settled[r.RequestID] = true
		for _, name := range r.Budgets {
			sums.Spent[name] += r.CostMicros
		}
	}
	return sums
}

// drifts are the drifts of the tenant's budgets; other tests share the server.
func drifts(book domain.BudgetBook, sums domain.BudgetSums, names ...string) map[string]int64 {
	got := map[string]int64{}
	for _, d := range book.Compare(sums) {
		for _, name := range names {
			if d.Name == name {
				got[name] = d.Micros()
			}
		}
	}
	return got
}

func TestBudgetsAddUp(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	day, month := o.hold(domain.LimitBudgetDay, 1000, 100), o.own(o.hold(domain.LimitBudgetMonth, 5000, 100))
	dayName, monthName := "budget:day:key:"+o.key+":2026-11-29", "budget:month:identity:"+o.identity+":2026-11"
	first, second, open := o.decide(day, month), o.decide(month), o.decide(o.hold(domain.LimitRPM, 10, 1), day, month)
	for _, d := range []domain.Decision{first, second, open} {
		admit(t, s, d)
	}
	for d, micros := range map[string]int64{first.RequestID: 70, second.RequestID: 30} {
		decision := first
		if d == second.RequestID {
			decision = second
		}
		_, err := s.Settle(t.Context(), ends(decision, 1, micros))
		require.NoError(t, err)
	}
	book, err := s.Budgets(t.Context())
	require.NoError(t, err)
	values := map[string]int64{}
	for _, c := range book.Counters {
		values[c.Name] = c.Micros
	}
	assert.EqualValues(t, 170, values[dayName])
	assert.EqualValues(t, 200, values[monthName])
	assert.EqualValues(t, 100, book.Held[dayName], "the open request alone")
	assert.EqualValues(t, 100, book.Held[monthName])

	var records []domain.UsageRecord
	for _, r := range book.Pending {
		if r.Identity == o.identity {
			records = append(records, r)
		}
	}
	require.Len(t, records, 2)
	for _, r := range records {
		want := []string{monthName}
		if r.RequestID == first.RequestID {
			want = []string{dayName, monthName}
		}
		assert.Equal(t, want, r.Budgets, "a record names the budgets that it was charged to")
	}
	agree := map[string]int64{dayName: 0, monthName: 0}
	assert.Equal(t, agree, drifts(book, sumsOf(), dayName, monthName), "nothing has reached the ledger")
	assert.Equal(t, agree, drifts(book, sumsOf(records[0]), dayName, monthName), "one is in the outbox and in the ledger")
	assert.Equal(t, agree, drifts(book, sumsOf(records...), dayName, monthName))

	require.NoError(t, s.client.IncrBy(t.Context(), identityTag(o.identity)+":"+dayName, 7).Err())
	book, err = s.Budgets(t.Context())
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{dayName: 7, monthName: 0}, drifts(book, sumsOf(records...), dayName, monthName), "a leak shows")
}

func TestCorrectBudgets(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	day, month := o.hold(domain.LimitBudgetDay, 1000, 100), o.hold(domain.LimitBudgetMonth, 5000, 100)
	d := o.decide(day, month)
	admit(t, s, d)
	_, err := s.Settle(t.Context(), ends(d, 1, 70))
	require.NoError(t, err)
	key := func(h domain.Hold) string { return bucketKey(o.identity, h) }
	before, err := s.client.PTTL(t.Context(), key(day)).Result()
	require.NoError(t, err)

	c := domain.BudgetCorrection{
		RequestID: d.RequestID, Identity: o.identity, EntryNo: 2, DeltaMicros: -30,
		Budgets: append(budgetNames(d), "budget:day:key:"+o.key+":2001-01-01"),
	}
	for want := range []int{2, 0} {
		changed, err := s.CorrectBudgets(t.Context(), c)
		require.NoError(t, err)
		assert.Equal(t, []int{2, 0}[want], changed, "an entry counts once, a window that is over not at all")
		assert.Equal(t, map[string]int64{"budget_day:key": 40, "budget_month:key": 40}, counters(t, s, o))
	}
	after, err := s.client.PTTL(t.Context(), key(day)).Result()
	require.NoError(t, err)
	assert.InDelta(t, before, after, float64(time.Minute), "the counter keeps its expiry")
	assert.Positive(t, after)

	c.EntryNo, c.DeltaMicros = 4, -1000
	_, err = s.CorrectBudgets(t.Context(), c)
	require.NoError(t, err)
	assert.Empty(t, counters(t, s, o), "never below nothing")
}
