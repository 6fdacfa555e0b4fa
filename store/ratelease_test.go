package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// lease takes want out of the bucket of h.
func lease(t *testing.T, s *Store, o tenant, h domain.Hold, want int64) domain.RateLease {
	t.Helper()
	leases, err := s.LeaseRates(t.Context(), []domain.RateWish{{Identity: o.identity, Hold: h, Want: want}})
	require.NoError(t, err)
	return leases[0]
}

func TestLeaseComesOutOfTheBucket(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	h := o.hold(domain.LimitRPM, 6, 1)
	h.Burst = 10
	got := lease(t, s, o, h, 4)
	assert.Equal(t, domain.RateLease{Granted: 4, Left: 6}, got)
	a := admit(t, s, o.decide(h))
	assert.Equal(t, []int64{5}, a.Remaining, "a reservation sees the same bucket")
	got = lease(t, s, o, h, 100)
	assert.Equal(t, int64(5), got.Granted, "no more than there is")
	assert.Equal(t, int64(0), got.Left)
	assert.InDelta(t, 10, got.Wait.Seconds(), 1, "six a minute")
	assert.Equal(t, domain.LimitRPM, refusal(t, s, o.decide(h)).Kind)
	assert.Equal(t, int64(0), lease(t, s, o, h, 1).Granted)

	assert.Equal(t, domain.RateLease{Granted: -5, Left: 5}, lease(t, s, o, h, -5), "what was not needed")
	admit(t, s, o.decide(h))
	lease(t, s, o, h, -100)
	assert.Empty(t, counters(t, s, o), "never more than the bucket holds")
}

// A request on leases alone charges nothing at its admission and has no
// reservation before it is noted; its settlement corrects what it used, once.
func TestSettlementOfALeasedRequest(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		noted      bool
		used, want int64
	}{
		"less than was leased":  {true, 10, 10},
		"more than was leased":  {true, 70, 70},
		"settled before noted":  {false, 10, 10},
		"noted late, used more": {false, 70, 70},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, o := shared(t), newTenant()
			requests, tokens := o.hold(domain.LimitRPM, 6, 1), o.hold(domain.LimitTPM, 100, 50)
			lease(t, s, o, requests, 1)
			lease(t, s, o, tokens, 50)
			requests.Leased, tokens.Leased = true, true
			d := o.decide(requests, tokens)
			if tt.noted {
				require.NoError(t, s.Note(t.Context(), []domain.Decision{d}))
				require.NoError(t, s.Note(t.Context(), []domain.Decision{d}), "again")
			}
			for _, want := range []domain.SettleResult{domain.SettleDone, domain.SettleAlready} {
				got, err := s.Settle(t.Context(), ends(d, tt.used, 1))
				require.NoError(t, err)
				assert.Equal(t, want, got)
			}
			require.NoError(t, s.Note(t.Context(), []domain.Decision{d}), "too late")
			assert.Equal(t, map[string]int64{"rpm:key": 1, "tpm:key": tt.want}, counters(t, s, o))
			assert.Len(t, outboxOf(t, s, o), 1)
			open, err := s.client.ZScore(t.Context(), openKey(domain.ShardOf(o.identity)), d.RequestID).Result()
			assert.Error(t, err, "nothing is open: %v", open)
		})
	}
}

// A leased rate beside a budget: the reservation has the budget, its end both.
func TestReservationBesideALease(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	tokens := o.hold(domain.LimitTPM, 100, 50)
	lease(t, s, o, tokens, 50)
	tokens.Leased = true
	d := o.decide(tokens, o.hold(domain.LimitBudgetDay, 1000, 400))
	a := admit(t, s, d)
	assert.Equal(t, []int64{0, 600}, a.Remaining, "in the order of the holds")
	assert.Equal(t, map[string]int64{"tpm:key": 50, "budget_day:key": 400}, counters(t, s, o))
	got, err := s.Settle(t.Context(), ends(d, 20, 7))
	require.NoError(t, err)
	assert.Equal(t, domain.SettleDone, got)
	assert.Equal(t, map[string]int64{"tpm:key": 20, "budget_day:key": 7}, counters(t, s, o))

	// What is refunded goes back to the replica that took it, not to the bucket.
	d = o.decide(tokens, o.hold(domain.LimitBudgetDay, 1000, 400))
	admit(t, s, d)
	require.NoError(t, s.Refund(t.Context(), d))
	assert.Equal(t, map[string]int64{"tpm:key": 20, "budget_day:key": 7}, counters(t, s, o))
}

// The sweeper finds a noted request, with its leased holds.
func TestNotedRequestIsSwept(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	tokens := o.hold(domain.LimitTPM, 100, 50)
	tokens.Leased = true
	d := o.decide(tokens)
	d.Lease = time.Millisecond
	require.NoError(t, s.Note(t.Context(), []domain.Decision{d}))
	eventually(t, "the lease ends", func() bool {
		expired, err := s.Expired(context.Background(), 10_000)
		require.NoError(t, err)
		for _, e := range expired {
			if e.Decision.RequestID == d.RequestID {
				return e.Decision.Holds[0].Leased && e.Decision.Holds[0].Limit == 100
			}
		}
		return false
	})
	require.NoError(t, s.Refund(t.Context(), d))
}
