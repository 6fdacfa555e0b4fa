package authz

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
)

// fakeRates is a store whose buckets give what is in them, and are not refilled.
type fakeRates struct {
	left   map[domain.LimitKind]int64
	err    error
	wishes []domain.RateWish
	notes  []string
}

func (f *fakeRates) LeaseRates(_ context.Context, wishes []domain.RateWish) ([]domain.RateLease, error) {
	leases := make([]domain.RateLease, len(wishes))
	f.wishes = append(f.wishes, wishes...)
	if f.err != nil {
		return leases, f.err
	}
	for i, w := range wishes {
		granted := min(w.Want, f.left[w.Hold.Kind])
		f.left[w.Hold.Kind] -= granted
		leases[i] = domain.RateLease{Granted: granted, Left: f.left[w.Hold.Kind], Wait: time.Second}
	}
	return leases, nil
}

func (f *fakeRates) Note(_ context.Context, decisions []domain.Decision) error {
	if f.err != nil {
		return f.err
	}
	for _, d := range decisions {
		f.notes = append(f.notes, d.RequestID)
	}
	return nil
}

// lend is a lending on a clock of the test's own.
type lend struct {
	*lending
	rates *fakeRates
	at    time.Time
}

func newLend(rpm, tpm int64) *lend {
	l := &lend{rates: &fakeRates{left: map[domain.LimitKind]int64{domain.LimitRPM: rpm, domain.LimitTPM: tpm}}, at: now}
	l.lending = newLending(l.rates, slog.New(slog.DiscardHandler), func() time.Time { return l.at }, func() {})
	return l
}

func (l *lend) turn(t *testing.T) {
	l.at = l.at.Add(leaseTick)
	l.tick(t.Context(), (*lending).wish)
}

func leasedOf(holds ...domain.Hold) *domain.Decision {
	for i := range holds {
		holds[i].Leased = true
	}
	return &domain.Decision{Identity: "acme", Holds: holds, Candidates: []domain.Candidate{{}}}
}

func tpm(id string, limit, amount int64) domain.Hold {
	return domain.Hold{Kind: domain.LimitTPM, Scope: domain.ScopeKey, ID: id, Limit: limit, Amount: amount}
}

func TestLeaseFollowsTheDemand(t *testing.T) {
	t.Parallel()
	l := newLend(1_000_000, 0)
	var here int64
	ask := func() bool {
		d := leasedOf(rpm("a", 60_000))
		require.Nil(t, l.take(d))
		if alone(d) {
			here++
		}
		return alone(d)
	}
	require.False(t, ask(), "the first is for the store")
	for range 20 { // 50 a tick
		l.turn(t)
		for range 50 {
			ask()
		}
	}
	l.turn(t)
	b := l.buckets[bucketOf(rpm("a", 0))]
	require.InDelta(t, 200, b.left, 60, "about the next second is here")
	for range 50 {
		require.True(t, ask())
	}
	require.Equal(t, "acme", l.rates.wishes[0].Identity)

	// Demand falls: what is too much goes back, and all of it when nobody asks.
	for range 30 {
		l.turn(t)
		require.True(t, ask())
	}
	require.LessOrEqual(t, b.left, int64(10))
	for range int(leaseIdle/leaseTick) + 2 {
		l.turn(t)
	}
	require.Empty(t, l.buckets)
	require.Equal(t, 1_000_000-here, l.rates.left[domain.LimitRPM], "only what was used is gone")
}

func TestLeaseIsBounded(t *testing.T) {
	t.Parallel()
	l := newLend(1000, 1000)
	for range 40 {
		require.Nil(t, l.take(leasedOf(rpm("a", 600), tpm("a", 600, 25))))
	}
	require.Nil(t, l.take(leasedOf(tpm("b", 600, 601))))
	l.turn(t)
	require.Equal(t, int64(10), l.buckets[bucketOf(rpm("a", 0))].left, "a second's rate")
	require.Equal(t, int64(25), l.buckets[bucketOf(tpm("a", 0, 0))].left, "or one request")
	require.Nil(t, l.buckets[bucketOf(tpm("b", 0, 0))], "nothing for what never fits")

	for i := range maxLeased {
		l.buckets[rateBucket{id: strconv.Itoa(i)}] = &leased{}
	}
	d := leasedOf(rpm("late", 600))
	require.Nil(t, l.take(d))
	require.False(t, d.Holds[0].Leased)
	require.Nil(t, l.buckets[bucketOf(rpm("late", 0))])
}

