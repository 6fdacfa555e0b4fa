package store

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
	"keyway/lua"
)

// Limits of the slot script that are no numbers of slots.
const (
	slotAlways int64 = 0  // take one even when all are taken
	slotKeep   int64 = -1 // only move the end of the one that is held
)

// Answers of the renew script.
const (
	renewDone    = 1
	renewUnknown = 2
)

// renewBatch is how many leases go into one pipeline.
const renewBatch = 256

func slotCall(channel, request string, lease time.Duration, limit int64) call {
	return call{script: lua.SlotAcquire, keys: []string{slotKey(channel)}, args: []any{request, lease.Milliseconds(), limit}}
}

func releaseCall(channel, request string) call {
	return call{script: lua.SlotRelease, keys: []string{slotKey(channel)}, args: []any{request}}
}

// renewCalls are one for the identity's leases and, where the request holds
// anything of the region, one for that.
func renewCalls(l domain.Lease) []call {
	own, region := split(l.Identity, l.Holds)
	calls := []call{renewCall(own, l)}
	if len(region.holds) > 0 {
		calls = append(calls, renewCall(region, l))
	}
	return calls
}

func renewCall(p part, l domain.Lease) call {
	c := call{
		script: lua.Renew,
		keys:   []string{p.reservation(l.RequestID), p.open()},
		args:   []any{l.RequestID, l.TTL.Milliseconds(), p.keep.Milliseconds()},
	}
	for _, h := range p.holds {
		if h.Kind == domain.LimitInFlight {
			c.keys = append(c.keys, bucketKey(l.Identity, h))
		}
	}
	return c
}

// readHeld reads the answer of slotCall.
func readHeld(cmd *redis.Cmd) (bool, error) {
	held, err := cmd.Int64()
	if err != nil {
		return false, fmt.Errorf("take slot: %w", err)
	}
	return held == 1, nil
}

// Renew keeps running requests alive: their leases, their slots and their
// reservations. The answers are in the order of leases; false says that the
// request has ended, or that nobody knows one that is not Unreserved. What was lost
// meanwhile is taken again, even over the limit: the requests do run. After an error no answer is given, and
// some may have been renewed.
func (s *Store) Renew(ctx context.Context, leases []domain.Lease) ([]bool, error) {
	open := make([]bool, 0, len(leases))
	for len(leases) > 0 {
		batch := leases[:min(len(leases), renewBatch)]
		leases = leases[len(batch):]
		some, err := s.renewBatch(ctx, batch)
		if err != nil {
			return nil, fmt.Errorf("renew leases: %w", err)
		}
		open = append(open, some...)
	}
	return open, nil
}

// renewBatch renews each slot before its reservation. A settlement closes the
// reservation before it gives up the slot, so a slot found missing under a
// reservation found open was lost, not given up.
func (s *Store) renewBatch(ctx context.Context, leases []domain.Lease) ([]bool, error) {
	var (
		calls []call
		ends  []int // behind the calls of each lease
	)
	for _, l := range leases {
		if l.TTL <= 0 {
			return nil, fmt.Errorf("lease of %s has no duration", l.RequestID)
		}
		if l.Channel != "" {
			calls = append(calls, slotCall(l.Channel, l.RequestID, l.TTL, slotKeep))
		}
		calls = append(calls, renewCalls(l)...)
		ends = append(ends, len(calls))
	}
	cmds := s.run(ctx, calls)
	if err := firstError(cmds); err != nil {
		return nil, err
	}
	open := make([]bool, len(leases))
	var lost []call
	at := 0
	for i, l := range leases {
		slot := int64(1)
		if l.Channel != "" {
			slot, _ = cmds[at].Int64()
			at++
		}
		renewed, _ := cmds[at].Int64() // the identity's answer is that of the whole
		open[i], at = renewed == renewDone || renewed == renewUnknown && l.Unreserved, ends[i]
		if renewed == renewDone && slot == 0 {
			lost = append(lost, slotCall(l.Channel, l.RequestID, l.TTL, slotAlways))
		}
	}
	if len(lost) > 0 {
		return open, firstError(s.run(ctx, lost))
	}
	return open, nil
}

// MoveSlot gives back the slot of the channel that is left and takes one of
// the channel that is tried next; false says that it had none free, and then
// none is held. A channel without a limit has no slots and is never full.
func (s *Store) MoveSlot(ctx context.Context, m domain.SlotMove) (bool, error) {
	if m.Lease <= 0 {
		m.Lease = domain.DefaultLease
	}
	var calls []call
	if m.From.Slots > 0 && m.From.Channel != m.To.Channel {
		calls = append(calls, releaseCall(m.From.Channel, m.RequestID))
	}
	if m.To.Slots > 0 {
		calls = append(calls, slotCall(m.To.Channel, m.RequestID, m.Lease, m.To.Slots))
	}
	if len(calls) == 0 {
		return true, nil
	}
	cmds := s.run(ctx, calls)
	if err := firstError(cmds); err != nil {
		return false, fmt.Errorf("move slot: %w", err)
	}
	if m.To.Slots <= 0 {
		return true, nil
	}
	return readHeld(cmds[len(cmds)-1])
}
