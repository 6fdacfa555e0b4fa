package worker

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/telemetry/telemetrytest"
)

func TestNewNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := New(Options{})
	for _, name := range []string{"Outbox", "Ledger", "Reservations", "Stats", "Consumer", "Registerer"} {
		require.ErrorContains(t, err, name)
	}
}

func TestNewRefusesTwoOnOneRegistry(t *testing.T) {
	t.Parallel()
	opts := options(newOutbox(), newLedger(), &fakeStore{})
	newWorker(t, opts)
	_, err := New(opts)
	require.ErrorContains(t, err, "register worker metrics")
}

func TestMetricsAreClean(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	opts := options(newOutbox(), newLedger(), &fakeStore{})
	opts.Registerer = reg
	newWorker(t, opts)
	telemetrytest.Lint(t, reg)
	n, err := testutil.GatherAndCount(reg)
	require.NoError(t, err)
	assert.Equal(t, 12+len(operations)+len(sweepResults), n, "every series is there before its first event")
}

func TestGaugesFollowTheStore(t *testing.T) {
	t.Parallel()
	store := &fakeStore{stats: domain.StoreStats{OpenReservations: 3, OutboxLen: 4, OutboxOldest: 1500 * time.Millisecond}}
	w := newWorker(t, options(newOutbox(), newLedger(), store))
	stop := start(t, w)
	defer stop()
	eventually(t, func() bool { return testutil.ToFloat64(w.metrics.outboxAge) == 1.5 }, "the first reading")
	stop()
	assert.InDelta(t, 3, testutil.ToFloat64(w.metrics.openReservations), 0)
	assert.InDelta(t, 4, testutil.ToFloat64(w.metrics.outboxEntries), 0)
}

func TestBackoffGrowsToItsBound(t *testing.T) {
	t.Parallel()
	b := &backoff{next: 1, least: 1, most: 5}
	var got []time.Duration
	for range 5 {
		got = append(got, b.next)
		require.True(t, b.wait(t.Context()))
	}
	assert.Equal(t, []time.Duration{1, 2, 4, 5, 5}, got)
	b.reset()
	assert.Equal(t, time.Duration(1), b.next)
}
