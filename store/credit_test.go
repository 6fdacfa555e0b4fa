package store

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

// credit pays in for the tenant, as the sum up to an entry.
func (o tenant) credit(t testing.TB, s *Store, micros, entry int64) {
	t.Helper()
	require.NoError(t, s.SetCredits(t.Context(), []domain.Credit{{Identity: o.identity, Micros: micros, Entry: entry}}, entry))
}

// Fifty requests of 100 at once against a balance of 1000: ten are admitted, and
// the others take nothing of any limit.
func TestBalanceIsNeverOversold(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	o.credit(t, s, 1000, 1)
	var (
		wg       sync.WaitGroup
		admitted atomic.Int64
		refused  atomic.Int64
	)
	for range 50 {
		wg.Go(func() {
			d := o.decide(domain.BalanceHold(o.identity, 100), o.hold(domain.LimitRPM, 60, 1))
			a, err := s.Admit(t.Context(), d)
			if !assert.NoError(t, err) {
				return
			}
			if a.Refusal == nil {
				admitted.Add(1)
				return
			}
			refused.Add(1)
			assert.Equal(t, domain.LimitBalance, a.Refusal.Kind)
			assert.Zero(t, a.Refusal.RetryAfter, "waiting does not help")
		})
	}
	wg.Wait()
	require.EqualValues(t, 10, admitted.Load())
	require.EqualValues(t, 40, refused.Load())
	taken := counters(t, s, o)["rpm:key"]
	require.LessOrEqual(t, taken, int64(10), "a refusal takes nothing of the rate") // one comes back each second
	require.Positive(t, taken)

	o.credit(t, s, 1250, 2)
	for range 2 {
		admit(t, s, o.decide(domain.BalanceHold(o.identity, 100)))
	}
	got := refusal(t, s, o.decide(domain.BalanceHold(o.identity, 100)))
	assert.EqualValues(t, 50, got.Remaining)
}

func TestBalanceIsSettled(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	spent := func() int64 {
		t.Helper()
		n, err := s.values(t.Context(), identityTag(o.identity)+":"+domain.BalanceCounter(o.identity))
		require.NoError(t, err)
		return n[0]
	}
	request := func(micros int64) domain.Decision { return o.decide(domain.BalanceHold(o.identity, micros)) }
	refusal(t, s, request(1)) // nothing was paid in
	admit(t, s, request(0))   // what is free needs no balance

	o.credit(t, s, 1000, 7)
	first, second, third := request(400), request(300), request(300)
	for _, d := range []domain.Decision{first, second, third} {
		admit(t, s, d)
	}
	refusal(t, s, request(1))
	_, err := s.Settle(t.Context(), ends(first, 1, 150)) // cheaper than was held
	require.NoError(t, err)
	require.EqualValues(t, 750, spent())
	require.NoError(t, s.Refund(t.Context(), second))
	require.EqualValues(t, 450, spent())
	_, err = s.Settle(t.Context(), ends(third, 1, 900)) // dearer than was held: what was used is owed
	require.NoError(t, err)
	require.EqualValues(t, 1050, spent())
	require.EqualValues(t, 0, refusal(t, s, request(0)).Remaining, "a balance below zero admits nothing")
	ttl, err := s.client.TTL(t.Context(), identityTag(o.identity)+":"+domain.BalanceCounter(o.identity)).Result()
	require.NoError(t, err)
	require.Greater(t, ttl, keepBalance-keepDay, "it does not run out")

	book, err := s.Budgets(t.Context())
	require.NoError(t, err)
	var records []domain.UsageRecord
	for _, r := range book.Pending {
		if r.Identity == o.identity {
			require.Equal(t, []string{domain.BalanceCounter(o.identity)}, r.Budgets)
			records = append(records, r)
		}
	}
	require.Len(t, records, 2)
	sums := sumsOf(records...)
	sums.Spent[domain.CreditPrefix+o.identity] = 1000
	names := []string{domain.BalanceCounter(o.identity), domain.CreditPrefix + o.identity}
	require.Equal(t, map[string]int64{names[0]: 0, names[1]: 0}, drifts(book, sums, names...))
	sums.Spent[domain.CreditPrefix+o.identity] = 900
	require.Equal(t, map[string]int64{names[0]: 0, names[1]: 100}, drifts(book, sums, names...))
}

