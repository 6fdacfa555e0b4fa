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

// slow is a rate of which nothing drains while a test runs.
const slow = 1

func TestLimitsHoldUnderParallelCalls(t *testing.T) {
	t.Parallel()
	s := shared(t)
	const callers, cost, limit, fit = 50, 100, 1000, 10
	for _, row := range []struct {
		name  string
		holds func(tenant) []domain.Hold
	}{
		{"budget of the key", func(o tenant) []domain.Hold {
			return []domain.Hold{o.hold(domain.LimitBudgetDay, limit, cost)}
		}},
		{"budget of the identity", func(o tenant) []domain.Hold {
			return []domain.Hold{o.own(o.hold(domain.LimitBudgetMonth, limit, cost))}
		}},
		{"key and identity, the key being narrower", func(o tenant) []domain.Hold {
			return []domain.Hold{o.hold(domain.LimitBudgetDay, limit, cost), o.own(o.hold(domain.LimitBudgetDay, 5*limit, cost))}
		}},
		{"key and identity, the identity being narrower", func(o tenant) []domain.Hold {
			return []domain.Hold{o.hold(domain.LimitBudgetDay, 5*limit, cost), o.own(o.hold(domain.LimitBudgetDay, limit, cost))}
		}},
		{"in flight", func(o tenant) []domain.Hold { return []domain.Hold{o.hold(domain.LimitInFlight, fit, 1)} }},
		{"requests per minute", func(o tenant) []domain.Hold { return []domain.Hold{o.hold(domain.LimitRPM, fit, 1)} }},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			o := newTenant()
			var (
				wg       sync.WaitGroup
				admitted atomic.Int64
			)
			for range callers {
				wg.Go(func() {
					a, err := s.Admit(context.Background(), o.decide(row.holds(o)...))
					assert.NoError(t, err)
					if a.Refusal == nil {
						admitted.Add(1)
					}
				})
			}
			began := time.Now()
			wg.Wait()
			if time.Since(began) < 5*time.Second { // ten a minute drain one in six seconds
				assert.EqualValues(t, fit, admitted.Load())
			}
			for name, value := range counters(t, s, o) {
				assert.Contains(t, []int64{limit, fit}, value, name)
			}
		})
	}
}

func TestARefusalChargesNothing(t *testing.T) {
	t.Parallel()
	s := shared(t)
	o := newTenant()
	holds := []domain.Hold{
		o.hold(domain.LimitRPM, 2, 1), o.hold(domain.LimitTPM, 500_000, 100_000), o.hold(domain.LimitInFlight, 1, 1),
		o.hold(domain.LimitBudgetDay, 100, 10), o.own(o.hold(domain.LimitBudgetMonth, 100, 10)),
	}
	admit(t, s, o.decide(holds...))
	before := counters(t, s, o)
	require.Len(t, before, 5)
	for range 20 {
		r := refusal(t, s, o.decide(holds...))
		assert.Equal(t, domain.LimitInFlight, r.Kind)
		assert.EqualValues(t, 1, r.Limit)
		assert.Zero(t, r.Remaining)
		assert.Positive(t, r.RetryAfter)
	}
	after := counters(t, s, o)
	assert.LessOrEqual(t, after["tpm:key"], before["tpm:key"], "it only drains")
	delete(before, "tpm:key")
	delete(after, "tpm:key")
	assert.Equal(t, before, after)
	stats, err := s.Expired(context.Background(), 10_000)
	require.NoError(t, err)
	for _, e := range stats {
		assert.NotEqual(t, o.identity, e.Decision.Identity)
	}
}

