package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"keyway/domain"
	"keyway/lua"
)

// leaseBatch is how many leases of rates, or notes of requests, go into one pipeline.
const leaseBatch = 256

// LeaseRates takes tokens out of rate buckets for a replica that gives them out
// itself, or puts back what it did not need; the answers are in the order of
// wishes. It is not idempotent: what an error leaves unknown counts as nothing
// taken, or all put back, and must not be asked for again as if it were the same.
// The answer to a wish that failed is zero; the others are good beside an error.
func (s *Store) LeaseRates(ctx context.Context, wishes []domain.RateWish) ([]domain.RateLease, error) {
	leases := make([]domain.RateLease, len(wishes))
	var failed error
	for at := 0; at < len(wishes); at += leaseBatch {
		batch := wishes[at:min(at+leaseBatch, len(wishes))]
		calls := make([]call, len(batch))
		for i, w := range batch {
			calls[i] = leaseCall(w)
		}
		for i, cmd := range s.run(ctx, calls) {
			reply, err := cmd.Int64Slice()
			if err == nil && len(reply) != 3 {
				err = fmt.Errorf("the script answered %d numbers", len(reply))
			}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("lease rates: %w", err))
				continue
			}
			leases[at+i] = domain.RateLease{Granted: reply[0], Left: reply[1], Wait: time.Duration(reply[2]) * time.Millisecond}
		}
	}
	return leases, failed
}

func leaseCall(w domain.RateWish) call {
	limit, size := rateOf(w.Hold)
	return call{
		script: lua.LeaseTake,
		keys:   []string{bucketKey(w.Identity, w.Hold)},
		args:   []any{limit, size, min(max(w.Want, -maxRate), maxRate)},
	}
}

// Note writes the reservations of requests that went out on leased rates alone,
// so that the sweeper finds the ones that nobody settles. Idempotent; a request
// that has ended by now stays as it is.
func (s *Store) Note(ctx context.Context, decisions []domain.Decision) error {
	for len(decisions) > 0 {
		batch := decisions[:min(len(decisions), leaseBatch)]
		decisions = decisions[len(batch):]
		calls := make([]call, len(batch))
		for i, d := range batch {
			raw, err := encodeDecision(d)
			if err != nil {
				return fmt.Errorf("note requests: %w", err)
			}
			if d.Lease <= 0 {
				d.Lease = domain.DefaultLease
			}
			own, _ := split(d.Identity, d.Holds)
			calls[i] = reserveCall(own, d, raw, 0) // it has no windows
		}
		if err := firstError(s.run(ctx, calls)); err != nil {
			return fmt.Errorf("note requests: %w", err)
		}
	}
	return nil
}

// correctLeased adds to the settlement of d what corrects the buckets whose
// amounts came out of a lease. They come behind those that were reserved.
func correctLeased(c *call, d domain.Decision, used func(domain.Hold) int64) {
	for _, h := range d.Holds {
		if h.Leased {
			limit, _ := rateOf(h)
			c.keys = append(c.keys, bucketKey(d.Identity, h))
			c.args = append(c.args, classLent, used(h)-h.Amount, limit)
		}
	}
}
