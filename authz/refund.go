package authz

import (
	"context"
	"log/slog"
	"time"

	"keyway/domain"
)

const (
	// maxRefunds bounds the refunds that wait for the store; beyond it a hold
	// is left to the sweeper, which ends it within its lease.
	maxRefunds = 10_000
	// refundPause is how long a refund waits after the store did not answer.
	refundPause = 200 * time.Millisecond
)

// refunds gives back holds of which nobody knows whether they were taken: the
// store stopped answering in the middle of a reserve.
type refunds struct {
	queue        chan domain.Decision
	reservations Reservations
	logger       *slog.Logger
	dropped      func()
}

func newRefunds(r Reservations, logger *slog.Logger, dropped func()) *refunds {
	return &refunds{queue: make(chan domain.Decision, maxRefunds), reservations: r, logger: logger, dropped: dropped}
}

// add never blocks the request that failed.
func (r *refunds) add(d domain.Decision) {
	select {
	case r.queue <- d:
	default:
		r.dropped()
	}
}

// run refunds until ctx ends, then empties the queue as far as the store answers at once.
func (r *refunds) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			r.flush()
			return
		case d := <-r.queue:
			r.refund(ctx, d)
		}
	}
}

func (r *refunds) refund(ctx context.Context, d domain.Decision) {
	for {
		err := r.reservations.Refund(ctx, d)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			r.add(d)
			return
		case <-time.After(refundPause):
		}
	}
}

func (r *refunds) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for {
		select {
		case d := <-r.queue:
			if err := r.reservations.Refund(ctx, d); err != nil {
				r.logger.Warn("refunds are left to the sweeper", "count", len(r.queue)+1, "error", err)
				return
			}
		default:
			return
		}
	}
}
