package store

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyway/domain"
	"keyway/store/storetest"
)

// world is what the store must agree with after every step: a small model in
// memory of who holds how much in which window, what was spent, and what the
// ledger has been told.
type world struct {
	store  *Store
	tenant tenant
	region ceiling
	slots  domain.Candidate
	// now is the gateway's clock, which only windows follow.
	now    time.Time
	open   map[string]domain.Decision
	closed map[string]domain.Decision
	// spent is by bucket what settlements charged to it; buckets has each that was ever asked for.
	spent   map[string]int64
	buckets map[string]domain.Hold
	// settled is what was settled by request; ledger is what has been delivered.
	settled, ledger map[string]domain.UsageRecord
	// credit is what the identity has paid in, entry how often it did.
	credit, entry int64
	steps         *int
}

const modelSlots = 3

var (
	modelKey = domain.Policy{
		InFlight: 5, BudgetDayMicros: 300, ImagesDay: 4, TimeZone: "Europe/Berlin",
		Models: map[string]domain.Policy{"m": {InFlight: 4, BudgetMonthMicros: 900, TimeZone: "America/New_York"}},
	}
	modelIdentity = domain.Policy{BudgetMonthMicros: 1000, TimeZone: "Asia/Kathmandu"}
	modelRegion   = domain.Policy{InFlight: 4}
)

func newWorld(s *Store, steps *int) *world {
	return &world{
		store: s, tenant: newTenant(), region: newCeiling(), steps: steps,
		slots: domain.Candidate{Channel: unique("channel"), Slots: modelSlots},
		now:   time.Date(2026, 10, 23, 12, 0, 0, 0, time.UTC), // before a day of 25 hours and the end of a month
		open:  map[string]domain.Decision{}, closed: map[string]domain.Decision{},
		spent: map[string]int64{}, buckets: map[string]domain.Hold{},
		settled: map[string]domain.UsageRecord{}, ledger: map[string]domain.UsageRecord{},
	}
}

func (w *world) decide(t *rapid.T) domain.Decision {
	demand := domain.Demand{
		Models: []string{rapid.SampledFrom([]string{"m", "other"}).Draw(t, "model")}, CostMicros: rapid.Int64Range(0, 150).Draw(t, "cost"),
		Images: rapid.Int64Range(0, 2).Draw(t, "images"),
	}
	holds := []domain.Hold{domain.BalanceHold(w.tenant.identity, demand.CostMicros)}
	holds = append(holds, modelKey.Holds(domain.ScopeKey, w.tenant.key, demand, w.now)...)
	holds = append(holds, modelIdentity.Holds(domain.ScopeIdentity, w.tenant.identity, demand, w.now)...)
	holds = append(holds, modelRegion.Holds(domain.ScopeRegion, string(w.region), demand, w.now)...)
	d := w.tenant.decide(holds...)
	d.Candidates, d.AdmittedAt = []domain.Candidate{w.slots}, w.now
	d.OutputCap = demand.CostMicros
	return d
}

// limit is what the bucket of h can give.
func (w *world) limit(h domain.Hold) int64 {
	if h.Kind == domain.LimitBalance {
		return w.credit
	}
	return h.Limit
}

// pay changes what the identity has paid in: it pays more, or takes back what is
// neither held nor spent. The worker may bring the same sum twice.
func (w *world) pay(t *rapid.T) {
	free := w.credit - w.held(w.key(domain.BalanceHold(w.tenant.identity, 0)))
	w.credit += rapid.Int64Range(-free, 400).Draw(t, "paid")
	w.entry++
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		require.NoError(t, w.store.SetCredits(t.Context(), []domain.Credit{{Identity: w.tenant.identity, Micros: w.credit, Entry: w.entry}}, w.entry))
	}
}

func (w *world) key(h domain.Hold) string { return bucketKey(w.tenant.identity, h) }

// held is what open requests hold of a bucket, and what was spent of it.
func (w *world) held(key string) int64 {
	sum := w.spent[key]
	for _, d := range w.open {
		for _, h := range d.Holds {
			if w.key(h) == key {
				sum += h.Amount
			}
		}
	}
	return sum
}