// A correction counts also where a balance has paid for nothing yet.
func TestBalanceIsCorrected(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	o.credit(t, s, 1000, 1)
	d := o.decide(domain.BalanceHold(o.identity, 100), o.hold(domain.LimitBudgetDay, 1000, 100))
	admit(t, s, d)
	_, err := s.Settle(t.Context(), ends(d, 0, 0))
	require.NoError(t, err)
	require.EqualValues(t, 1000, refusal(t, s, o.decide(domain.BalanceHold(o.identity, 5000))).Remaining)
	c := domain.BudgetCorrection{RequestID: d.RequestID, Identity: o.identity, EntryNo: 2, DeltaMicros: 70, Budgets: budgetNames(d)}
	for _, want := range []int{1, 0} {
		changed, err := s.CorrectBudgets(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, want, changed)
		require.EqualValues(t, 930, refusal(t, s, o.decide(domain.BalanceHold(o.identity, 5000))).Remaining)
	}
	ttl, err := s.client.TTL(t.Context(), identityTag(o.identity)+":corrected:"+d.RequestID+":2").Result()
	require.NoError(t, err)
	require.Greater(t, ttl, keepBalance-keepDay, "the mark lives as long as the counter")
	c.EntryNo, c.DeltaMicros = 4, -70
	_, err = s.CorrectBudgets(t.Context(), c)
	require.NoError(t, err)
	require.EqualValues(t, 1000, refusal(t, s, o.decide(domain.BalanceHold(o.identity, 5000))).Remaining)
}

func TestHoldOfABalanceStandsFirst(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	_, err := s.Admit(t.Context(), o.decide(o.hold(domain.LimitRPM, 10, 1), domain.BalanceHold(o.identity, 1)))
	require.ErrorContains(t, err, "not the first")
}

// What was paid in may arrive twice and in any order; marks tell what has to come
// again after a loss.
func TestCreditsAreSums(t *testing.T) {
	t.Parallel()
	s := begun(t, storetest.Start(t).URL) // the marks are everybody's
	o := newTenant()
	left := func() int64 { return refusal(t, s, o.decide(domain.BalanceHold(o.identity, maxBudget))).Remaining }
	mark := func() int64 {
		t.Helper()
		entry, err := s.CreditMark(t.Context())
		require.NoError(t, err)
		return entry
	}
	require.Zero(t, mark())
	for _, step := range []struct{ micros, entry, want int64 }{
		{500, 3, 500},
		{500, 3, 500},
		{900, 8, 900},
		{500, 3, 900}, // a carrier that was slow
		{200, 9, 200}, // money was taken back
	} {
		o.credit(t, s, step.micros, step.entry)
		require.Equal(t, step.want, left(), "%+v", step)
	}
	require.EqualValues(t, 9, mark())
	require.NoError(t, s.client.Del(t.Context(), creditMarkKey(17)).Err())
	require.Zero(t, mark(), "a shard that lost its data needs everything again")

	many := make([]domain.Credit, 2*readChunk+1)
	for i := range many {
		many[i] = domain.Credit{Identity: unique("identity"), Micros: 5, Entry: int64(i + 10)}
	}
	require.NoError(t, s.SetCredits(t.Context(), many, int64(len(many)+9)))
	require.EqualValues(t, len(many)+9, mark())
	book, err := s.Budgets(t.Context())
	require.NoError(t, err)
	require.Len(t, book.Counters, len(many)+1)
}
