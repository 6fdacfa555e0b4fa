package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// lateRequest is one of two that do not fit into any limit together.
func lateRequest(o tenant, region ceiling) domain.Decision {
	d := o.decide(
		o.hold(domain.LimitRPM, 60, 1), o.hold(domain.LimitInFlight, 1, 1), o.hold(domain.LimitBudgetDay, 100, 80),
		o.own(o.hold(domain.LimitBudgetMonth, 100, 80)), region.hold(domain.LimitInFlight, 1, 1),
	)
	d.Candidates[0].Slots = 1
	return d
}

func TestAdmitLateChargesOverEveryLimit(t *testing.T) {
	t.Parallel()
	s, o, region := shared(t), newTenant(), newCeiling()
	first, late := lateRequest(o, region), lateRequest(o, region)
	admit(t, s, first)
	require.NotEmpty(t, refusal(t, s, late).Kind)
	for range 2 {
		require.NoError(t, s.AdmitLate(t.Context(), late))
		got := counters(t, s, o, late.Candidates[0].Channel)
		require.Positive(t, got["rpm:key"])
		delete(got, "rpm:key") // it drains
		require.Equal(t, map[string]int64{"in_flight:key": 2, "budget_day:key": 160, "budget_month:identity": 160}, got, "without a slot")
	}
	for _, d := range []domain.Decision{first, late} {
		result, err := s.Settle(t.Context(), ends(d, 1, 10))
		require.NoError(t, err)
		require.Equal(t, domain.SettleDone, result)
	}
	got := counters(t, s, o)
	delete(got, "rpm:key")
	require.Equal(t, map[string]int64{"budget_day:key": 20, "budget_month:identity": 20}, got)
	require.Empty(t, region.counters(t, s))
}

// A settlement that comes first charges what was used, and the admission nothing more.
func TestAdmitLateAfterTheEnd(t *testing.T) {
	t.Parallel()
	s, o, region := shared(t), newTenant(), newCeiling()
	late := lateRequest(o, region)
	result, err := s.Settle(t.Context(), ends(late, 1, 10))
	require.NoError(t, err)
	require.Equal(t, domain.SettleUnknown, result)
	require.NoError(t, s.AdmitLate(t.Context(), late))
	require.Equal(t, map[string]int64{"budget_day:key": 10, "budget_month:identity": 10}, counters(t, s, o))
	require.Len(t, outboxOf(t, s, o), 1)
	require.Empty(t, region.counters(t, s))
}

func TestAdmitLateWaitsForARebuild(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.remove(t, identityTag(b.identity)+":generation")
	late := b.holding(100, 1)
	require.ErrorIs(t, b.AdmitLate(t.Context(), late), domain.ErrStoreDown)
	require.NoError(t, b.Rebuild(t.Context(), b.lostShard(t), b.ledger))
	require.NoError(t, b.AdmitLate(t.Context(), late))
	require.Equal(t, windows(100, 1), b.windows(t))
}

// What never works is told from what may work later: a journal that waits for it
// would wait for ever.
func TestRefusedForGood(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	damaged := o.decide(o.hold(domain.LimitRPM, 60, 1))
	key := reservationKey(domain.ShardOf(damaged.Identity), damaged.RequestID)
	require.NoError(t, s.client.Set(t.Context(), key, "not a hash", time.Minute).Err())
	unknown := o.decide(o.hold("moons", 60, 1))
	for name, d := range map[string]domain.Decision{"another type": damaged, "unknown kind": unknown} {
		require.ErrorIs(t, s.AdmitLate(t.Context(), d), domain.ErrRefused, name)
		_, err := s.Settle(t.Context(), ends(d, 1, 10))
		require.ErrorIs(t, err, domain.ErrRefused, name)
		require.NotErrorIs(t, err, domain.ErrStoreDown, name)
	}
	strange := ends(o.decide(o.hold(domain.LimitRPM, 60, 1)), 1, 10)
	strange.Record.RequestID = "another"
	_, err := s.Settle(t.Context(), strange)
	require.ErrorIs(t, err, domain.ErrRefused)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Settle(ctx, ends(o.decide(o.hold(domain.LimitRPM, 60, 1)), 1, 10))
	require.Error(t, err)
	require.NotErrorIs(t, err, domain.ErrRefused, "the caller has left")
}
