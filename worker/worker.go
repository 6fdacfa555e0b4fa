package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"keyway/domain"
	"keyway/telemetry"
)

// Outbox is the regional store's queue of settlements. It delivers at least once.
type Outbox interface {
	// ReadOutbox returns entries never delivered before, and those that have
	// waited unacknowledged for r.ReclaimIdle, r.Max at most; none is no error.
	ReadOutbox(ctx context.Context, r domain.OutboxRead) ([]domain.OutboxEntry, error)
	// AckOutbox removes the entries for good.
	AckOutbox(ctx context.Context, entries []domain.OutboxEntry) error
	// DeadLetter moves an entry out of the way, to where people look at it.
	DeadLetter(ctx context.Context, entry domain.OutboxEntry, reason string) error
}

// Ledger is where settlements end.
type Ledger interface {
	// Append writes recs in one transaction and passes over those it has. An
	// error that wraps domain.ErrRejected blames a record.
	Append(ctx context.Context, recs []domain.UsageRecord) (inserted int, err error)
}

// Reservations is the regional store's book of what is held.
type Reservations interface {
	// Expired returns reservations whose lease ended unsettled, max at most.
	Expired(ctx context.Context, max int) ([]domain.ExpiredReservation, error)
	// Settle ends one; it is idempotent, and a settled one is no longer expired.
	Settle(ctx context.Context, s domain.Settlement) (domain.SettleResult, error)
}

// Stats tells how much the regional store holds.
type Stats interface {
	Stats(ctx context.Context) (domain.StoreStats, error)
}

// Options of New. Outbox, Ledger, Reservations, Stats, Consumer and Registerer
// are required; another zero field takes its default.
type Options struct {
	Outbox       Outbox
	Ledger       Ledger
	Reservations Reservations
	Stats        Stats
	// Budgets and BudgetSums are compared every DriftInterval; without Budgets
	// nothing is compared.
	Budgets    Budgets
	BudgetSums BudgetSums
	// Credits and CreditStore join what was paid in, from the ledger to the store,
	// every CreditInterval; nil, both of them, carries nothing.
	Credits     Credits
	CreditStore CreditStore
	// Generations are looked after every AdvanceInterval, with BudgetSums to
	// rebuild what was lost; nil looks after none.
	Generations Generations
	// Consumer is the stable name of this instance: after a restart under the
	// same name it owns what it had read before.
	Consumer   string
	Registerer prometheus.Registerer
	// Logger defaults to one that discards.
	Logger *slog.Logger
	// Health gets the checks "store" and "ledger"; nil for none.
	Health *telemetry.Health

	// Batch is how many records one transaction holds at most; default 500.
	Batch int
	// PollInterval is the pause after the outbox was found empty; default 250 ms.
	PollInterval time.Duration
	// ReclaimIdle is how long an entry of a dead consumer waits; default 60 s.
	// It must be well above the time one batch takes.
	ReclaimIdle time.Duration
	// MaxDeliveries is the delivery after which an entry that cannot be
	// written is dead-lettered; default 5.
	MaxDeliveries int64
	// SweepInterval between two looks for expired reservations; default 1 s.
	SweepInterval time.Duration
	// SweepGrace is how long owners may renew or settle what has expired once
	// the store answers, at the start and after it was away; default 5 s. Without
	// it the sweeper would be first, and what was really used would be lost.
	SweepGrace time.Duration
	// StatsInterval between two readings of the store's size; default 5 s.
	StatsInterval time.Duration
	// DriftInterval between two comparisons of the budgets; default 5 min. Each
	// scans the store and sums a month of the ledger.
	DriftInterval time.Duration
	// CreditInterval between two looks for top-ups; default 250 ms.
	CreditInterval time.Duration
	// AdvanceInterval between two looks whether the store has lost writes;
	// default 1 s. What was written since the last look may be lost unseen.
	AdvanceInterval time.Duration
	// CallLimit bounds one call of the store or the ledger; default 30 s.
	CallLimit time.Duration
	// BackoffMin and BackoffMax bound the growing pause after a failure;
	// default 100 ms and 5 s.
	BackoffMin, BackoffMax time.Duration
	// StopLimit is how long the final drain may take once Run is told to stop;
	// default 10 s. What it leaves stays in the outbox.
	StopLimit time.Duration
	// Now is the clock of the records this worker makes; default time.Now.
	Now func() time.Time
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Batch <= 0 {
		o.Batch = 500
	}
	if o.MaxDeliveries <= 0 {
		o.MaxDeliveries = 5
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.PollInterval, 250 * time.Millisecond},
		{&o.ReclaimIdle, time.Minute},
		{&o.SweepInterval, time.Second},
		{&o.SweepGrace, 5 * time.Second},
		{&o.StatsInterval, 5 * time.Second},
		{&o.DriftInterval, 5 * time.Minute},
		{&o.CreditInterval, 250 * time.Millisecond},
		{&o.AdvanceInterval, time.Second},
		{&o.CallLimit, 30 * time.Second},
		{&o.BackoffMin, 100 * time.Millisecond},
		{&o.BackoffMax, 5 * time.Second},
		{&o.StopLimit, 10 * time.Second},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
}

