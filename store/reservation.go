package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
)

// ErrClosed says that the reservation that was asked for had been settled or refunded
// before, so this call came late and charged nothing.
var ErrClosed = errors.New("the request was closed before")

// Status values of the reserve script.
const (
	reserveCharged = 0
	reserveRefused = 1
	reserveClosed  = 2
	reserveUnknown = 3
)

// undoTimeout bounds the undoing of half an admission, which must happen even
// when the caller has left.
const undoTimeout = 500 * time.Millisecond

// Admit charges every hold of d and takes a slot of the first candidate that
// has one free, or does neither. Holds and first slot go in one round trip; only
// a refusal of one part and a full channel cost another. Repeating a successful
// call charges nothing.
//
// The holds of the identity are one script. Those of the region's own buckets
// and the slot are one each, because a cluster cannot join what lies on two
// nodes: when one part refuses, the others are given back. In between they are
// held, so that nothing is ever sold twice, and another request may be refused
// for a moment.
//
// After an error it is unknown whether anything is held; Refund makes sure
// that nothing is, and what nobody refunds ends with d.Lease and is swept.
func (s *Store) Admit(ctx context.Context, d domain.Decision) (domain.Admission, error) {
	if err := checkHolds(d.Holds); err != nil {
		return domain.Admission{}, fmt.Errorf("admit request: %w", err)
	}
	if d.RequestID == "" || len(d.Candidates) == 0 {
		return domain.Admission{}, errors.New("admit request: it has no id or no candidate")
	}
	if d.Lease <= 0 {
		d.Lease = domain.DefaultLease
	}
	calls, err := admitCalls(d, s.seen(domain.ShardOf(d.Identity)))
	if err != nil {
		return domain.Admission{}, fmt.Errorf("admit request: %w", err)
	}
	cmds := s.run(ctx, calls)
	admission, undo, err := s.readParts(d, cmds)
	admission = align(admission, d.Holds)
	switch {
	case err != nil:
	case admission.BudgetsUnknown:
		return domain.Admission{BudgetsUnknown: true}, s.undo(ctx, undo...)
	case admission.Refusal != nil:
		return admission, s.undo(ctx, undo...)
	case d.Candidates[0].Slots > 0:
		var held bool
		if held, err = readHeld(cmds[len(cmds)-1]); err == nil && !held {
			admission.Skipped, err = s.takeSlot(ctx, d)
		}
	}
	if errors.Is(err, errNoSlot) {
		// Every answer is known, so no copy of a call is under way: no tombstone.
		admission.Skipped, admission.SlotRefused = 0, true
		return admission, s.undo(ctx, closeCalls(d, closing{used: nothingUsed, forget: noTombstone})...)
	}
	if err != nil {
		s.undoHalf(ctx, d)
		return domain.Admission{}, fmt.Errorf("admit request: %w", err)
	}
	return admission, nil
}

// admitCalls are one for the identity's holds, one for the region's where there
// are any, and one for the slot of the first candidate where that is limited.
func admitCalls(d domain.Decision, seen int64) ([]call, error) {
	raw, err := encodeDecision(d)
	if err != nil {
		return nil, err
	}
	own, region := split(d.Identity, d.Holds)
	calls := []call{reserveCall(own, d, raw, seen)}
	if len(region.holds) > 0 {
		if raw, err = encodeDecision(regionOnly(d)); err != nil {
			return nil, err
		}
		calls = append(calls, reserveCall(region, d, raw, 0)) // it has no windows
	}
	if first := d.Candidates[0]; first.Slots > 0 {
		calls = append(calls, slotCall(first.Channel, d.RequestID, d.Lease, first.Slots))
	}
	return calls, nil
}

