package store

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

// topology is one way to run a store, and what is done to it under load.
type topology struct {
	name string
	// start runs the servers and returns the URL and the disturbance.
	start func(*testing.T, storetest.Kind) (url string, disturb func(*testing.T, *load))
	// mayFail: calls may fail with domain.ErrStoreDown meanwhile. mayLose:
	// writes that were acknowledged may be lost.
	mayFail, mayLose bool
}

var topologies = []topology{
	{name: "single", start: func(t *testing.T, k storetest.Kind) (string, func(*testing.T, *load)) {
		return k.Start(t).URL, func(t *testing.T, l *load) {
			for range 30 {
				time.Sleep(50 * time.Millisecond)
				require.NoError(t, l.store.client.ScriptFlush(t.Context()).Err())
			}
		}
	}},
	// A slot that is longer under way than a call may last fails it.
	{name: "cluster", mayFail: true, start: func(t *testing.T, k storetest.Kind) (string, func(*testing.T, *load)) {
		url := k.StartCluster(t, 3)
		return url, func(t *testing.T, l *load) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			moves, err := storetest.MoveSlots(ctx, url, l.tags())
			require.NoError(t, err)
			t.Logf("%d moves of slots", moves)
			require.Greater(t, moves, len(l.tags()))
		}
	}},
	{name: "sentinel", mayFail: true, mayLose: true, start: func(t *testing.T, k storetest.Kind) (string, func(*testing.T, *load)) {
		primary, url := k.StartSentinel(t)
		return url, func(t *testing.T, l *load) { l.failOver(t, primary, url) }
	}},
}

// TestEveryTopology runs one body over every kind of store in every topology:
// the property of conservation at rest, and the books after a disturbance under
// load. It loads the machine and its guard judges milliseconds, so nothing runs
// beside it.
func TestEveryTopology(t *testing.T) {
	kinds := storetest.Kinds()
	if len(kinds) == 0 {
		storetest.Missing(t)
	}
	for _, kind := range kinds {
		for _, top := range topologies {
			t.Run(kind.Name+", "+top.name, func(t *testing.T) {
				url, disturb := top.start(t, kind)
				s := begun(t, url)
				conserve(t, s, 200)
				s.Start(t.Context())
				l := newLoad(s)
				l.run(t, disturb)
				l.finish(t)
				l.requireBooks(t, top)
			})
		}
	}
}

// load is many requests at once: some on one key with a budget that they fill
// and never give back, others on many keys that come and go.
type load struct {
	store  *Store
	region ceiling
	hot    tenant
	limit  atomic.Int64
	many   []tenant

	mu sync.Mutex
	// admitted is when each request of the hot key was.
	admitted []time.Time
	errors   []failure
	// unknown and ended wait to be given back and to be settled.
	unknown []domain.Decision
	ended   []domain.Settlement
	spent   map[tenant]int64
	// killed, and promoted when a sentinel had named the next primary.
	killed, promoted time.Time
	// stalled is the longest time for which this machine ran nothing of the test.
	stalled time.Duration
}

type failure struct {
	at  time.Time
	err error
}

const (
	loadWorkers = 16
	hotLimit    = 300
)

func newLoad(s *Store) *load {
	l := &load{store: s, region: newCeiling(), hot: newTenant(), spent: map[tenant]int64{}}
	l.limit.Store(hotLimit)
	for range 20 {
		l.many = append(l.many, newTenant())
	}
	return l
}

// tags are the hash tags under load.
func (l *load) tags() []string {
	tags := []string{regionTag, identityTag(l.hot.identity)}
	for _, o := range l.many[:6] {
		tags = append(tags, identityTag(o.identity))
	}
	return tags
}

// run keeps the load up while the store is disturbed.
func (l *load) run(t *testing.T, disturb func(*testing.T, *load)) {
	var (
		wg   sync.WaitGroup
		stop atomic.Bool
	)
	for range loadWorkers {
		wg.Go(func() {
			for !stop.Load() {
				l.askHot()
				l.askOne()
				time.Sleep(time.Millisecond) // so that a small machine has time for the servers
			}
		})
	}
	wg.Go(func() {
		for last := time.Now(); !stop.Load(); last = time.Now() {
			time.Sleep(10 * time.Millisecond)
			l.stalled = max(l.stalled, time.Since(last))
		}
	})
	defer wg.Wait()
	defer stop.Store(true)
	disturb(t, l)
}

func (l *load) askHot() {
	d := l.hot.decide(l.hot.hold(domain.LimitBudgetDay, l.limit.Load(), 1))
	a, err := l.store.Admit(context.Background(), d)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.fail(err)
		l.unknown = append(l.unknown, d)
	case a.Refusal == nil:
		l.admitted = append(l.admitted, time.Now())
	}
}

