package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyway/domain"
)

// ledgerModel is what the store must agree with after every step: which
// requests hold how much, and what was spent.
type ledgerModel struct {
	store   *Store
	tenant  tenant
	open    map[string]domain.Decision
	closed  map[string]domain.Decision
	spent   int64
	records map[string]int64
	slots   domain.Candidate
}

const (
	modelDay, modelMonth, modelFlight, modelSlots = 300, 500, 4, 3
)

func (m *ledgerModel) decide(cost int64) domain.Decision {
	d := m.tenant.decide(
		m.tenant.hold(domain.LimitInFlight, modelFlight, 1),
		m.tenant.hold(domain.LimitBudgetDay, modelDay, cost),
		m.tenant.own(m.tenant.hold(domain.LimitBudgetMonth, modelMonth, cost)),
	)
	d.Candidates = []domain.Candidate{m.slots}
	return d
}

func (m *ledgerModel) held() (sum int64) {
	for _, d := range m.open {
		sum += d.Holds[1].Amount
	}
	return sum
}

func (m *ledgerModel) reserve(t *rapid.T) {
	cost := rapid.Int64Range(0, 150).Draw(t, "cost")
	d := m.decide(cost)
	a, err := m.store.Admit(context.Background(), d)
	require.NoError(t, err)
	used := m.held() + m.spent
	fits := len(m.open) < modelFlight && used+cost <= modelDay && used+cost <= modelMonth
	require.Equal(t, fits, a.Refusal == nil, "%d open, %d used, %d asked", len(m.open), used, cost)
	require.Equal(t, fits && len(m.open) >= modelSlots, a.SlotRefused)
	if fits && !a.SlotRefused {
		m.open[d.RequestID] = d
		require.Equal(t, modelDay-used-cost, a.Remaining[1])
	}
}

func pick(t *rapid.T, from map[string]domain.Decision) (domain.Decision, bool) {
	if len(from) == 0 {
		return domain.Decision{}, false
	}
	ids := make([]string, 0, len(from))
	for id := range from {
		ids = append(ids, id)
	}
	return from[ids[rapid.IntRange(0, len(ids)-1).Draw(t, "which")]], true
}

func (m *ledgerModel) end(d domain.Decision) {
	delete(m.open, d.RequestID)
	m.closed[d.RequestID] = d
}

func (m *ledgerModel) settle(t *rapid.T) {
	d, ok := pick(t, m.open)
	if !ok {
		return
	}
	cost := rapid.Int64Range(0, d.Holds[1].Amount).Draw(t, "actual")
	s := ends(d, 0, cost)
	s.Channel = m.slots.Channel
	got, err := m.store.Settle(context.Background(), s)
	require.NoError(t, err)
	require.Equal(t, domain.SettleDone, got)
	m.spent += cost
	m.records[d.RequestID] = cost
	m.end(d)
}

func (m *ledgerModel) refund(t *rapid.T) {
	if d, ok := pick(t, m.open); ok {
		require.NoError(t, m.store.Refund(context.Background(), d))
		m.end(d)
	}
}

// repeat does again what was done, or comes late.
func (m *ledgerModel) repeat(t *rapid.T) {
	if d, ok := pick(t, m.open); ok {
		_, err := m.store.Admit(context.Background(), d)
		require.NoError(t, err)
	}
	d, ok := pick(t, m.closed)
	if !ok {
		return
	}
	_, err := m.store.Admit(context.Background(), d)
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, m.store.Refund(context.Background(), d))
	if _, settled := m.records[d.RequestID]; settled {
		got, err := m.store.Settle(context.Background(), ends(d, 0, 77))
		require.NoError(t, err)
		require.Equal(t, domain.SettleAlready, got)
	}
}

// expire lets a request's owner die: its lease ends and the sweeper settles it.
func (m *ledgerModel) expire(t *rapid.T) {
	d, ok := pick(t, m.open)
	if !ok {
		return
	}
	ctx := context.Background()
	leases := []domain.Lease{{RequestID: d.RequestID, Identity: d.Identity, Holds: d.Holds, Channel: m.slots.Channel, TTL: time.Millisecond}}
	_, err := m.store.Renew(ctx, leases)
	require.NoError(t, err)
	for range 10_000 {
		expired, err := m.store.Expired(ctx, 1000)
		require.NoError(t, err)
		for _, e := range expired {
			if e.Decision.RequestID != d.RequestID {
				continue
			}
			s := ends(e.Decision, 0, e.Decision.Holds[1].Amount)
			s.Channel, s.Record.Outcome = m.slots.Channel, domain.OutcomeAbandoned
			got, err := m.store.Settle(ctx, s)
			require.NoError(t, err)
			require.Equal(t, domain.SettleDone, got)
			m.spent += s.Record.CostMicros
			m.records[d.RequestID] = s.Record.CostMicros
			m.end(d)
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s never expired", d.RequestID)
}

// check is run after every step.
func (m *ledgerModel) check(t *rapid.T, tb testing.TB) {
	want := map[string]int64{
		"in_flight:key": int64(len(m.open)), "budget_day:key": m.held() + m.spent,
		"budget_month:identity": m.held() + m.spent, "slot:" + m.slots.Channel: int64(len(m.open)),
	}
	for name, value := range want {
		if value == 0 {
			delete(want, name)
		}
	}
	got := counters(tb, m.store, m.tenant, m.slots.Channel)
	require.Equal(t, want, got)
	require.LessOrEqual(t, got["budget_day:key"], int64(modelDay))
	require.LessOrEqual(t, got["budget_month:identity"], int64(modelMonth))
}

// TestNothingIsLostOrOversold: under any order of reserve, settle, refund,
// repetition and death, holds plus spent stay within every limit at every
// step, and at rest the counters equal the records of the outbox.
func TestNothingIsLostOrOversold(t *testing.T) {
	t.Parallel()
	conserve(t, shared(t))
}

func conserve(tb *testing.T, s *Store) {
	rapid.Check(tb, func(t *rapid.T) {
		m := &ledgerModel{
			store: s, tenant: newTenant(), open: map[string]domain.Decision{}, closed: map[string]domain.Decision{},
			records: map[string]int64{}, slots: domain.Candidate{Channel: unique("channel"), Slots: modelSlots},
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": m.reserve, "reserve more": m.reserve, "settle": m.settle, "refund": m.refund,
			"repeat": m.repeat, "expire": m.expire,
			"": func(t *rapid.T) { m.check(t, tb) },
		})
		for _, d := range m.open {
			require.NoError(t, s.Refund(context.Background(), d))
		}
		m.open = map[string]domain.Decision{}
		m.check(t, tb)
		var ledger int64
		records := outboxOf(tb, s, m.tenant)
		for _, r := range records {
			require.Equal(t, m.records[r.RequestID], r.CostMicros)
			ledger += r.CostMicros
		}
		require.Len(t, records, len(m.records), fmt.Sprint(m.records))
		require.Equal(t, m.spent, ledger, "Σ ledger = Σ settled")
	})
}