func (w *world) reserve(t *rapid.T) {
	d := w.decide(t)
	a, err := w.store.Admit(t.Context(), d)
	require.NoError(t, err)
	fits := true
	for _, h := range d.Holds {
		w.buckets[w.key(h)] = h
		fits = fits && w.held(w.key(h))+h.Amount <= w.limit(h)
	}
	require.Equal(t, fits, a.Refusal == nil, "%d open, asked %+v, refused %+v", len(w.open), d.Holds, a.Refusal)
	full := len(w.open) >= modelSlots
	require.Equal(t, fits && full, a.SlotRefused)
	if !fits || full {
		return
	}
	w.open[d.RequestID] = d
	for i, h := range d.Holds {
		require.Equal(t, w.limit(h)-w.held(w.key(h)), a.Remaining[i])
	}
}

func pick(t *rapid.T, from map[string]domain.Decision) (domain.Decision, bool) {
	if len(from) == 0 {
		return domain.Decision{}, false
	}
	ids := slices.Sorted(maps.Keys(from))
	return from[ids[rapid.IntRange(0, len(ids)-1).Draw(t, "which")]], true
}

// settle ends an open request with what it used, by an answer or a client that left.
func (w *world) settle(t *rapid.T) {
	d, ok := pick(t, w.open)
	if !ok {
		return
	}
	s := ends(d, 0, rapid.Int64Range(0, d.OutputCap).Draw(t, "actual"))
	s.Channel = w.slots.Channel
	s.Record.Outcome = rapid.SampledFrom([]domain.Outcome{
		domain.OutcomeSuccess, domain.OutcomeCancelled, domain.OutcomeFailed, domain.OutcomeUpstreamCut,
	}).Draw(t, "outcome")
	for _, h := range d.Holds {
		if h.Kind == domain.LimitImagesDay {
			s.Record.Usage.Tools[domain.ToolImageGeneration] = rapid.Int64Range(0, h.Amount).Draw(t, "images made")
		}
	}
	w.end(t, s)
}

// end settles and charges the model with it.
func (w *world) end(t *rapid.T, s domain.Settlement) {
	got, err := w.store.Settle(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, domain.SettleDone, got)
	for _, h := range s.Decision.Holds {
		if classOf(h.Kind) == classWindow {
			w.spent[w.key(h)] += charged(h, s.Record)
		}
	}
	w.settled[s.Decision.RequestID] = s.Record
	w.close(s.Decision)
}

// charged is what a record costs a window, in the plainest words.
func charged(h domain.Hold, r domain.UsageRecord) int64 {
	if h.Kind == domain.LimitImagesDay {
		return r.Usage.Tools[domain.ToolImageGeneration]
	}
	return r.CostMicros
}

func (w *world) close(d domain.Decision) {
	delete(w.open, d.RequestID)
	w.closed[d.RequestID] = d
}

func (w *world) refund(t *rapid.T) {
	if d, ok := pick(t, w.open); ok {
		require.NoError(t, w.store.Refund(t.Context(), d))
		w.close(d)
	}
}

// repeat does again what was done, or comes late.
func (w *world) repeat(t *rapid.T) {
	ctx := t.Context()
	if d, ok := pick(t, w.open); ok {
		_, err := w.store.Admit(ctx, d)
		require.NoError(t, err)
		renewed, err := w.store.Renew(ctx, []domain.Lease{w.lease(d, time.Minute)})
		require.NoError(t, err)
		require.Equal(t, []bool{true}, renewed)
	}
	d, ok := pick(t, w.closed)
	if !ok {
		return
	}
	_, err := w.store.Admit(ctx, d)
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, w.store.Refund(ctx, d))
	renewed, err := w.store.Renew(ctx, []domain.Lease{w.lease(d, time.Minute)})
	require.NoError(t, err)
	require.Equal(t, []bool{false}, renewed)
	if _, settled := w.settled[d.RequestID]; settled {
		got, err := w.store.Settle(ctx, ends(d, 0, 77))
		require.NoError(t, err)
		require.Equal(t, domain.SettleAlready, got)
	}
}