// readParts reads the answers about holds. Where one part refuses, undo gives
// back the rest; every answer is known then, so it leaves no tombstone.
func (s *Store) readParts(d domain.Decision, cmds []*redis.Cmd) (a domain.Admission, undo []call, err error) {
	own, region := split(d.Identity, d.Holds)
	parts := []part{own, region}
	if len(region.holds) == 0 {
		parts = parts[:1]
	}
	for i, p := range parts {
		reply, err := cmds[i].Int64Slice()
		one, err := readAdmission(p.holds, reply, err)
		if err != nil {
			return domain.Admission{}, nil, err
		}
		if i == 0 && !one.BudgetsUnknown {
			s.see(domain.ShardOf(d.Identity), reply[3])
		}
		a.Remaining, a.Reset = append(a.Remaining, one.Remaining...), append(a.Reset, one.Reset...)
		a.BudgetsUnknown = a.BudgetsUnknown || one.BudgetsUnknown
		if one.Refusal == nil && !one.BudgetsUnknown {
			undo = append(undo, closeCall(p, d, closing{used: nothingUsed, forget: noTombstone}))
		}
		a.Refusal = sooner(a.Refusal, one.Refusal)
	}
	if first := d.Candidates[0]; first.Slots > 0 {
		undo = append(undo, releaseCall(first.Channel, d.RequestID))
	}
	return a, undo, nil
}

// align puts what is known of the holds that were charged into the order of
// all; of those that came out of a lease nothing is.
func align(a domain.Admission, holds []domain.Hold) domain.Admission {
	if len(a.Remaining) == len(holds) {
		return a
	}
	remaining, reset := make([]int64, len(holds)), make([]time.Duration, len(holds))
	at := 0
	for i, h := range holds {
		if !h.Leased && at < len(a.Remaining) {
			remaining[i], reset[i] = a.Remaining[at], a.Reset[at]
			at++
		}
	}
	a.Remaining, a.Reset = remaining, reset
	return a
}

// sooner is the refusal that ends sooner; where waiting does not help one, it is that.
func sooner(a, b *domain.Refusal) *domain.Refusal {
	switch {
	case b == nil:
		return a
	case a == nil, a.RetryAfter > 0 && b.RetryAfter < a.RetryAfter: // also where b never ends, which is 0
		return b
	default:
		return a
	}
}

// errNoSlot: every candidate that may be the first has limited slots, and all
// are taken.
var errNoSlot = errors.New("no candidate has a free slot")

// takeSlot finds a slot behind the first candidate, which had none, and
// returns the index of the candidate that gave it. Those on trial are passed
// over: to be the first, they need a claim.
func (s *Store) takeSlot(ctx context.Context, d domain.Decision) (int, error) {
	for i, c := range d.Candidates[1:] {
		if c.Trial {
			continue
		}
		if c.Slots <= 0 {
			return i + 1, nil
		}
		held, err := readHeld(s.run(ctx, []call{slotCall(c.Channel, d.RequestID, d.Lease, c.Slots)})[0])
		if err != nil {
			return 0, err
		}
		if held {
			return i + 1, nil
		}
	}
	return 0, errNoSlot
}

// readAdmission turns the reply of the reserve script into nouns.
func readAdmission(holds []domain.Hold, reply []int64, err error) (domain.Admission, error) {
	if err != nil {
		return domain.Admission{}, err
	}
	if len(reply) > 0 && reply[0] == reserveClosed {
		return domain.Admission{}, ErrClosed
	}
	if len(reply) > 0 && reply[0] == reserveUnknown {
		return domain.Admission{BudgetsUnknown: true}, nil
	}
	if len(reply) != 4+2*len(holds) || reply[1] > int64(len(holds)) {
		return domain.Admission{}, fmt.Errorf("reserve answered %d numbers for %d holds", len(reply), len(holds))
	}
	a := domain.Admission{Remaining: make([]int64, len(holds)), Reset: make([]time.Duration, len(holds))}
	for i := range holds {
		a.Remaining[i], a.Reset[i] = reply[4+2*i], time.Duration(reply[5+2*i])*time.Millisecond
	}
	if reply[0] == reserveRefused {
		i := reply[1] - 1
		a.Refusal = &domain.Refusal{
			Kind: holds[i].Kind, Scope: holds[i].Scope, Limit: holds[i].Limit, Size: holds[i].Size(), Remaining: a.Remaining[i],
			RetryAfter: time.Duration(reply[2]) * time.Millisecond,
		}
	}
	return a, nil
}

