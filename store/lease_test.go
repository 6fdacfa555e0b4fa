package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

const short = 30 * time.Millisecond

func TestALeaseThatEndsFreesItsPlace(t *testing.T) {
	t.Parallel()
	s := shared(t)
	o := newTenant()
	channel := unique("channel")
	with := func(lease time.Duration) domain.Decision {
		d := o.decide(o.hold(domain.LimitInFlight, 1, 1))
		d.Candidates, d.Lease = []domain.Candidate{{Channel: channel, Slots: 1}}, lease
		return d
	}
	admit(t, s, with(short))
	second := with(time.Hour)
	eventually(t, "the second request gets the place", func() bool {
		a, err := s.Admit(context.Background(), second)
		require.NoError(t, err)
		return a.Refusal == nil && !a.SlotRefused
	})
	assert.Equal(t, map[string]int64{"in_flight:key": 1, "slot:" + channel: 1}, counters(t, s, o, channel))
}

func TestALateSettlementFreesOnlyItsOwnPlace(t *testing.T) {
	t.Parallel()
	s := shared(t)
	o := newTenant()
	channel := unique("channel")
	first := o.decide(o.hold(domain.LimitInFlight, 1, 1))
	first.Candidates, first.Lease = []domain.Candidate{{Channel: channel, Slots: 1}}, short
	admit(t, s, first)
	second := first
	second.RequestID, second.Lease = unique("request"), time.Hour
	eventually(t, "the place changes hands", func() bool {
		a, err := s.Admit(context.Background(), second)
		require.NoError(t, err)
		return a.Refusal == nil && !a.SlotRefused
	})
	settlement := ends(first, 0, 0)
	settlement.Channel = channel
	_, err := s.Settle(context.Background(), settlement)
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{"in_flight:key": 1, "slot:" + channel: 1}, counters(t, s, o, channel))
}

func TestARenewalGoesOverTheLimit(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	o := newTenant()
	channel := unique("channel")
	first := o.decide(o.hold(domain.LimitInFlight, 1, 1))
	first.Candidates = []domain.Candidate{{Channel: channel, Slots: 1}}
	admit(t, s, first)
	// The store loses the leases, as in a failover, and another request comes in.
	require.NoError(t, s.client.Del(ctx, bucketKey(o.identity, first.Holds[0])).Err())
	require.NoError(t, s.client.Del(ctx, slotKey(channel)).Err())
	second := first
	second.RequestID = unique("request")
	admit(t, s, second)

	open, err := s.Renew(ctx, []domain.Lease{
		{RequestID: unique("nobody"), Identity: o.identity, Holds: first.Holds, Channel: channel, TTL: time.Hour},
		{RequestID: first.RequestID, Identity: o.identity, Holds: first.Holds, Channel: channel, TTL: time.Hour},
		{RequestID: second.RequestID, Identity: o.identity, Holds: first.Holds, Channel: channel, TTL: time.Hour},
	})
	require.NoError(t, err)
	assert.Equal(t, []bool{false, true, true}, open)
	assert.Equal(t, map[string]int64{"in_flight:key": 2, "slot:" + channel: 2}, counters(t, s, o, channel), "truth beats limit")
	third := first
	third.RequestID = unique("request")
	assert.Equal(t, domain.LimitInFlight, refusal(t, s, third).Kind)
}

// Before its reservation is written, a request that went out may be renewed; after
// its end it may not, so that nobody keeps it.
func TestRenewalOfWhatIsNotReservedYet(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	channel := unique("channel")
	d := o.decide(o.hold(domain.LimitInFlight, 1, 1))
	renew := func(unreserved bool) []bool {
		open, err := s.Renew(t.Context(), []domain.Lease{{
			RequestID: d.RequestID, Identity: o.identity, Holds: d.Holds, Channel: channel, TTL: time.Hour, Unreserved: unreserved,
		}})
		require.NoError(t, err)
		return open
	}
	assert.Equal(t, []bool{true}, renew(true))
	assert.Equal(t, []bool{false}, renew(false))
	assert.Empty(t, counters(t, s, o, channel), "nothing is taken for it")
	require.NoError(t, s.AdmitLate(t.Context(), d))
	assert.Equal(t, []bool{true}, renew(true))
	_, err := s.Settle(t.Context(), ends(d, 1, 1))
	require.NoError(t, err)
	assert.Equal(t, []bool{false}, renew(true))
}

func TestRenewalsGoInBatches(t *testing.T) {
	t.Parallel()
	s := shared(t)
	o := newTenant()
	leases := make([]domain.Lease, 2*renewBatch+3)
	for i := range leases {
		leases[i] = domain.Lease{RequestID: unique("request"), Identity: o.identity, TTL: time.Hour}
		if i%2 == 1 {
			leases[i].Channel = unique("channel")
		}
	}
	last := o.decide(o.hold(domain.LimitInFlight, 1, 1))
	admit(t, s, last)
	leases[len(leases)-1].RequestID = last.RequestID
	open, err := s.Renew(context.Background(), leases)
	require.NoError(t, err)
	require.Len(t, open, len(leases))
	for i, got := range open {
		assert.Equal(t, i == len(leases)-1, got)
	}
}