func (w *world) lease(d domain.Decision, ttl time.Duration) domain.Lease {
	return domain.Lease{RequestID: d.RequestID, Identity: d.Identity, Holds: d.Holds, Channel: w.slots.Channel, TTL: ttl}
}

// expire lets a request's owner die: its lease ends and the sweeper settles it.
func (w *world) expire(t *rapid.T) {
	d, ok := pick(t, w.open)
	if !ok {
		return
	}
	_, err := w.store.Renew(t.Context(), []domain.Lease{w.lease(d, time.Millisecond)})
	require.NoError(t, err)
	w.sweep(t, d, rapid.Int64Range(0, d.OutputCap).Draw(t, "prompt"))
}

// sweep waits until d is found expired and settles it as the worker does.
func (w *world) sweep(t *rapid.T, d domain.Decision, cost int64) {
	for range 10_000 {
		expired, err := w.store.Expired(t.Context(), 1000)
		require.NoError(t, err)
		for _, e := range expired {
			if e.Decision.RequestID == d.RequestID {
				s := ends(d, 0, cost)
				s.Channel, s.Record.Outcome = w.slots.Channel, domain.OutcomeAbandoned
				w.end(t, s)
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s never expired", d.RequestID)
}

// crash ends a process in the middle of an admission: some of its scripts have
// run, nobody knows of it, and leases end.
func (w *world) crash(t *rapid.T) {
	d := w.decide(t)
	for _, h := range d.Holds {
		w.buckets[w.key(h)] = h
	}
	d.Lease = time.Millisecond
	calls, err := admitCalls(d, 0)
	require.NoError(t, err)
	ran := rapid.IntRange(0, len(calls)-1).Draw(t, "the script that ran")
	reply := w.store.run(t.Context(), calls[ran:ran+1])[0]
	require.NoError(t, reply.Err())
	if status, err := reply.Int64Slice(); ran == 0 && err == nil && status[0] == reserveCharged {
		w.sweep(t, d, 0)
		return
	}
	index := part{tag: regionTag}
	for range 10_000 {
		_, err := w.store.Expired(t.Context(), 1000)
		require.NoError(t, err)
		left, err := w.store.client.ZCount(t.Context(), index.open(), "-inf", "+inf").Result()
		require.NoError(t, err)
		slots, err := w.store.values(t.Context(), slotKey(w.slots.Channel))
		require.NoError(t, err)
		if left == int64(len(w.open)) && slots[0] == left {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("what half an admission holds stays")
}

// lose takes windows and the generation away, and lets a worker rebuild them
// from what has been delivered, while a request ends in the middle of it.
func (w *world) lose(t *rapid.T) {
	shard := domain.ShardOf(w.tenant.identity)
	gone := []string{generationKey(shard)}
	for key, h := range w.buckets {
		if classOf(h.Kind) == classWindow && rapid.Bool().Draw(t, "lost") {
			gone = append(gone, key)
		}
	}
	require.NoError(t, w.store.client.Del(t.Context(), gone...).Err())
	a, err := w.store.Admit(t.Context(), w.decide(t))
	require.NoError(t, err)
	require.True(t, a.BudgetsUnknown)
	lost, err := w.store.Advance(t.Context(), time.Time{})
	require.NoError(t, err)
	require.Equal(t, []int{shard}, lost)
	require.NoError(t, w.store.Rebuild(t.Context(), lost, func(_ context.Context, requests []string) (domain.BudgetSums, error) {
		sums := domain.BudgetSums{Spent: map[string]int64{}, Owner: map[string]string{}, Settled: map[string]bool{}}
		for id, row := range w.ledger {
			sums.Settled[id] = slices.Contains(requests, id)
			for _, name := range row.Budgets {
				sums.Owner[name] = w.tenant.identity
				sums.Spent[name] += chargeOf(name, row)
			}
		}
		rapid.SampledFrom([]func(*rapid.T){w.settle, w.refund, func(*rapid.T) {}}).Draw(t, "meanwhile")(t)
		return sums, nil
	}))
}

// turn moves the gateway's clock, over midnights, a change of the clocks and
// the ends of months.
func (w *world) turn(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 100).Draw(t, "hours")) * time.Hour)
}

// forget takes the scripts from the server, as a restart or a failover does.
func (w *world) forget(t *rapid.T) {
	require.NoError(t, w.store.client.ScriptFlush(t.Context()).Err())
}

// deliver reads the outbox into the ledger, which keeps one row for each
// request. The reader may die before it acknowledges.
func (w *world) deliver(t *rapid.T) {
	w.take(t, rapid.IntRange(1, 5).Draw(t, "most"), rapid.Bool().Draw(t, "dies"))
}

func (w *world) take(t *rapid.T, most int, dies bool) {
	entries, err := w.store.ReadOutbox(t.Context(), domain.OutboxRead{Consumer: unique("reader"), Max: most, ReclaimIdle: 1})
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, e.Err)
		row, again := w.ledger[e.Record.RequestID]
		require.True(t, !again || row.CostMicros == e.Record.CostMicros && row.Outcome == e.Record.Outcome)
		w.ledger[e.Record.RequestID] = e.Record
	}
	if !dies {
		require.NoError(t, w.store.AckOutbox(t.Context(), entries))
	}
}

