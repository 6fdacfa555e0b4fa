package worker

import (
	"context"

	"keyway/domain"
)

// Credits is the ledger's view of what was paid in.
type Credits interface {
	// Credits sums what was paid in by each identity that has an entry after the
	// one given; 0 is all of them.
	Credits(ctx context.Context, after int64) ([]domain.Credit, error)
}

// CreditStore is where admissions look it up.
type CreditStore interface {
	// CreditMark is the entry of the ledger up to which the store knows all; 0
	// when it has lost any.
	CreditMark(ctx context.Context) (entry int64, err error)
	// SetCredits brings sums, and then moves the mark to entry. What is older
	// than the store's changes nothing.
	SetCredits(ctx context.Context, credits []domain.Credit, entry int64) error
}

// carryCredits brings what was paid in to the store until ctx ends. The ledger is
// written first, by whoever takes the money, and this is the only way from there:
// a top-up whose writer died, and a store that lost its data, need nothing else.
func (w *Worker) carryCredits(ctx context.Context) {
	pauses := w.newBackoff()
	for {
		if err := w.carryOnce(ctx); err != nil {
			if !pauses.wait(ctx) {
				return
			}
			continue
		}
		pauses.reset()
		if !pause(ctx, w.opts.CreditInterval) {
			return
		}
	}
}

func (w *Worker) carryOnce(ctx context.Context) error {
	var mark int64
	err := w.call(ctx, opCreditMark, func(ctx context.Context) (err error) {
		mark, err = w.opts.CreditStore.CreditMark(ctx)
		return err
	})
	if err != nil {
		return err
	}
	var credits []domain.Credit
	err = w.call(ctx, opCredits, func(ctx context.Context) (err error) {
		credits, err = w.opts.Credits.Credits(ctx, mark)
		return err
	})
	if err != nil || len(credits) == 0 {
		return err
	}
	for _, c := range credits {
		mark = max(mark, c.Entry)
	}
	err = w.call(ctx, opSetCredits, func(ctx context.Context) error { return w.opts.CreditStore.SetCredits(ctx, credits, mark) })
	if err == nil {
		w.metrics.credits.Add(float64(len(credits)))
	}
	return err
}
