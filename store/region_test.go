package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

// ceiling makes holds of a region of this test's own.
type ceiling string

func newCeiling() ceiling { return ceiling(unique("region")) }

func (c ceiling) hold(kind domain.LimitKind, limit, amount int64) domain.Hold {
	return domain.Hold{Kind: kind, Scope: domain.ScopeRegion, ID: string(c), Limit: limit, Amount: amount}
}

// counters reads the region's buckets by kind.
func (c ceiling) counters(t testing.TB, s *Store) map[string]int64 {
	t.Helper()
	all, err := s.Counters(context.Background(), "nobody")
	require.NoError(t, err)
	got := map[string]int64{}
	for _, kind := range []domain.LimitKind{domain.LimitRPM, domain.LimitTPM, domain.LimitInFlight} {
		if v := all[bucketKey("nobody", c.hold(kind, 1, 1))]; v > 0 {
			got[string(kind)] = v
		}
	}
	return got
}

func TestTheRegionsCeilingHoldsForEveryone(t *testing.T) {
	t.Parallel()
	s, region := shared(t), newCeiling()
	const callers, fit = 40, 7
	var (
		wg       sync.WaitGroup
		admitted atomic.Int64
	)
	for range callers {
		wg.Go(func() {
			o := newTenant()
			a, err := s.Admit(context.Background(), o.decide(o.hold(domain.LimitInFlight, 5, 1), region.hold(domain.LimitInFlight, fit, 1)))
			assert.NoError(t, err)
			if a.Refusal == nil {
				admitted.Add(1)
				return
			}
			assert.Equal(t, domain.ScopeRegion, a.Refusal.Scope)
			assert.Positive(t, a.Refusal.RetryAfter)
			assert.Empty(t, counters(t, s, o), "a refusal by the region leaves nothing with the identity")
		})
	}
	wg.Wait()
	assert.EqualValues(t, fit, admitted.Load())
	assert.Equal(t, map[string]int64{"in_flight": fit}, region.counters(t, s))
}

func TestWhatTheIdentityRefusesGoesBackToTheRegion(t *testing.T) {
	t.Parallel()
	s, region, o := shared(t), newCeiling(), newTenant()
	channel := unique("channel")
	d := o.decide(o.hold(domain.LimitBudgetDay, 10, 11), region.hold(domain.LimitRPM, slow, 1), region.hold(domain.LimitInFlight, 1, 1))
	d.Candidates = []domain.Candidate{{Channel: channel, Slots: 1}}
	for range 3 {
		assert.Equal(t, domain.LimitBudgetDay, refusal(t, s, d).Kind)
		assert.Empty(t, region.counters(t, s))
		assert.Empty(t, counters(t, s, o, channel))
	}
	d.Holds[0].Amount = 1
	a := admit(t, s, d)
	assert.Equal(t, []int64{9, 0, 0}, a.Remaining, "in the order of the holds")

	// Both refuse: waiting helps with the region, and not with the budget.
	both := o.decide(o.hold(domain.LimitBudgetDay, 10, 11), region.hold(domain.LimitRPM, slow, 1))
	assert.Equal(t, domain.LimitBudgetDay, refusal(t, s, both).Kind)
	// The region's rate frees in a minute, the identity's lease may at any moment.
	both = o.decide(o.hold(domain.LimitInFlight, 0, 1), region.hold(domain.LimitRPM, slow, 1))
	r := refusal(t, s, both)
	assert.Equal(t, domain.ScopeKey, r.Scope)
	assert.Equal(t, time.Second, r.RetryAfter)
}

func TestARefusedSlotLeavesNothingInTheRegion(t *testing.T) {
	t.Parallel()
	s, region, o := shared(t), newCeiling(), newTenant()
	d := o.decide(region.hold(domain.LimitTPM, 100, 60))
	d.Candidates = []domain.Candidate{{Channel: unique("full"), Slots: 1}}
	other := newTenant().decide()
	other.Candidates = d.Candidates
	admit(t, s, other)
	a, err := s.Admit(context.Background(), d)
	require.NoError(t, err)
	assert.True(t, a.SlotRefused)
	assert.Empty(t, region.counters(t, s))
}