// check is run after every step.
func (w *world) check(t *rapid.T) {
	*w.steps++
	keys := slices.Collect(maps.Keys(w.buckets))
	got, err := w.store.values(t.Context(), append(keys, slotKey(w.slots.Channel))...)
	require.NoError(t, err)
	for i, key := range keys {
		require.Equal(t, w.held(key), got[i], key)
		require.LessOrEqual(t, got[i], w.limit(w.buckets[key]), key)
	}
	require.EqualValues(t, len(w.open), got[len(keys)])
}

// rest ends everything: the counters are what the ledger's rows add up to.
func (w *world) rest(t *rapid.T) {
	for _, d := range w.open {
		require.NoError(t, w.store.Refund(t.Context(), d))
	}
	clear(w.open)
	w.check(t)
	for range 10_000 { // what a reader died with comes back a moment later
		stats, err := w.store.Stats(t.Context())
		require.NoError(t, err)
		if stats.OutboxLen == 0 {
			break
		}
		w.take(t, 1000, false)
	}
	require.Len(t, w.ledger, len(w.settled))
	sums := map[string]int64{}
	for id, row := range w.ledger {
		require.Equal(t, w.settled[id].CostMicros, row.CostMicros)
		for _, h := range w.closed[id].Holds {
			if classOf(h.Kind) == classWindow {
				sums[w.key(h)] += charged(h, row)
			}
		}
	}
	for key := range w.buckets {
		require.Equal(t, sums[key], w.spent[key], key)
	}
	stats, err := w.store.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats)
}

// worldsAtOnce is how many worlds live before their steps are counted; each has
// some thirty.
const worldsAtOnce = 5

// conserve runs the property for at least steps steps. The store must be its own.
func conserve(t *testing.T, s *Store, steps int) {
	done := 0
	for done < steps {
		rapid.Check(t, func(t *rapid.T) {
			w := newWorld(s, &done)
			t.Repeat(map[string]func(*rapid.T){
				"reserve": w.reserve, "reserve more": w.reserve, "settle": w.settle, "refund": w.refund, "repeat": w.repeat,
				"pay": w.pay, "expire": w.expire, "crash": w.crash, "windows turn": w.turn, "scripts are forgotten": w.forget, "deliver": w.deliver,
				"windows are lost": w.lose,
				"":                 w.check,
			})
			w.rest(t)
		})
	}
	t.Logf("%d steps", done)
}

// conservationSteps is what one run of the tests makes.
const conservationSteps = 10_000

// TestNothingIsLostOrOversold: under any order of reserve, settle, cancel,
// refund, repetition, redelivery, death, top-ups and turning windows, holds plus spent
// stay within every limit at every step, and at rest counters, model and ledger
// agree. A failure prints the seed that repeats it.
func TestNothingIsLostOrOversold(t *testing.T) {
	t.Parallel()
	steps := conservationSteps
	if testing.Short() {
		steps = 100
	}
	conserve(t, begun(t, storetest.Start(t).URL), steps)
}
