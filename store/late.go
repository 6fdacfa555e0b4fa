package store

import (
	"context"
	"errors"
	"fmt"

	"keyway/domain"
)

// AdmitLate charges every hold of a request that went out while the store was
// away, whatever the limits say, because it did go out; it takes no slot. The
// request is open from now on, and is swept like any other. Idempotent: a request
// that is charged already, or has ended, stays as it is, so it does not matter
// whether its settlement was here first. Where windows have to be rebuilt first,
// it fails with domain.ErrStoreDown; with domain.ErrRefused where it never works.
func (s *Store) AdmitLate(ctx context.Context, d domain.Decision) error {
	if err := checkHolds(d.Holds); err != nil {
		return fmt.Errorf("admit late: %w: %w", domain.ErrRefused, err)
	}
	if d.Lease <= 0 {
		d.Lease = domain.DefaultLease
	}
	d.Candidates = withoutSlots(d.Candidates)
	calls, err := admitCalls(d, s.seen(domain.ShardOf(d.Identity)))
	if err != nil {
		return fmt.Errorf("admit late: %w: %w", domain.ErrRefused, err)
	}
	own, region := split(d.Identity, d.Holds)
	parts := []part{own, region}[:len(calls)]
	for i, p := range parts {
		boundless(calls[i], p.holds)
	}
	cmds := s.run(ctx, calls)
	for i, p := range parts {
		reply, err := cmds[i].Int64Slice()
		a, err := readAdmission(p.holds, reply, err)
		switch {
		case errors.Is(err, ErrClosed):
		case err != nil:
			return fmt.Errorf("admit late: %w", err)
		case a.BudgetsUnknown:
			return fmt.Errorf("admit late: budgets are unknown: %w", domain.ErrStoreDown)
		}
	}
	return nil
}

func withoutSlots(candidates []domain.Candidate) []domain.Candidate {
	out := make([]domain.Candidate, len(candidates))
	for i, c := range candidates {
		c.Slots = 0
		out[i] = c
	}
	return out
}

// boundless lets every bucket of a reserve call give what is asked.
func boundless(c call, holds []domain.Hold) {
	for i, h := range holds {
		at := argSeen + 1 + 5*i // class, limit, size, amount, ttl
		if classOf(h.Kind) == classRate {
			c.args[at+2] = maxRate
			continue
		}
		c.args[at+1], c.args[at+2] = maxBudget, maxBudget
	}
}
