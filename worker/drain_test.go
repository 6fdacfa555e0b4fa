package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/telemetry"
)

func TestDrainMovesEverything(t *testing.T) {
	t.Parallel()
	outbox, ledger := newOutbox(entries(1201)...), newLedger()
	w := newWorker(t, options(outbox, ledger, &fakeStore{}))
	stop := start(t, w)
	defer stop()
	eventually(t, func() bool { return outbox.len() == 0 }, "outbox empties")
	stop()
	assert.Equal(t, 1201, ledger.len())
	assert.Equal(t, []int{500, 500, 201}, ledger.batches)
	assert.InDelta(t, 1201, testutil.ToFloat64(w.metrics.written), 0)
	assert.Zero(t, testutil.ToFloat64(w.metrics.duplicates))
	assert.Equal(t, domain.OutboxRead{Consumer: "worker-1", Max: 500, Resume: true, ReclaimIdle: time.Minute}, outbox.reads[0])
	assert.Equal(t, domain.OutboxRead{Consumer: "worker-1", Max: 500, ReclaimIdle: time.Minute}, outbox.reads[1], "only a restart resumes")
}

// The drill "worker crash": killed between commit and acknowledgement, 100 times.
func TestCrashBetweenCommitAndAck(t *testing.T) {
	t.Parallel()
	const crashes = 100
	outbox, ledger := newOutbox(entries(7)...), newLedger()
	for range crashes {
		w := newWorker(t, options(outbox, ledger, &fakeStore{}))
		ctx, kill := context.WithCancel(t.Context())
		outbox.set(func(f *fakeOutbox) {
			f.onAck = func() error { kill(); return context.Canceled }
		})
		_, err := w.drainBatch(ctx)
		require.ErrorIs(t, err, context.Canceled)
		outbox.forget()
		require.Equal(t, 7, outbox.len(), "nothing was acknowledged")
	}
	outbox.set(func(f *fakeOutbox) { f.onAck = nil })
	w := newWorker(t, options(outbox, ledger, &fakeStore{}))
	n, err := w.drainBatch(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 7, n)
	assert.Equal(t, 7, ledger.len(), "no double row")
	assert.Equal(t, crashes+1, ledger.callCount())
	assert.Zero(t, outbox.len())
	assert.Empty(t, outbox.deadLetters(), "many deliveries alone condemn nobody")
	assert.Zero(t, testutil.ToFloat64(w.metrics.written))
	assert.InDelta(t, 7, testutil.ToFloat64(w.metrics.duplicates), 0)
}

// The drill "poison record", for each kind of poison.
func TestPoisonIsSetAside(t *testing.T) {
	t.Parallel()
	broken := func(change func(*domain.UsageRecord)) domain.OutboxEntry {
		e := domain.OutboxEntry{Record: record("req_x")}
		change(&e.Record)
		return e
	}
	tests := []struct {
		name   string
		entry  domain.OutboxEntry
		reason string
	}{
		{name: "cannot be decoded", entry: domain.OutboxEntry{Err: errors.New("bad wire type")}, reason: "bad wire type"},
		{name: "rejected by the ledger", entry: domain.OutboxEntry{Record: record(poison)}, reason: "insert: ledger rejects the record"},
		{name: "no id", entry: broken(func(r *domain.UsageRecord) { r.RequestID = "" }), reason: "record has no request id"},
		{name: "outcome", entry: broken(func(r *domain.UsageRecord) { r.Outcome = "lost" }), reason: "record has an unknown outcome"},
		{name: "source", entry: broken(func(r *domain.UsageRecord) { r.Source = "" }), reason: "record has an unknown source"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			good := entries(4)
			outbox, ledger := newOutbox(good[0], good[1], tt.entry, good[2], good[3]), newLedger()
			w := newWorker(t, options(outbox, ledger, &fakeStore{}))
			for delivery := 1; delivery <= 5; delivery++ {
				assert.Empty(t, outbox.deadLetters(), "before delivery %d", delivery)
				_, err := w.drainBatch(t.Context())
				require.NoError(t, err)
				assert.Equal(t, 4, ledger.len(), "the others flow at once")
				outbox.forget()
			}
			assert.Equal(t, map[string]string{"3-0": tt.reason}, outbox.deadLetters())
			assert.Zero(t, outbox.len())
			assert.InDelta(t, 1, testutil.ToFloat64(w.metrics.deadLetters), 0)
		})
	}
}

