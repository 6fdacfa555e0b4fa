package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

var errAway = errors.New("away")

// fakeOutbox delivers like the real one: at least once, an entry again as soon
// as forget has let its reader die.
type fakeOutbox struct {
	mu      sync.Mutex
	entries []*fakeEntry
	dead    map[string]string // reason by entry id
	readErr error
	ackErr  error
	onAck   func() error // before an acknowledgement; its error refuses it
	reads   []domain.OutboxRead
}

type fakeEntry struct {
	entry   domain.OutboxEntry
	pending bool
}

func newOutbox(entries ...domain.OutboxEntry) *fakeOutbox {
	f := &fakeOutbox{dead: make(map[string]string)}
	for _, e := range entries {
		f.add(e)
	}
	return f
}

func (f *fakeOutbox) add(e domain.OutboxEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.ID = fmt.Sprintf("%d-0", len(f.entries)+len(f.dead)+1)
	f.entries = append(f.entries, &fakeEntry{entry: e})
}

// forget makes what was read and not acknowledged ready to be read again.
func (f *fakeOutbox) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.entries {
		e.pending = false
	}
}

func (f *fakeOutbox) set(change func(*fakeOutbox)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeOutbox) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.entries)
}

func (f *fakeOutbox) deadLetters() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]string, len(f.dead))
	for id, reason := range f.dead {
		out[id] = reason
	}
	return out
}

func (f *fakeOutbox) ReadOutbox(ctx context.Context, r domain.OutboxRead) ([]domain.OutboxEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads = append(f.reads, r)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if f.readErr != nil {
		return nil, f.readErr
	}
	var out []domain.OutboxEntry
	for _, e := range f.entries {
		if e.pending || len(out) == r.Max {
			continue
		}
		e.pending = true
		e.entry.Deliveries++
		out = append(out, e.entry)
	}
	return out, nil
}

func (f *fakeOutbox) AckOutbox(ctx context.Context, entries []domain.OutboxEntry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if f.onAck != nil {
		if err := f.onAck(); err != nil {
			return err
		}
	}
	if f.ackErr != nil {
		return f.ackErr
	}
	for _, e := range entries {
		f.remove(e.ID)
	}
	return nil
}

func (f *fakeOutbox) DeadLetter(_ context.Context, e domain.OutboxEntry, reason string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead[e.ID] = reason
	f.remove(e.ID)
	return nil
}

func (f *fakeOutbox) remove(id string) {
	f.entries = slices.DeleteFunc(f.entries, func(e *fakeEntry) bool { return e.entry.ID == id })
}

// fakeLedger keeps what it has by request id and refuses like a database.
type fakeLedger struct {
	mu      sync.Mutex
	rows    map[string]domain.UsageRecord
	batches []int // sizes of the transactions that committed
	err     error
	calls   int
}

func newLedger() *fakeLedger { return &fakeLedger{rows: make(map[string]domain.UsageRecord)} }

// poison is a request id that the ledger rejects.
const poison = "req_poison"

func (f *fakeLedger) Append(ctx context.Context, recs []domain.UsageRecord) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if f.err != nil {
		return 0, f.err
	}
	for _, r := range recs {
		if r.RequestID == poison {
			return 0, fmt.Errorf("insert: %w", domain.ErrRejected)
		}
	}
	n := 0
	for _, r := range recs {
		if _, have := f.rows[r.RequestID]; !have {
			f.rows[r.RequestID] = r
			n++
		}
	}
	f.batches = append(f.batches, len(recs))
	return n, nil
}

func (f *fakeLedger) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeLedger) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.rows)
}

func (f *fakeLedger) callCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// fakeStore holds expired reservations and the statistics.
type fakeStore struct {
	mu      sync.Mutex
	expired []domain.ExpiredReservation
	settled []domain.Settlement
	results map[string]domain.SettleResult // by request id; default SettleDone
	failing map[string]bool                // request ids whose settle fails
	err     error
	stats   domain.StoreStats
}

func (f *fakeStore) Expired(_ context.Context, limit int) ([]domain.ExpiredReservation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.expired[:min(limit, len(f.expired))]), f.err
}

func (f *fakeStore) Settle(_ context.Context, s domain.Settlement) (domain.SettleResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := s.Decision.RequestID
	if f.failing[id] {
		return 0, errAway
	}
	f.settled = append(f.settled, s)
	f.expired = slices.DeleteFunc(f.expired, func(e domain.ExpiredReservation) bool { return e.Decision.RequestID == id })
	return f.results[id], nil
}

func (f *fakeStore) Stats(context.Context) (domain.StoreStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats, f.err
}

func (f *fakeStore) settledCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.settled)
}

func record(id string) domain.UsageRecord {
	return domain.UsageRecord{RequestID: id, Outcome: domain.OutcomeSuccess, Source: domain.SourceUpstream, CostMicros: 1}
}

func entries(n int) []domain.OutboxEntry {
	out := make([]domain.OutboxEntry, n)
	for i := range out {
		out[i].Record = record(fmt.Sprintf("req_%03d", i))
	}
	return out
}

// options joins the fakes, with pauses that do not hold a test up.
func options(o *fakeOutbox, l *fakeLedger, s *fakeStore) Options {
	return Options{
		Outbox: o, Ledger: l, Reservations: s, Stats: s, Consumer: "worker-1", Registerer: prometheus.NewRegistry(),
		PollInterval: time.Millisecond, SweepInterval: time.Millisecond, SweepGrace: time.Millisecond, StatsInterval: time.Millisecond,
		BackoffMin: time.Millisecond, BackoffMax: time.Millisecond,
	}
}

func newWorker(t *testing.T, o Options) *Worker {
	t.Helper()
	w, err := New(o)
	require.NoError(t, err)
	return w
}

// start runs w and returns the func that stops it and waits.
func start(t *testing.T, w *Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// eventually polls for up to half a minute: long for a busy machine, and only
// a failing test waits for it.
func eventually(t *testing.T, cond func() bool, what string) {
	t.Helper()
	require.Eventually(t, cond, 30*time.Second, time.Millisecond, what)
}