func TestEveryEndGivesBackWhatTheRegionLent(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	for _, row := range []struct {
		name string
		end  func(t *testing.T, d domain.Decision)
		want map[string]int64
	}{
		{"settled", func(t *testing.T, d domain.Decision) {
			for _, want := range []domain.SettleResult{domain.SettleDone, domain.SettleAlready} {
				got, err := s.Settle(ctx, ends(d, 7, 3))
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}, map[string]int64{"rpm": 1, "tpm": 7}},
		{"refunded", func(t *testing.T, d domain.Decision) {
			require.NoError(t, s.Refund(ctx, d))
			require.NoError(t, s.Refund(ctx, d))
			_, err := s.Admit(ctx, d)
			require.ErrorIs(t, err, ErrClosed, "a reservation that comes late")
		}, map[string]int64{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			region, o := newCeiling(), newTenant()
			d := o.decide(o.hold(domain.LimitInFlight, 1, 1),
				region.hold(domain.LimitRPM, slow, 1), region.hold(domain.LimitTPM, 100, 60), region.hold(domain.LimitInFlight, 1, 1))
			d.Holds[2].Limit, d.Holds[2].Burst = slow, 100
			began := time.Now()
			for range 2 {
				admit(t, s, d)
				open, err := s.Renew(ctx, []domain.Lease{{RequestID: d.RequestID, Identity: d.Identity, Holds: d.Holds, TTL: d.Lease}})
				require.NoError(t, err)
				require.Equal(t, []bool{true}, open)
			}
			held := region.counters(t, s)
			assert.EqualValues(t, 1, held["in_flight"])
			assert.InDelta(t, 60, held["tpm"], time.Since(began).Minutes()+1)
			row.end(t, d)
			got := region.counters(t, s)
			if time.Since(began) < 30*time.Second { // one a minute drains
				assert.Equal(t, row.want, got)
			}
			assert.Empty(t, counters(t, s, o))
		})
	}
}

// TestHalfAnAdmissionIsSwept: a process dies when the region was charged and
// the identity was not, or when the identity was settled and the region was not.
func TestHalfAnAdmissionIsSwept(t *testing.T) {
	t.Parallel()
	s, ctx := begun(t, storetest.Start(t).URL), context.Background()
	region := newCeiling()
	half := func(o tenant, lease time.Duration) domain.Decision {
		d := o.decide(o.hold(domain.LimitInFlight, 1, 1), region.hold(domain.LimitTPM, 1, 60), region.hold(domain.LimitInFlight, 9, 1))
		d.Holds[1].Burst = 1000
		d.Lease = lease
		return d
	}
	never := half(newTenant(), time.Millisecond)
	calls, err := admitCalls(never, 0)
	require.NoError(t, err)
	require.NoError(t, firstError(s.run(ctx, calls[1:])))
	settled := half(newTenant(), time.Millisecond)
	admit(t, s, settled)
	require.NoError(t, firstError(s.run(ctx, closeCalls(settled, closing{record: []byte("x"), used: nothingUsed})[:1])))
	// This one runs: its own reservation lives, whatever became of the other half.
	running := half(newTenant(), time.Minute)
	calls, err = admitCalls(running, 0)
	require.NoError(t, err)
	require.NoError(t, firstError(s.run(ctx, calls[:1])))
	running.Lease = time.Millisecond
	calls, err = admitCalls(running, 0)
	require.NoError(t, err)
	require.NoError(t, firstError(s.run(ctx, calls[1:])))
	gone := part{tag: regionTag}
	require.NoError(t, s.client.ZAdd(ctx, gone.open(), redis.Z{Member: "gone"}).Err())

	eventually(t, "only the running request holds anything", func() bool {
		expired, err := s.Expired(ctx, 100)
		require.NoError(t, err)
		require.Empty(t, expired, "nobody else is to settle them")
		left, err := s.client.ZRange(ctx, gone.open(), 0, -1).Result()
		require.NoError(t, err)
		return len(left) == 1 && left[0] == running.RequestID
	})
	assert.EqualValues(t, 60, region.counters(t, s)["tpm"])
	// Its renewal brings back the lease of the region, and its end ends both.
	open, err := s.Renew(ctx, []domain.Lease{{RequestID: running.RequestID, Identity: running.Identity, Holds: running.Holds, TTL: time.Minute}})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, open)
	assert.EqualValues(t, 1, region.counters(t, s)["in_flight"])
	require.NoError(t, s.Refund(ctx, running))
	assert.Empty(t, region.counters(t, s))
}