func TestRefusalsSayWhyAndWhen(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, row := range []struct {
		name     string
		used     []domain.LimitKind
		ask      func(tenant) []domain.Hold
		kind     domain.LimitKind
		waits    bool
		leftover int64
	}{
		{"rate", []domain.LimitKind{domain.LimitRPM}, func(o tenant) []domain.Hold {
			return []domain.Hold{o.hold(domain.LimitRPM, slow, 1)}
		}, domain.LimitRPM, true, 0},
		{"larger than the bucket", nil, func(o tenant) []domain.Hold {
			return []domain.Hold{o.hold(domain.LimitTPM, 100, 101)}
		}, domain.LimitTPM, false, 100},
		{"budget", []domain.LimitKind{domain.LimitBudgetDay}, func(o tenant) []domain.Hold {
			return []domain.Hold{o.hold(domain.LimitBudgetDay, 10, 10)}
		}, domain.LimitBudgetDay, false, 9},
		{"what waiting does not help comes first", []domain.LimitKind{domain.LimitRPM, domain.LimitBudgetDay}, func(o tenant) []domain.Hold {
			return []domain.Hold{o.hold(domain.LimitRPM, slow, 1), o.hold(domain.LimitBudgetDay, 10, 10), o.hold(domain.LimitInFlight, 0, 1)}
		}, domain.LimitBudgetDay, false, 9},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			o := newTenant()
			var first []domain.Hold
			for _, kind := range row.used {
				first = append(first, o.hold(kind, 10, 1))
				if kind == domain.LimitRPM {
					first[len(first)-1].Limit = slow
				}
			}
			admit(t, s, o.decide(first...))
			r := refusal(t, s, o.decide(row.ask(o)...))
			assert.Equal(t, row.kind, r.Kind)
			assert.Equal(t, domain.ScopeKey, r.Scope)
			assert.Equal(t, row.waits, r.RetryAfter > 0, r.RetryAfter)
			assert.LessOrEqual(t, r.RetryAfter, time.Minute)
			assert.Equal(t, row.leftover, r.Remaining)
		})
	}
}

// Of several limits that refuse, the answer is the one that frees soonest,
// wherever it stands and whichever part of the admission it belongs to.
func TestTheSoonestOfSeveralRefusalsIsTold(t *testing.T) {
	t.Parallel()
	s := shared(t)
	const soon, late = 6, 2 // a minute: one of them in ten seconds, in half a minute
	for _, row := range []struct {
		name     string
		rpm, tpm int64
		region   bool
		kind     domain.LimitKind
	}{
		{"the first", soon, late, false, domain.LimitRPM},
		{"the second", late, soon, false, domain.LimitTPM},
		{"the region's", late, soon, true, domain.LimitTPM},
		{"the identity's beside the region's", soon, late, true, domain.LimitRPM},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			o, region := newTenant(), newCeiling()
			rpm, tpm := o.hold(domain.LimitRPM, row.rpm, 1), o.hold(domain.LimitTPM, row.tpm, 1)
			if row.region {
				tpm = region.hold(domain.LimitTPM, row.tpm, 1)
			}
			rpm.Burst, tpm.Burst = 1, 1
			admit(t, s, o.decide(rpm, tpm))
			r := refusal(t, s, o.decide(rpm, tpm))
			assert.Equal(t, row.kind, r.Kind)
			assert.Positive(t, r.RetryAfter)
			assert.LessOrEqual(t, r.RetryAfter, time.Minute/soon)
		})
	}
}

func TestAdmissionTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	s := shared(t)
	o := newTenant()
	d := o.decide(o.hold(domain.LimitRPM, 2, 1), o.hold(domain.LimitInFlight, 5, 1), o.hold(domain.LimitBudgetDay, 100, 30))
	for range 2 { // the same answer again
		a := admit(t, s, d)
		assert.Equal(t, []int64{1, 4, 70}, a.Remaining)
		assert.InDelta(t, 30*time.Second, a.Reset[0], float64(20*time.Second))
		assert.Equal(t, []time.Duration{0, 0}, a.Reset[1:])
	}
}

func TestEveryActIsIdempotent(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	o := newTenant()
	channel := unique("channel")
	d := o.decide(o.hold(domain.LimitRPM, slow+1, 1), o.hold(domain.LimitInFlight, 5, 1), o.hold(domain.LimitBudgetDay, 100, 30))
	d.Candidates = []domain.Candidate{{Channel: channel, Slots: 2}}

	want := map[string]int64{"rpm:key": 1, "in_flight:key": 1, "budget_day:key": 30, "slot:" + channel: 1}
	for range 3 {
		admit(t, s, d)
		assert.Equal(t, want, counters(t, s, o, channel))
	}
	lease := domain.Lease{RequestID: d.RequestID, Identity: d.Identity, Holds: d.Holds, Channel: channel, TTL: d.Lease}
	for range 3 {
		open, err := s.Renew(ctx, []domain.Lease{lease})
		require.NoError(t, err)
		assert.Equal(t, []bool{true}, open)
		assert.Equal(t, want, counters(t, s, o, channel))
	}
	settlement := ends(d, 0, 12)
	settlement.Channel = channel
	for _, result := range []domain.SettleResult{domain.SettleDone, domain.SettleAlready, domain.SettleAlready} {
		got, err := s.Settle(ctx, settlement)
		require.NoError(t, err)
		assert.Equal(t, result, got)
		assert.Equal(t, map[string]int64{"rpm:key": 1, "budget_day:key": 12}, counters(t, s, o, channel))
	}
	require.NoError(t, s.Refund(ctx, d), "a refund after the settlement changes nothing")
	assert.Equal(t, map[string]int64{"rpm:key": 1, "budget_day:key": 12}, counters(t, s, o, channel))
	assert.Len(t, outboxOf(t, s, o), 1)

	open, err := s.Renew(ctx, []domain.Lease{lease})
	require.NoError(t, err)
	assert.Equal(t, []bool{false}, open)
	assert.Equal(t, map[string]int64{"rpm:key": 1, "budget_day:key": 12}, counters(t, s, o, channel), "a late renewal takes nothing")
	_, err = s.Admit(ctx, d)
	require.ErrorIs(t, err, ErrClosed)
}

