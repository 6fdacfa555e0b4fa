package worker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/telemetry"
)

// fakeGenerations loses shards when it is told to.
type fakeGenerations struct {
	mu      sync.Mutex
	lost    []int
	written []time.Time
	rebuilt int
	err     error
}

func (f *fakeGenerations) Advance(_ context.Context, written time.Time) ([]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written = append(f.written, written)
	return f.lost, nil
}

func (f *fakeGenerations) Rebuild(ctx context.Context, shards []int, sums func(context.Context, []string) (domain.BudgetSums, error)) error {
	_, err := sums(ctx, []string{"req_9"})
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		err = f.err
	}
	if err != nil {
		return err
	}
	f.rebuilt += len(shards)
	f.lost = nil
	return nil
}

func (f *fakeGenerations) set(lost []int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost, f.err = lost, err
}

func (f *fakeGenerations) looks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.written)
}

// fakeSums is a ledger that was last written at noon, and can be away.
type fakeSums struct {
	mu    sync.Mutex
	since time.Time
	err   error
}

var noon = time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC)

func (f *fakeSums) Newest(context.Context) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return noon, f.err
}

func (f *fakeSums) BudgetSums(_ context.Context, since time.Time, _ []string) (domain.BudgetSums, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since = since
	return domain.BudgetSums{}, f.err
}

func (f *fakeSums) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func TestLostBudgetsAreRebuilt(t *testing.T) {
	t.Parallel()
	g, sums := &fakeGenerations{lost: []int{3, 5}}, &fakeSums{err: errAway}
	opts := options(newOutbox(), newLedger(), &fakeStore{})
	opts.Generations, opts.BudgetSums, opts.AdvanceInterval = g, sums, time.Millisecond
	opts.Now = func() time.Time { return noon }
	opts.Health = telemetry.NewHealth(telemetry.HealthOptions{})
	w := newWorker(t, opts)
	stop := start(t, w)
	defer stop()
	lost := func() float64 { return testutil.ToFloat64(w.metrics.lostShards) }
	ready := func() bool { return opts.Health.Ready() == nil }

	eventually(t, func() bool { return testutil.ToFloat64(w.metrics.errors.WithLabelValues("newest")) > 2 }, "the ledger is asked first")
	assert.Zero(t, g.looks(), "before it is known how new the ledger is, nothing may hide a loss")
	assert.False(t, ready())
	sums.set(nil)
	eventually(t, func() bool { return testutil.ToFloat64(w.metrics.rebuilt) == 2 && ready() }, "a first look rebuilds")
	looked := g.looks()
	eventually(t, func() bool { return g.looks() > looked+2 }, "it looks on")
	g.mu.Lock()
	assert.Equal(t, noon, g.written[0])
	assert.Zero(t, g.written[len(g.written)-1], "later it has seen generations itself")
	g.mu.Unlock()
	assert.Zero(t, lost())

	g.set([]int{7}, errAway)
	eventually(t, func() bool { return lost() == 1 && !ready() }, "a loss shows")
	assert.Positive(t, testutil.ToFloat64(w.metrics.errors.WithLabelValues("rebuild")))
	g.set([]int{7}, nil)
	eventually(t, func() bool { return lost() == 0 && ready() }, "and is mended")
	stop()
	assert.InDelta(t, 3, testutil.ToFloat64(w.metrics.rebuilt), 0)
	assert.Equal(t, time.Date(2026, 10, 31, 10, 0, 0, 0, time.UTC), sums.since, "November is not over everywhere")
}

// What was paid in is there before balances are judged again.
func TestCreditsComeBeforeBalances(t *testing.T) {
	t.Parallel()
	credits := &fakeCredits{paid: domain.Credit{Identity: "acme", Micros: 5, Entry: 3}}
	opts := options(newOutbox(), newLedger(), &fakeStore{})
	g := &fakeGenerations{lost: []int{1}}
	opts.Generations, opts.BudgetSums, opts.Credits, opts.CreditStore = g, &fakeSums{}, credits, credits
	w := newWorker(t, opts)
	credits.away = errAway
	require.ErrorIs(t, w.rebuild(t.Context(), []int{1}), errAway)
	require.Zero(t, g.rebuilt)
	credits.away = nil
	require.NoError(t, w.rebuild(t.Context(), []int{1}))
	require.Equal(t, 1, g.rebuilt)
	require.EqualValues(t, 3, credits.mark)
}

// No batch is between store and ledger while the ledger is summed.
func TestRebuildWaitsForABatch(t *testing.T) {
	t.Parallel()
	outbox, g := newOutbox(entries(3)...), &fakeGenerations{lost: []int{1}}
	acked, release := make(chan struct{}), make(chan struct{})
	outbox.set(func(f *fakeOutbox) {
		f.onAck = func() error {
			close(acked)
			<-release
			return nil
		}
	})
	opts := options(outbox, newLedger(), &fakeStore{})
	opts.Generations, opts.BudgetSums = g, &fakeSums{}
	w := newWorker(t, opts)
	drained, rebuilt := make(chan error, 1), make(chan error, 1)
	go func() { _, err := w.drainBatch(t.Context()); drained <- err }()
	<-acked
	go func() { rebuilt <- w.rebuild(t.Context(), []int{1}) }()
	select {
	case <-rebuilt:
		require.Fail(t, "the rebuild did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	close(release)
	require.NoError(t, <-drained)
	require.NoError(t, <-rebuilt)
}

func TestGenerationsNeedALedger(t *testing.T) {
	t.Parallel()
	opts := options(newOutbox(), newLedger(), &fakeStore{})
	opts.Generations = &fakeGenerations{}
	_, err := New(opts)
	require.ErrorContains(t, err, "Generations needs BudgetSums")
}
