package store

import (
	"fmt"
	"time"

	"keyway/domain"
	"keyway/lua"
)

// The classes of buckets that the scripts know.
const (
	classRate   = "rate"
	classLease  = "lease"
	classBudget = "budget"
)

// Bounds of what the scripts count exactly: whole numbers below 2^53, of which
// a rate bucket spends a factor of 60 000.
const (
	maxRate   int64 = 1e11
	maxBudget int64 = 1 << 51
)

// A budget's counter outlives its window by the 35 days in which it may be
// compared with the ledger; the time runs from the last write.
const (
	keepDay   = (1 + 35) * 24 * time.Hour
	keepMonth = (31 + 35) * 24 * time.Hour
)

func classOf(kind domain.LimitKind) string {
	switch {
	case kind.IsBudget():
		return classBudget
	case kind == domain.LimitInFlight:
		return classLease
	}
	return classRate
}

func counterTTL(kind domain.LimitKind) int64 {
	switch kind {
	case domain.LimitBudgetDay:
		return keepDay.Milliseconds()
	case domain.LimitBudgetMonth:
		return keepMonth.Milliseconds()
	}
	return 0
}

// checkHolds refuses what no key or counter is made for.
func checkHolds(holds []domain.Hold) error {
	for _, h := range holds {
		switch h.Kind {
		case domain.LimitRPM, domain.LimitTPM, domain.LimitInFlight:
		case domain.LimitBudgetDay, domain.LimitBudgetMonth:
			if h.Window == "" {
				return fmt.Errorf("hold %s of %s %s names no window", h.Kind, h.Scope, h.ID)
			}
		default:
			return fmt.Errorf("hold of %s %s has the unknown kind %q", h.Scope, h.ID, h.Kind)
		}
		if h.Amount < 0 {
			return fmt.Errorf("hold %s of %s %s is negative", h.Kind, h.Scope, h.ID)
		}
	}
	return nil
}

// used is what the request of record took from the bucket of h in the end.
func used(h domain.Hold, record domain.UsageRecord) int64 {
	switch h.Kind {
	case domain.LimitTPM:
		return min(max(record.Usage.Total(), 0), maxRate)
	case domain.LimitBudgetDay, domain.LimitBudgetMonth:
		return min(max(record.CostMicros, 0), maxBudget)
	}
	return h.Amount // a request stays a request; a lease has no amount
}

func reserveCall(d domain.Decision, decision []byte) call {
	shard := domain.ShardOf(d.Identity)
	c := call{
		script: lua.Reserve,
		keys:   []string{reservationKey(shard, d.RequestID), openKey(shard)},
		args:   []any{d.RequestID, d.Lease.Milliseconds(), keepClosed.Milliseconds(), decision},
	}
	for _, h := range d.Holds {
		limit := min(max(h.Limit, 0), maxBudget)
		if classOf(h.Kind) == classRate {
			limit = min(max(h.Limit, 1), maxRate)
		}
		c.keys = append(c.keys, bucketKey(d.Identity, h))
		c.args = append(c.args, classOf(h.Kind), limit, min(h.Amount, 2*maxBudget), counterTTL(h.Kind))
	}
	return c
}

// closing is how a reservation ends.
type closing struct {
	record []byte // nil is a refund
	used   func(domain.Hold) int64
	keep   time.Duration
}

func settleCall(d domain.Decision, end closing) call {
	shard := domain.ShardOf(d.Identity)
	c := call{
		script: lua.Settle,
		keys:   []string{reservationKey(shard, d.RequestID), openKey(shard), outboxKey(shard), repairKey(shard)},
		args:   []any{d.RequestID, end.keep.Milliseconds(), end.record, recordVersion},
	}
	for _, h := range d.Holds {
		c.keys = append(c.keys, bucketKey(d.Identity, h))
		c.args = append(c.args, classOf(h.Kind), end.used(h), counterTTL(h.Kind))
	}
	return c
}

func refundCall(d domain.Decision, keep time.Duration) call {
	return settleCall(d, closing{used: func(domain.Hold) int64 { return 0 }, keep: keep})
}

// refundCalls gives back the holds, leaving a tombstone, and every slot.
func refundCalls(d domain.Decision) []call {
	calls := []call{refundCall(d, keepClosed)}
	for _, c := range d.Candidates {
		if c.Slots > 0 {
			calls = append(calls, releaseCall(c.Channel, d.RequestID))
		}
	}
	return calls
}