func TestSettlementCorrectsWhatWasHeld(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, row := range []struct {
		name             string
		tokens, cost     int64
		wantTPM, wantDay int64
	}{
		{"less than held", 40, 10, 40, 10},
		{"as held", 100, 30, 100, 30},
		{"more than held, even than the limit", 400, 500, 400, 500},
		{"nothing", 0, 0, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			o := newTenant()
			d := o.decide(o.hold(domain.LimitRPM, slow, 1), o.hold(domain.LimitTPM, 120, 100), o.hold(domain.LimitBudgetDay, 100, 30))
			began := time.Now()
			admit(t, s, d)
			got, err := s.Settle(context.Background(), ends(d, row.tokens, row.cost))
			require.NoError(t, err)
			assert.Equal(t, domain.SettleDone, got)
			after := counters(t, s, o)
			drained := int64(time.Since(began)/(500*time.Millisecond)) + 1 // 120 a minute
			assert.EqualValues(t, row.wantDay, after["budget_day:key"])
			assert.InDelta(t, row.wantTPM, after["tpm:key"], float64(drained))
			assert.EqualValues(t, 1, after["rpm:key"], "a request stays counted")
		})
	}
}

func TestRefundGivesEverythingBack(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	o := newTenant()
	d := o.decide(o.hold(domain.LimitRPM, slow, 1), o.hold(domain.LimitTPM, 100, 100), o.hold(domain.LimitInFlight, 1, 1),
		o.hold(domain.LimitBudgetDay, 100, 30), o.own(o.hold(domain.LimitBudgetMonth, 100, 30)))
	d.Candidates = []domain.Candidate{{Channel: unique("full")}, {Channel: unique("channel"), Slots: 1}}
	d.Candidates[0].Slots = 1
	other := o.decide()
	other.Candidates = d.Candidates[:1]
	admit(t, s, other)
	require.Equal(t, 1, admit(t, s, d).Skipped)
	for range 2 {
		require.NoError(t, s.Refund(ctx, d))
		assert.Equal(t, map[string]int64{"slot:" + d.Candidates[0].Channel: 1},
			counters(t, s, o, d.Candidates[0].Channel, d.Candidates[1].Channel), "only the other request's slot is held")
	}
	assert.Empty(t, outboxOf(t, s, o))
}

func TestARefundComesBeforeALateReserve(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	o := newTenant()
	d := o.decide(o.hold(domain.LimitRPM, slow, 1), o.hold(domain.LimitBudgetDay, 100, 30))
	require.NoError(t, s.Refund(ctx, d))
	_, err := s.Admit(ctx, d)
	require.ErrorIs(t, err, ErrClosed)
	assert.Empty(t, counters(t, s, o))

	got, err := s.Settle(ctx, ends(d, 5, 7))
	require.NoError(t, err)
	assert.Equal(t, domain.SettleUnknown, got, "a record of a refunded request is kept all the same")
	assert.Equal(t, map[string]int64{"budget_day:key": 7}, counters(t, s, o))
	assert.Len(t, outboxOf(t, s, o), 1)
}

func TestSettlingTheUnknownDropsNothing(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	o := newTenant()
	d := o.decide(o.hold(domain.LimitTPM, 100, 50), o.hold(domain.LimitInFlight, 1, 1), o.hold(domain.LimitBudgetDay, 100, 30))
	for _, want := range []domain.SettleResult{domain.SettleUnknown, domain.SettleAlready} {
		got, err := s.Settle(ctx, ends(d, 5, 7))
		require.NoError(t, err)
		assert.Equal(t, want, got)
		assert.Equal(t, map[string]int64{"budget_day:key": 7}, counters(t, s, o), "the money was spent")
	}
	records := outboxOf(t, s, o)
	require.Len(t, records, 1)
	assert.EqualValues(t, 7, records[0].CostMicros)
	notes, err := s.client.XRange(ctx, repairKey(domain.ShardOf(o.identity)), "-", "+").Result()
	require.NoError(t, err)
	var noted int
	for _, n := range notes {
		if n.Values["request"] == d.RequestID {
			noted++
			assert.Equal(t, "unknown", n.Values["why"])
		}
	}
	assert.Equal(t, 1, noted)
	_, err = s.Admit(ctx, d)
	require.ErrorIs(t, err, ErrClosed, "a reserve that comes after the end charges nothing")
}