// undo makes calls that must happen even when the caller has left.
func (s *Store) undo(ctx context.Context, calls ...call) error {
	if len(calls) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := firstError(s.run(ctx, calls)); err != nil {
		return fmt.Errorf("undo half an admission: %w", err)
	}
	return nil
}

// undoHalf tries once to give back what a failed admission may hold. It is
// for nothing when the store is away; then Refund, leases and the sweeper do it.
func (s *Store) undoHalf(ctx context.Context, d domain.Decision) {
	if s.Alive() {
		_ = s.undo(ctx, refundCalls(d)...)
	}
}

// Refund gives back everything that d may hold, the slot included, and writes
// no record. An Admit of the same request that arrives later, because it lay in
// the socket of a stopped server, is refused.
func (s *Store) Refund(ctx context.Context, d domain.Decision) error {
	if err := checkHolds(d.Holds); err != nil {
		return fmt.Errorf("refund request: %w", err)
	}
	if err := firstError(s.run(ctx, refundCalls(d))); err != nil {
		return fmt.Errorf("refund request: %w", err)
	}
	return nil
}

// Settle ends a reservation: buckets go from what was held to what was used,
// leases end, and the record lies in the outbox. All of it is one step except
// for the region's own buckets and the channel's slot, which follow in the same
// pipeline. It fails with domain.ErrRefused where it never works.
func (s *Store) Settle(ctx context.Context, settlement domain.Settlement) (domain.SettleResult, error) {
	d, record := settlement.Decision, settlement.Record
	if err := checkHolds(d.Holds); err != nil {
		return 0, fmt.Errorf("settle request: %w: %w", domain.ErrRefused, err)
	}
	if d.RequestID == "" || d.RequestID != record.RequestID {
		return 0, fmt.Errorf("settle request: %w: the record of %q does not belong to %q", domain.ErrRefused, record.RequestID, d.RequestID)
	}
	model := d.ModelOf(d.Last(record.Attempt))
	record.Budgets = budgetNames(chargedFor(d, model))
	raw, err := encodeRecord(record)
	if err != nil {
		return 0, fmt.Errorf("settle request: %w", err)
	}
	usedOf := func(h domain.Hold) int64 { return used(h, record, model) }
	told, err := toldOf(record)
	if err != nil {
		return 0, fmt.Errorf("settle request: %w", err)
	}
	calls := closeCalls(d, closing{record: raw, told: told, used: usedOf})
	correctLeased(&calls[0], d, usedOf)
	calls = append(calls, slotsOf(settlement)...)
	cmds := s.run(ctx, calls)
	if err := firstError(cmds); err != nil {
		return 0, fmt.Errorf("settle request: %w", err)
	}
	status, err := cmds[0].Int()
	if err != nil || status < 0 || status > int(domain.SettleUnknown) {
		return 0, fmt.Errorf("settle request: the script answered %v", cmds[0].Val())
	}
	return domain.SettleResult(status), nil
}

// slotsOf gives back the slot of a settlement's channel, and those of attempts
// before: one that was followed by a native attempt still has its own.
func slotsOf(s domain.Settlement) []call {
	var calls []call
	candidates := s.Decision.Candidates
	for _, c := range candidates[:min(max(s.Record.Attempt-1, 0), len(candidates))] {
		if c.Slots > 0 && c.Channel != s.Channel {
			calls = append(calls, releaseCall(c.Channel, s.Decision.RequestID))
		}
	}
	if s.Channel != "" {
		calls = append(calls, releaseCall(s.Channel, s.Decision.RequestID))
	}
	return calls
}