func TestSlotsAreNeverOversold(t *testing.T) {
	t.Parallel()
	s := shared(t)
	narrow, wide := unique("narrow"), unique("wide")
	var (
		wg                sync.WaitGroup
		direct, next, out atomic.Int64
		tenants           [40]tenant
	)
	for i := range tenants {
		tenants[i] = newTenant()
		wg.Go(func() {
			d := tenants[i].decide(tenants[i].hold(domain.LimitBudgetDay, 10, 10))
			d.Candidates = []domain.Candidate{{Channel: narrow, Slots: 3}, {Channel: wide, Slots: 5}}
			a, err := s.Admit(context.Background(), d)
			assert.NoError(t, err)
			assert.Nil(t, a.Refusal)
			switch held := counters(t, s, tenants[i])["budget_day:key"]; {
			case a.SlotRefused:
				out.Add(1)
				assert.Zero(t, held, "nothing stays charged")
				a, err = s.Admit(context.Background(), d)
				assert.NoError(t, err, "the same request may try again")
				assert.True(t, a.SlotRefused)
			case a.Skipped == 1:
				next.Add(1)
				assert.EqualValues(t, 10, held)
			default:
				direct.Add(1)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, []int64{3, 5, 32}, []int64{direct.Load(), next.Load(), out.Load()})
	assert.Equal(t, map[string]int64{"slot:" + narrow: 3, "slot:" + wide: 5}, counters(t, s, newTenant(), narrow, wide))
}

func TestAChannelWithoutSlotsIsNeverFull(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	full := unique("full")
	one := o.decide()
	one.Candidates = []domain.Candidate{{Channel: full, Slots: 1}}
	admit(t, s, one)
	two := o.decide()
	two.Candidates = []domain.Candidate{{Channel: full, Slots: 1}, {Channel: unique("endless")}}
	assert.Equal(t, 1, admit(t, s, two).Skipped)
}

// A channel on trial needs a claim to be the first: a full one before it is no reason.
func TestAFullChannelLeadsToNoTrial(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	full, trial := unique("full"), unique("trial")
	one := o.decide()
	one.Candidates = []domain.Candidate{{Channel: full, Slots: 1}}
	admit(t, s, one)
	two := o.decide()
	two.Candidates = []domain.Candidate{{Channel: full, Slots: 1}, {Channel: trial, Slots: 1, Trial: true}}
	a, err := s.Admit(t.Context(), two)
	require.NoError(t, err)
	require.True(t, a.SlotRefused)
	two.Candidates = two.Candidates[1:]
	require.Zero(t, admit(t, s, two).Skipped, "it may come again, for the trial")
	three := o.decide()
	three.Candidates = []domain.Candidate{one.Candidates[0], {Channel: unique("other"), Trial: true}, {Channel: unique("endless")}}
	assert.Equal(t, 2, admit(t, s, three).Skipped)
}

func TestARefusedLimitGivesTheSlotBack(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	channel := unique("channel")
	d := o.decide(o.hold(domain.LimitTPM, 10, 11))
	d.Candidates = []domain.Candidate{{Channel: channel, Slots: 1}}
	refusal(t, s, d)
	assert.Empty(t, counters(t, s, o, channel))
}

// A native attempt moves no slot, so that of the attempt before is there at the end.
func TestSettleGivesBackTheSlotsOfEarlierAttempts(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	limited, native := domain.Candidate{Channel: unique("limited"), Slots: 1}, domain.Candidate{Channel: unique("native")}
	d := o.decide()
	d.Candidates = []domain.Candidate{limited, native}
	admit(t, s, d)
	require.Equal(t, map[string]int64{"slot:" + limited.Channel: 1}, counters(t, s, o, limited.Channel))
	end := ends(d, 1, 1)
	end.Record.Attempt, end.Channel = 2, native.Channel
	_, err := s.Settle(t.Context(), end)
	require.NoError(t, err)
	require.Empty(t, counters(t, s, o, limited.Channel))
}

func TestMoveSlot(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	limited := func() domain.Candidate { return domain.Candidate{Channel: unique("channel"), Slots: 1} }
	from, to, endless := limited(), limited(), domain.Candidate{Channel: unique("endless")}
	request := unique("request")
	move := func(request string, from, to domain.Candidate) bool {
		held, err := s.MoveSlot(ctx, domain.SlotMove{RequestID: request, From: from, To: to, Lease: time.Hour})
		require.NoError(t, err)
		return held
	}
	held := func() map[string]int64 { return counters(t, s, newTenant(), from.Channel, to.Channel, endless.Channel) }

	assert.True(t, move(request, domain.Candidate{}, from))
	assert.True(t, move(request, from, from), "to itself")
	assert.Equal(t, map[string]int64{"slot:" + from.Channel: 1}, held())
	assert.True(t, move(request, from, to))
	assert.True(t, move(request, from, to), "again")
	assert.Equal(t, map[string]int64{"slot:" + to.Channel: 1}, held())

	other := unique("request")
	assert.True(t, move(other, domain.Candidate{}, from))
	assert.False(t, move(other, from, to), "it is taken")
	assert.Equal(t, map[string]int64{"slot:" + to.Channel: 1}, held(), "the one that was left is free")
	assert.True(t, move(request, to, endless))
	assert.Empty(t, held())
}