// The drill "database away": nothing is lost, nothing acknowledged early.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	outbox, ledger := newOutbox(entries(20)...), newLedger()
	ledger.set(errAway)
	opts := options(outbox, ledger, &fakeStore{})
	opts.Health = telemetry.NewHealth(telemetry.HealthOptions{})
	w := newWorker(t, opts)
	stop := start(t, w)
	defer stop()
	eventually(t, func() bool { return ledger.callCount() > 10 }, "it keeps trying")
	assert.Equal(t, 20, outbox.len())
	require.ErrorContains(t, opts.Health.Ready(), "ledger: away")
	for _, e := range entries(20) {
		e.Record.RequestID += "_later"
		outbox.add(e)
	}
	ledger.set(nil)
	eventually(t, func() bool { return outbox.len() == 0 }, "it catches up")
	stop()
	assert.Equal(t, 40, ledger.len())
	assert.Empty(t, outbox.deadLetters())
	require.NoError(t, opts.Health.Ready())
	assert.Greater(t, testutil.ToFloat64(w.metrics.errors.WithLabelValues("append")), 10.0)
}

func TestStoreAway(t *testing.T) {
	t.Parallel()
	outbox, ledger := newOutbox(entries(3)...), newLedger()
	outbox.set(func(f *fakeOutbox) { f.ackErr = errAway })
	opts := options(outbox, ledger, &fakeStore{})
	w := newWorker(t, opts)
	stop := start(t, w)
	defer stop()
	acks := func() float64 { return testutil.ToFloat64(w.metrics.errors.WithLabelValues("ack_outbox")) }
	reads := func() float64 { return testutil.ToFloat64(w.metrics.errors.WithLabelValues("read_outbox")) }
	eventually(t, func() bool { return acks() > 3 }, "the acknowledgement is tried again")
	assert.Equal(t, 1, ledger.callCount(), "without writing again")
	outbox.set(func(f *fakeOutbox) { f.ackErr, f.readErr = nil, errAway })
	eventually(t, func() bool { return reads() > 3 }, "so is the read")
	outbox.set(func(f *fakeOutbox) { f.readErr = nil })
	eventually(t, func() bool { return outbox.len() == 0 }, "it goes on")
}

func TestStopDrainsTheRest(t *testing.T) {
	t.Parallel()
	outbox, ledger := newOutbox(), newLedger()
	opts := options(outbox, ledger, &fakeStore{})
	opts.PollInterval = time.Hour // only the final drain can see what comes now
	w := newWorker(t, opts)
	stop := start(t, w)
	eventually(t, func() bool {
		outbox.mu.Lock()
		defer outbox.mu.Unlock()
		return len(outbox.reads) > 0
	}, "the first look")
	for _, e := range entries(1100) {
		outbox.add(e)
	}
	stop()
	assert.Equal(t, 1100, ledger.len())
	assert.Zero(t, outbox.len())
}

func TestStopEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	outbox, ledger := newOutbox(entries(3)...), newLedger()
	ledger.set(errAway)
	opts := options(outbox, ledger, &fakeStore{})
	opts.StopLimit = 10 * time.Millisecond
	stop := start(t, newWorker(t, opts))
	eventually(t, func() bool { return ledger.callCount() > 0 }, "a batch is under way")
	stop() // returns, although the database never does
	assert.Equal(t, 3, outbox.len(), "what could not be written stays")
}

// A call that never answers is cut, so that it cannot stop the worker for good.
func TestHangingCallIsCut(t *testing.T) {
	t.Parallel()
	opts := options(newOutbox(entries(1)...), newLedger(), &fakeStore{})
	opts.Ledger = hangingLedger{}
	opts.CallLimit, opts.StopLimit = time.Millisecond, 10*time.Millisecond
	w := newWorker(t, opts)
	stop := start(t, w)
	eventually(t, func() bool { return testutil.ToFloat64(w.metrics.errors.WithLabelValues("append")) > 2 }, "it tries again")
	stop()
}

type hangingLedger struct{}

func (hangingLedger) Append(ctx context.Context, _ []domain.UsageRecord) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}