func TestABurstIsWhatABucketGivesAtOnce(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, row := range []struct {
		name         string
		limit, burst int64
		fit          int64
	}{
		{"as large as the limit by default", 3, 0, 3},
		{"smaller than the limit", 3, 2, 2},
		{"larger than the limit", 1, 5, 5},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			o := newTenant()
			h := o.hold(domain.LimitRPM, row.limit, 1)
			h.Burst = row.burst
			began := time.Now()
			for i := range row.fit {
				a := admit(t, s, o.decide(h))
				if time.Since(began) < 5*time.Second {
					assert.Equal(t, row.fit-i-1, a.Remaining[0])
				}
			}
			if r := refusal(t, s, o.decide(h)); time.Since(began) < 5*time.Second {
				assert.Equal(t, row.limit, r.Limit)
				assert.Equal(t, row.fit, r.Size)
				// The next one fits when a minute's limit-th has passed.
				assert.InDelta(t, float64(time.Minute)/float64(row.limit), float64(r.RetryAfter), float64(5*time.Second))
			}
		})
	}
	o := newTenant()
	tokens := o.hold(domain.LimitTPM, 1000, 101)
	tokens.Burst = 100
	assert.Zero(t, refusal(t, s, o.decide(tokens)).RetryAfter, "what is larger than the bucket never fits")
}

func TestImagesAreCountedByWindow(t *testing.T) {
	t.Parallel()
	s, ctx, o := shared(t), context.Background(), newTenant()
	images := o.hold(domain.LimitImagesDay, 3, 1)
	images.Window = "2026-11-29"
	first := o.decide(images)
	admit(t, s, first)
	settlement := ends(first, 5, 0)
	settlement.Record.Usage.Tools[domain.ToolImageGeneration] = 2
	got, err := s.Settle(ctx, settlement)
	require.NoError(t, err)
	require.Equal(t, domain.SettleDone, got)
	assert.EqualValues(t, []int64{0}, admit(t, s, o.decide(images)).Remaining, "two were made, one is held")
	r := refusal(t, s, o.decide(images))
	assert.Equal(t, domain.LimitImagesDay, r.Kind)
	assert.Zero(t, r.RetryAfter)
	images.Window = "2026-11-30"
	admit(t, s, o.decide(images))
}

func TestLimitsOfAModelAreItsOwn(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	p := domain.Policy{InFlight: 3, Models: map[string]domain.Policy{"a": {InFlight: 1}}}
	decide := func(model string) domain.Decision {
		return o.decide(p.Holds(domain.ScopeKey, o.key, domain.Demand{Models: []string{model}}, time.Now())...)
	}
	admit(t, s, decide("a"))
	r := refusal(t, s, decide("a"))
	assert.Equal(t, domain.ScopeKeyModel, r.Scope)
	admit(t, s, decide("b"))
	admit(t, s, decide("b"))
	assert.Equal(t, domain.ScopeKey, refusal(t, s, decide("b")).Scope)
	assert.Equal(t, domain.ScopeKey, refusal(t, s, decide("b")).Scope, "a refusal takes nothing")
}

func TestTheRegionsHoldsComeLast(t *testing.T) {
	t.Parallel()
	s, o, region := shared(t), newTenant(), newCeiling()
	_, err := s.Admit(context.Background(), o.decide(region.hold(domain.LimitRPM, 1, 1), o.hold(domain.LimitRPM, 1, 1)))
	require.ErrorContains(t, err, "hold")
}