func TestSettlementOutlivesItsCounters(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	o := newTenant()
	d := o.decide(o.hold(domain.LimitTPM, 100, 50), o.hold(domain.LimitInFlight, 1, 1), o.hold(domain.LimitBudgetDay, 100, 30))
	admit(t, s, d)
	for _, h := range d.Holds {
		require.NoError(t, s.client.Del(ctx, bucketKey(o.identity, h)).Err())
	}
	got, err := s.Settle(ctx, ends(d, 20, 12))
	require.NoError(t, err)
	assert.Equal(t, domain.SettleDone, got)
	assert.Equal(t, map[string]int64{"budget_day:key": 12}, counters(t, s, o))
}

func TestBadHoldsAreRefusedBeforeTheStore(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	for name, h := range map[string]domain.Hold{
		"kind":   {Kind: "images", Scope: domain.ScopeKey, ID: "k", Limit: 1, Amount: 1},
		"window": {Kind: domain.LimitBudgetDay, Scope: domain.ScopeKey, ID: "k", Limit: 1, Amount: 1},
		"amount": {Kind: domain.LimitTPM, Scope: domain.ScopeKey, ID: "k", Limit: 1, Amount: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := s.Admit(context.Background(), o.decide(h))
			require.ErrorContains(t, err, "hold")
			require.Error(t, s.Refund(context.Background(), o.decide(h)))
			_, err = s.Settle(context.Background(), ends(o.decide(h), 0, 0))
			require.Error(t, err)
		})
	}
}

func TestBucketsCountHugeNumbersExactly(t *testing.T) {
	t.Parallel()
	s, o := shared(t), newTenant()
	const limit = 9_000_000_000_000_000 // nine thousand million in currency
	d := o.decide(o.hold(domain.LimitBudgetMonth, limit/8, limit/8-1))
	assert.Equal(t, []int64{1}, admit(t, s, d).Remaining)
	_, err := s.Settle(context.Background(), ends(d, 0, 1_234_567_890_123_457))
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{"budget_month:key": 1_234_567_890_123_457}, counters(t, s, o))
	tokens := o.decide(o.hold(domain.LimitTPM, 1e15, 99_999_999_999))
	left := admit(t, s, tokens).Remaining[0]
	assert.EqualValues(t, 1, left, "a rate limit beyond what is counted exactly is cut to it")
}

func TestTheDecisionLiesBesideTheReservation(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	o := newTenant()
	d := o.decide(o.hold(domain.LimitBudgetDay, 100, 30))
	d.Lease = 20 * time.Millisecond
	d.Candidates[0].Patches = []domain.Patch{{Offset: 3, Delete: 2, Insert: "\x00ü"}}
	d.Price = domain.Price{Version: "v7", Output: 5}
	admit(t, s, d)
	var found domain.ExpiredReservation
	eventually(t, "the lease ends", func() bool {
		expired, err := s.Expired(ctx, 10_000)
		require.NoError(t, err)
		for _, e := range expired {
			if e.Decision.RequestID == d.RequestID {
				found = e
				return true
			}
		}
		return false
	})
	d.Holds[0].Limit = 0 // not kept
	assert.Equal(t, domain.ExpiredReservation{Decision: d}, found)

	open, err := s.Renew(ctx, []domain.Lease{{RequestID: d.RequestID, Identity: o.identity, Holds: d.Holds, TTL: time.Millisecond}})
	require.NoError(t, err)
	require.Equal(t, []bool{true}, open, "expired is not closed")
	eventually(t, "it is marked as renewed", func() bool {
		expired, err := s.Expired(ctx, 10_000)
		require.NoError(t, err)
		for _, e := range expired {
			if e.Decision.RequestID == d.RequestID {
				return e.Renewed
			}
		}
		return false
	})
	_, err = s.Settle(ctx, ends(found.Decision, 0, 3))
	require.NoError(t, err)
	expired, err := s.Expired(ctx, 10_000)
	require.NoError(t, err)
	for _, e := range expired {
		assert.NotEqual(t, d.RequestID, e.Decision.RequestID)
	}
}