// Of two rates one may be here and the other not: then the store charges that
// one only, and when it refuses, the first comes back.
func TestLeasePutsBackWhatDidNotGoOut(t *testing.T) {
	t.Parallel()
	l := newLend(1000, 1000)
	require.Nil(t, l.take(leasedOf(rpm("a", 600), tpm("a", 600, 5))))
	l.turn(t)
	requests := l.buckets[bucketOf(rpm("a", 0))]
	require.Equal(t, int64(1), requests.left)
	d := leasedOf(rpm("a", 600), tpm("a", 600, 100))
	require.Nil(t, l.take(d))
	require.True(t, d.Holds[0].Leased)
	require.False(t, d.Holds[1].Leased)
	require.Equal(t, int64(0), requests.left)
	l.putBack(d.Holds)
	require.Equal(t, int64(1), requests.left)

	l.remember(d.Holds, domain.Refusal{Kind: domain.LimitTPM, Scope: domain.ScopeKey, Limit: 600, RetryAfter: time.Second})
	l.at = l.at.Add(leaseTick / 2)
	r := l.take(leasedOf(rpm("a", 600), tpm("a", 600, 100)))
	require.NotNil(t, r, "the store is not asked again at once")
	assert.Equal(t, time.Second-leaseTick/2, r.RetryAfter)
	assert.Equal(t, int64(1), requests.left)
	require.Nil(t, l.take(leasedOf(tpm("a", 600, 50))), "less may fit")
	l.at = l.at.Add(leaseTick)
	require.Nil(t, l.take(leasedOf(tpm("a", 600, 100))))
}

// What may have been granted without an answer is lost, and asked for anew.
func TestLeaseOfAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	l := newLend(1000, 0)
	require.Nil(t, l.take(leasedOf(rpm("a", 600))))
	l.note(domain.Decision{RequestID: "r"})
	l.rates.err = errors.New("away")
	l.turn(t)
	b := l.buckets[bucketOf(rpm("a", 0))]
	require.Equal(t, int64(0), b.left)
	require.Len(t, l.notes, 1, "it waits")
	l.rates.err = nil
	l.turn(t)
	require.Equal(t, int64(1), b.left)
	require.Equal(t, []string{"r"}, l.rates.notes)
	l.tick(t.Context(), (*lending).rest)
	require.Equal(t, int64(1000), l.rates.left[domain.LimitRPM], "all of it is back")
	require.Empty(t, l.buckets)
}

func TestCheckOnALease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	rates := &fakeRates{left: map[domain.LimitKind]int64{domain.LimitRPM: 500, domain.LimitTPM: 100_000}}
	f.server.lending.rates = rates
	f.reconfigure(func(s *config.Snapshot) {
		s.Policies["p"] = domain.Policy{RPM: 600, TPM: 100_000, Leased: true}
		s.Identities = nil
		a := s.Channels["a"]
		a.Slots = 0
		s.Channels["a"] = a
	})
	_, err := f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	require.Len(t, f.reservations.admitted, 1, "nothing is here yet")
	f.server.lending.tick(t.Context(), (*lending).wish)

	f.reservations.err = domain.ErrStoreDown
	got, err := f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	require.Len(t, f.reservations.admitted, 1, "the store was not asked")
	require.True(t, got.Decision.Unreserved, "extproc must not take an unwritten reservation for one that has ended")
	for _, h := range got.Decision.Holds {
		assert.True(t, h.Leased)
	}
	shown := map[string]string{}
	for _, h := range got.Headers {
		shown[h.Name] = h.Value
	}
	assert.Equal(t, "600", shown["x-ratelimit-limit-requests"])
	assert.Equal(t, "499", shown["x-ratelimit-remaining-requests"])
	assert.Equal(t, "10.1s", shown["x-ratelimit-reset-requests"])
	f.server.lending.tick(t.Context(), (*lending).wish)
	assert.Equal(t, []string{"req-1"}, rates.notes)

	// A budget is for the store, and only that.
	f.reservations.err = nil
	f.reconfigure(func(s *config.Snapshot) { s.Identities = map[string]string{"acme": "shared"} })
	got, err = f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	require.Len(t, f.reservations.admitted, 2)
	var kinds []domain.LimitKind
	for _, h := range got.Decision.Holds {
		if !h.Leased {
			kinds = append(kinds, h.Kind)
		}
	}
	assert.Equal(t, []domain.LimitKind{domain.LimitBudgetDay}, kinds)
}
