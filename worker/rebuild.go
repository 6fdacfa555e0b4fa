package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"keyway/domain"
	"keyway/telemetry"
)

// Generations is the regional store's knowledge of whether it has lost writes.
type Generations interface {
	// Advance says that the store is watched, and lists the shards that have lost
	// writes. written is when the newest record of the ledger was settled, by the
	// store's clock, or zero.
	Advance(ctx context.Context, written time.Time) (lost []int, err error)
	// Rebuild brings the windows of shards to what sums says of the ledger.
	Rebuild(ctx context.Context, shards []int, sums func(context.Context, []string) (domain.BudgetSums, error)) error
}

const (
	// checkBudgets is the health check that fails while windows count too little.
	checkBudgets = "budgets"
	// rebuildLimit bounds one rebuild, which sums a month of the ledger.
	rebuildLimit = 5 * time.Minute
)

var errBudgetsUnknown = errors.New("budgets are not rebuilt from the ledger yet")

// keepGenerations looks after the store's generations until ctx ends. A shard
// that has lost writes admits nothing that a window limits until it is rebuilt.
func (w *Worker) keepGenerations(ctx context.Context) {
	w.setHealth(checkBudgets, errBudgetsUnknown)
	pauses := w.newBackoff()
	var (
		started bool
		written time.Time
	)
	for {
		err := w.advance(ctx, &started, &written)
		switch {
		case err != nil && !pauses.wait(ctx):
			return
		case err != nil:
			continue
		}
		pauses.reset()
		if !pause(ctx, w.opts.AdvanceInterval) {
			return
		}
	}
}

// advance looks once, and rebuilds what it finds lost. At the start it asks the
// ledger how new it is: nobody here has seen a generation yet.
func (w *Worker) advance(ctx context.Context, started *bool, written *time.Time) error {
	if !*started {
		err := w.call(ctx, opNewest, func(ctx context.Context) (err error) {
			*written, err = w.opts.BudgetSums.Newest(ctx)
			return err
		})
		if err != nil {
			return err
		}
	}
	var lost []int
	err := w.call(ctx, opAdvance, func(ctx context.Context) (err error) {
		lost, err = w.opts.Generations.Advance(ctx, *written)
		return err
	})
	if len(lost) > 0 {
		w.metrics.lostShards.Set(float64(len(lost)))
		w.setHealth(checkBudgets, errBudgetsUnknown)
		err = errors.Join(err, w.rebuild(ctx, lost))
	}
	if err != nil {
		return err
	}
	*started, *written = true, time.Time{}
	w.metrics.lostShards.Set(0)
	w.setHealth(checkBudgets, nil)
	return nil
}

// rebuild waits until no batch is between store and ledger, so that each of its
// records is in one of them.
func (w *Worker) rebuild(ctx context.Context, lost []int) error {
	w.opts.Logger.Warn("the store has no budgets, or has lost writes; budgeted requests are refused until they are rebuilt from the ledger",
		slog.Int("shards", len(lost)))
	w.batch.Lock()
	defer w.batch.Unlock()
	began := time.Now()
	if w.opts.Credits != nil {
		// A balance without what was paid in would be refused as empty.
		if err := w.carryOnce(ctx); err != nil {
			return err
		}
	}
	sums := func(ctx context.Context, requests []string) (sums domain.BudgetSums, err error) {
		err = w.callFor(ctx, rebuildLimit, opBudgetSums, func(ctx context.Context) (err error) {
			sums, err = w.opts.BudgetSums.BudgetSums(ctx, domain.RebuildBegin(w.opts.Now()), requests)
			return err
		})
		return sums, err
	}
	err := w.callFor(ctx, rebuildLimit, opRebuild, func(ctx context.Context) error {
		return w.opts.Generations.Rebuild(ctx, lost, sums)
	})
	if err != nil {
		w.opts.Logger.Error("budgets are not rebuilt", slog.Int("shards", len(lost)), telemetry.Err(err))
		return err
	}
	w.metrics.rebuilt.Add(float64(len(lost)))
	w.opts.Logger.Info("budgets rebuilt from the ledger", slog.Int("shards", len(lost)), slog.Duration("took", time.Since(began)))
	return nil
}

func (w *Worker) setHealth(check string, err error) {
	if w.opts.Health != nil {
		w.opts.Health.Set(check, err)
	}
}
