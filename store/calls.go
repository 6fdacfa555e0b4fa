package store

import (
	"fmt"
	"slices"
	"time"

	"keyway/domain"
	"keyway/lua"
)

// argSeen is where the reserve script takes the generation.
const argSeen = 4

// The classes of buckets that the scripts know.
const (
	classRate   = "rate"
	classLease  = "lease"
	classWindow = "window"
	// classLent is for settle only: a rate whose amount came out of a lease.
	classLent = "lent"
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
	// keepBalance is a century: what was spent of a balance is counted without an end.
	keepBalance = 100 * 365 * 24 * time.Hour
)

// limitIsCredit stands for the limit of a balance, which lies in the store.
const limitIsCredit int64 = -1

func classOf(kind domain.LimitKind) string {
	switch {
	case kind.IsBudget() || kind == domain.LimitImagesDay:
		return classWindow
	case kind == domain.LimitInFlight:
		return classLease
	}
	return classRate
}

func counterTTL(kind domain.LimitKind) int64 {
	switch kind {
	case domain.LimitBudgetDay, domain.LimitImagesDay:
		return keepDay.Milliseconds()
	case domain.LimitBudgetMonth:
		return keepMonth.Milliseconds()
	case domain.LimitBalance:
		return keepBalance.Milliseconds()
	}
	return 0
}

// checkHolds refuses what no key or counter is made for, and an order in which
// the hold of a balance is not the first or those of the region are not the last.
func checkHolds(holds []domain.Hold) error {
	for i, h := range holds {
		if i > 0 && holds[i-1].Scope == domain.ScopeRegion && h.Scope != domain.ScopeRegion {
			return fmt.Errorf("hold %s of %s %s stands behind one of the region", h.Kind, h.Scope, h.ID)
		}
		switch h.Kind {
		case domain.LimitRPM, domain.LimitTPM, domain.LimitInFlight, domain.LimitCountTokens:
		case domain.LimitBalance:
			if i > 0 {
				return fmt.Errorf("hold %s of %s %s is not the first", h.Kind, h.Scope, h.ID)
			}
		case domain.LimitBudgetDay, domain.LimitBudgetMonth, domain.LimitImagesDay:
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

// used is what the request of record, which model served, took from the bucket
// of h in the end.
func used(h domain.Hold, record domain.UsageRecord, model string) int64 {
	if !h.Concerns(model) {
		return 0
	}
	switch h.Kind {
	case domain.LimitTPM:
		return min(max(record.Usage.Total(), 0), maxRate)
	case domain.LimitBudgetDay, domain.LimitBudgetMonth, domain.LimitBalance:
		return min(max(record.CostMicros, 0), maxBudget)
	case domain.LimitImagesDay:
		return min(max(record.Usage.Tools[domain.ToolImageGeneration], 0), maxRate)
	}
	return h.Amount // a request stays a request; a lease has no amount
}

// part is what one script holds of a request: everything under one tag.
type part struct {
	tag   string
	holds []domain.Hold
	// keep is how long its reservation and its end are remembered.
	keep time.Duration
}

// split parts holds into those in the shard of the identity and those in the
// region's own buckets; region has no holds where there is no ceiling. What came
// out of a lease is in neither.
func split(identity string, holds []domain.Hold) (own, region part) {
	n := slices.IndexFunc(holds, func(h domain.Hold) bool { return h.Scope == domain.ScopeRegion })
	if n < 0 {
		n = len(holds)
	}
	return part{identityTag(identity), reserved(holds[:n]), keepClosed}, part{regionTag, holds[n:], keepRegion}
}

// reserved are the holds without those that came out of a lease, which no
// reservation charges.
func reserved(holds []domain.Hold) []domain.Hold {
	if !slices.ContainsFunc(holds, isLeased) {
		return holds
	}
	return slices.DeleteFunc(slices.Clone(holds), isLeased)
}

func isLeased(h domain.Hold) bool { return h.Leased }

// reserveCall charges p for d; decision is kept beside the reservation. seen is
// the generation by which the windows of p are judged.
func reserveCall(p part, d domain.Decision, decision []byte, seen int64) call {
	c := call{
		script: lua.Reserve,
		keys:   []string{p.reservation(d.RequestID), p.open(), p.generation()},
		args:   []any{d.RequestID, d.Lease.Milliseconds(), p.keep.Milliseconds(), decision, ""},
	}
	for _, h := range p.holds {
		if classOf(h.Kind) == classWindow {
			c.args[argSeen] = seen
		}
		limit, size := min(max(h.Limit, 0), maxBudget), min(max(h.Size(), 0), maxBudget)
		switch {
		case classOf(h.Kind) == classRate:
			limit, size = rateOf(h)
		case h.Kind == domain.LimitBalance:
			limit = limitIsCredit
		}
		c.keys = append(c.keys, bucketKey(d.Identity, h))
		c.args = append(c.args, classOf(h.Kind), limit, size, min(h.Amount, 2*maxBudget), counterTTL(h.Kind))
	}
	if len(p.holds) > 0 && p.holds[0].Kind == domain.LimitBalance {
		c.keys = append(c.keys, creditKey(d.Identity))
	}
	return c
}

// rateOf is what the bucket of a rate gives a minute, and the most at once.
func rateOf(h domain.Hold) (limit, size int64) {
	return min(max(h.Limit, 1), maxRate), min(max(h.Size(), 1), maxRate)
}

// closing is how a reservation ends.
type closing struct {
	record []byte // nil is a refund
	// told explains the request in place of the record, where that is too long.
	told []byte
	used func(domain.Hold) int64
	// forget leaves nothing behind by which a late reservation would be refused.
	forget tombstone
}

// tombstone says what stays of a reservation that has ended.
type tombstone int

const (
	leaveTombstone tombstone = iota
	// noTombstone is for what is known not to be under way any more.
	noTombstone
)

// closeCalls ends d in the shard of its identity and, in a second script, what
// it holds of the region. The record goes with the first, whose answer is that
// of the whole; the second only says what was used.
func closeCalls(d domain.Decision, end closing) []call {
	own, region := split(d.Identity, d.Holds)
	calls := []call{closeCall(own, d, end)}
	if len(region.holds) > 0 {
		end.record = nil
		calls = append(calls, closeCall(region, d, end))
	}
	return calls
}

func closeCall(p part, d domain.Decision, end closing) call {
	if end.forget == noTombstone {
		p.keep = 0
	}
	c := call{
		script: lua.Settle,
		keys:   []string{p.reservation(d.RequestID), p.open(), p.outbox(), p.repair(), p.explained(), p.explainedOrder()},
		args:   []any{d.RequestID, p.keep.Milliseconds(), end.record, recordVersion, end.told, mostExplained},
	}
	for _, h := range p.holds {
		c.keys = append(c.keys, bucketKey(d.Identity, h))
		c.args = append(c.args, classOf(h.Kind), end.used(h), counterTTL(h.Kind))
	}
	return c
}

func nothingUsed(domain.Hold) int64 { return 0 }

// refundCalls gives back the holds, leaving tombstones, and every slot.
func refundCalls(d domain.Decision) []call {
	calls := closeCalls(d, closing{used: nothingUsed})
	for _, c := range d.Candidates {
		if c.Slots > 0 {
			calls = append(calls, releaseCall(c.Channel, d.RequestID))
		}
	}
	return calls
}
