package worker

import (
	"context"
	"log/slog"
	"time"

	"keyway/domain"
)

// Budgets is the regional store's view of what was spent.
type Budgets interface {
	Budgets(ctx context.Context) (domain.BudgetBook, error)
}

// BudgetSums is the ledger's view of the same.
type BudgetSums interface {
	// BudgetSums sums requests admitted at since or later, and tells which of
	// the given requests it has.
	BudgetSums(ctx context.Context, since time.Time, requests []string) (domain.BudgetSums, error)
	// Newest is when the newest record was settled, by the store's clock; zero when
	// nobody knows.
	Newest(ctx context.Context) (time.Time, error)
}

// compareBudgets keeps the gauges of drift until ctx ends. Store and ledger are
// read one after the other while requests go on, so a budget counts as drifted
// once two looks in a row found the same amount.
func (w *Worker) compareBudgets(ctx context.Context) {
	var suspects map[string]int64
	for pause(ctx, w.opts.DriftInterval) {
		compared, err := w.readDrift(ctx)
		if err != nil {
			continue // the last value stays; the health check tells why
		}
		found := make(map[string]int64)
		var drift int64
		for _, d := range compared {
			micros := d.Micros()
			if micros == 0 {
				continue
			}
			found[d.Name] = micros
			if suspects[d.Name] != micros {
				continue
			}
			drift += max(micros, -micros)
			w.opts.Logger.Error("budget counter differs from the ledger", slog.String("budget", d.Name),
				slog.Int64("drift_micros", micros), slog.Int64("counter_micros", d.Counter), slog.Int64("ledger_micros", d.Ledger))
		}
		suspects = found
		w.metrics.drift.Set(float64(drift))
		w.metrics.comparedBudgets.Set(float64(len(compared)))
	}
}

// readDrift compares the budgets of the current month.
func (w *Worker) readDrift(ctx context.Context) (compared []domain.BudgetDrift, err error) {
	var book domain.BudgetBook
	err = w.call(ctx, opBudgets, func(ctx context.Context) (err error) {
		book, err = w.opts.Budgets.Budgets(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = w.call(ctx, opBudgetSums, func(ctx context.Context) error {
		sums, err := w.opts.BudgetSums.BudgetSums(ctx, domain.MonthBegin(w.opts.Now()), book.PendingRequests())
		compared = book.Compare(sums)
		return err
	})
	return compared, err
}