func (o *Options) validate() error {
	var errs []error
	for _, need := range []struct {
		name string
		ok   bool
	}{
		{"Outbox", o.Outbox != nil},
		{"Ledger", o.Ledger != nil},
		{"Reservations", o.Reservations != nil},
		{"Stats", o.Stats != nil},
		{"Consumer", o.Consumer != ""},
		{"Registerer", o.Registerer != nil},
	} {
		if !need.ok {
			errs = append(errs, fmt.Errorf("worker option %s is missing", need.name))
		}
	}
	if o.Budgets != nil && o.BudgetSums == nil {
		errs = append(errs, errors.New("worker option Budgets needs BudgetSums"))
	}
	if o.Generations != nil && o.BudgetSums == nil {
		errs = append(errs, errors.New("worker option Generations needs BudgetSums"))
	}
	if (o.Credits == nil) != (o.CreditStore == nil) {
		errs = append(errs, errors.New("worker options Credits and CreditStore go together"))
	}
	return errors.Join(errs...)
}

// Worker is the service. Its loops share nothing but what Options holds, and batch.
type Worker struct {
	opts    Options
	metrics *metrics

	// resumed is true once the outbox was read; confined to drain.
	resumed bool
	// failing holds the operations whose last call failed.
	failing sync.Map
	// batch is held while records are between outbox and ledger.
	batch sync.Mutex
}

// New returns a Worker that has done no I/O yet. The errors are missing
// options and metrics that are registered already.
func New(o Options) (*Worker, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register worker metrics: %w", err)
	}
	return &Worker{opts: o, metrics: m}, nil
}

// Run works until ctx ends. Then the sweeper stops at once, so that it adds
// nothing more, and the drain finishes its batch and empties the outbox, for
// StopLimit at most. Stop the services that settle first. Failures of store
// and ledger are retried, never returned: the error is always nil.
func (w *Worker) Run(ctx context.Context) error {
	var g errgroup.Group
	swept := make(chan struct{})
	g.Go(func() error { defer close(swept); w.sweep(ctx); return nil })
	g.Go(func() error { w.watch(ctx); return nil })
	if w.opts.Budgets != nil {
		g.Go(func() error { w.compareBudgets(ctx); return nil })
	}
	if w.opts.Credits != nil {
		g.Go(func() error { w.carryCredits(ctx); return nil })
	}
	if w.opts.Generations != nil {
		g.Go(func() error { w.keepGenerations(ctx); return nil })
	}
	g.Go(func() error { w.drain(ctx, swept); return nil })
	return g.Wait()
}

// call runs one call of the store or the ledger with a deadline of its own.
// Its failure is counted under op, becomes the state of the health check that op
// speaks for, and is logged when the call before it did not fail: what is tried
// again and again says so once.
func (w *Worker) call(ctx context.Context, op operation, do func(context.Context) error) error {
	return w.callFor(ctx, w.opts.CallLimit, op, do)
}

// callFor is call with a deadline that is not CallLimit.
func (w *Worker) callFor(ctx context.Context, limit time.Duration, op operation, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := do(ctx)
	if errors.Is(err, context.Canceled) {
		return err // we are being stopped; nobody has failed
	}
	if err != nil {
		w.metrics.errors.WithLabelValues(op.name).Inc()
		if _, known := w.failing.LoadOrStore(op, struct{}{}); !known {
			w.opts.Logger.Warn("worker call fails", slog.String("operation", op.name), telemetry.Err(err))
		}
	} else if _, was := w.failing.LoadAndDelete(op); was {
		w.opts.Logger.Info("worker call succeeds again", slog.String("operation", op.name))
	}
	health := err
	if errors.Is(err, domain.ErrRejected) {
		health = nil // it answers; the record is at fault
	}
	w.setHealth(op.check, health)
	return err
}

// backoff is a pause that doubles with every failure in a row.
type backoff struct{ next, least, most time.Duration }

func (w *Worker) newBackoff() *backoff {
	return &backoff{next: w.opts.BackoffMin, least: w.opts.BackoffMin, most: w.opts.BackoffMax}
}

func (b *backoff) reset() { b.next = b.least }

// wait pauses and reports whether ctx is still alive.
func (b *backoff) wait(ctx context.Context) bool {
	d := b.next
	b.next = min(2*b.next, b.most)
	return pause(ctx, d)
}

// pause waits for d and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