func (l *load) askOne() {
	ctx, o := context.Background(), l.many[rand.IntN(len(l.many))]
	d := o.decide(
		o.hold(domain.LimitInFlight, 1000, 1), o.hold(domain.LimitBudgetDay, 1e12, 10), o.own(o.hold(domain.LimitBudgetMonth, 1e12, 10)),
		l.region.hold(domain.LimitRPM, 1e9, 1), l.region.hold(domain.LimitInFlight, 1000, 1),
	)
	d.Candidates[0].Slots = 5
	a, err := l.store.Admit(ctx, d)
	if err == nil && a.Refusal == nil {
		_, err = l.store.Renew(ctx, []domain.Lease{{RequestID: d.RequestID, Identity: d.Identity, Holds: d.Holds, Channel: d.Candidates[0].Channel, TTL: d.Lease}})
		s := ends(d, 3, rand.Int64N(11))
		s.Channel = d.Candidates[0].Channel
		_, settleErr := l.store.Settle(ctx, s)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.fail(err)
		l.fail(settleErr)
		l.spent[o] += s.Record.CostMicros
		if settleErr != nil {
			l.ended = append(l.ended, s)
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(err)
	l.unknown = append(l.unknown, d)
}

// fail notes an error; l.mu is held.
func (l *load) fail(err error) {
	if err != nil {
		l.errors = append(l.errors, failure{time.Now(), err})
	}
}

// failOver kills the primary under load and waits until the next one has
// served for a while.
func (l *load) failOver(t *testing.T, primary *storetest.Server, url string) {
	l.limit.Store(1 << 40)
	time.Sleep(time.Second)
	l.mu.Lock()
	l.killed = time.Now()
	// The rest of the budget is soon used up: what the replica has not seen would be sold twice.
	l.limit.Store(int64(len(l.admitted)) + 100)
	l.mu.Unlock()
	primary.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, storetest.Promoted(ctx, url, primary.Addr))
	l.promoted = time.Now()
	o := newTenant()
	eventually(t, "the next primary serves", func() bool {
		_, err := l.store.Admit(ctx, o.decide())
		return err == nil
	})
	time.Sleep(time.Second)
}

// finish does what journals and queues do when the store is back.
func (l *load) finish(t *testing.T) {
	ctx := t.Context()
	for _, d := range l.unknown {
		require.NoError(t, l.store.Refund(ctx, d))
	}
	for _, s := range l.ended {
		_, err := l.store.Settle(ctx, s)
		require.NoError(t, err)
	}
}

func (l *load) requireBooks(t *testing.T, top topology) {
	for _, f := range l.errors {
		require.ErrorIs(t, f.err, domain.ErrStoreDown)
		for _, word := range []string{"NOSCRIPT", "CROSSSLOT", "MOVED", "ASK "} {
			require.NotContains(t, f.err.Error(), word)
		}
	}
	t.Logf("%d admitted on one key, %d errors", len(l.admitted), len(l.errors))
	if top.mayLose {
		l.requireFailover(t)
	} else {
		if len(l.errors) == 0 {
			assert.Len(t, l.admitted, hotLimit)
		}
		assert.LessOrEqual(t, len(l.admitted), hotLimit)
		assert.EqualValues(t, len(l.admitted), counters(t, l.store, l.hot)["budget_day:key"])
		assert.Empty(t, l.region.counters(t, l.store)["in_flight"])
	}
	if !top.mayFail {
		assert.Empty(t, l.errors)
	}
	for _, o := range l.many {
		var ledger int64
		for _, r := range outboxOf(t, l.store, o) {
			ledger += r.CostMicros
		}
		got := counters(t, l.store, o)
		if top.mayLose {
			// What was admitted and settled when the primary died may be lost whole, or only its end.
			assert.LessOrEqual(t, ledger, got["budget_day:key"])
			assert.LessOrEqual(t, got["budget_day:key"], ledger+10*got["in_flight:key"])
			continue
		}
		assert.Equal(t, l.spent[o], ledger)
		want := map[string]int64{"budget_day:key": ledger, "budget_month:identity": ledger}
		if ledger == 0 {
			clear(want)
		}
		assert.Equal(t, want, got)
	}
}

// requireFailover judges what was sold twice and how long calls failed.
func (l *load) requireFailover(t *testing.T) {
	require.NotEmpty(t, l.errors, "nobody noticed")
	first, last := l.errors[0].at, l.errors[0].at
	for _, f := range l.errors {
		if f.at.Before(first) {
			first = f.at
		}
		if f.at.After(last) {
			last = f.at
		}
	}
	// Lag is far below a second here, and every worker may have one under way.
	bound := int64(loadWorkers)
	for _, at := range l.admitted {
		if at.After(l.killed.Add(-time.Second)) && at.Before(l.killed) {
			bound++
		}
	}
	over := max(0, int64(len(l.admitted))-l.limit.Load())
	t.Logf("detected after %s, calls failed for %s; %d admitted over the limit, bound %d",
		l.promoted.Sub(l.killed), last.Sub(first), over, bound)
	assert.LessOrEqual(t, over, bound, "rate × lag")
	assert.GreaterOrEqual(t, int64(len(l.admitted)), l.limit.Load(), "the budget was used up, or the bound says nothing")
	assert.LessOrEqual(t, last.Sub(l.promoted), 2*time.Second+l.stalled, "two seconds after detection, on a machine that runs")
}
