package domain

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// BudgetCounter is one budget's counter in the regional store.
type BudgetCounter struct {
	// Name is the counter's own, without its shard: kind, owner and window, such
	// as "budget:day:key:key_3f9a:2026-11-29" or "budget:balance:identity:acme". A
	// settlement's record lists the names that it was charged to. What an identity
	// has paid in is one too: "credit:acme".
	Name string
	// Micros is what is held or spent in the window, or was paid in.
	Micros int64
}

// BudgetBook is what the store says of its budgets at one moment.
type BudgetBook struct {
	Counters []BudgetCounter
	// Held is by the counter's name what open reservations hold of it.
	Held map[string]int64
	// Pending are settlements on their way to the ledger.
	Pending []UsageRecord
}

// PendingRequests lists the requests of b.Pending.
func (b BudgetBook) PendingRequests() []string {
	ids := make([]string, len(b.Pending))
	for i, r := range b.Pending {
		ids[i] = r.RequestID
	}
	return ids
}

// BudgetSums is what the ledger says of the same budgets.
type BudgetSums struct {
	// Since is where the sums begin; older windows are not in them. Balances,
	// which have no window, are summed from the beginning.
	Since time.Time
	// Spent is by the counter's name, corrections included: micro-units, or images
	// for a window of images.
	Spent map[string]int64
	// Owner is by the counter's name the identity in whose shard it lies; see OwnerOf.
	Owner map[string]string
	// Settled has the requests, of those asked for, that are in the ledger.
	Settled map[string]bool
}

// OwnerOf is the identity in whose shard the counter called name lies.
func (s BudgetSums) OwnerOf(name string) string {
	if identity, ok := strings.CutPrefix(name, BalanceCounter("")); ok {
		return identity
	}
	return s.Owner[name]
}

// Covers reports whether the sums have everything that a counter has counted.
func (s BudgetSums) Covers(name string) bool {
	if isBalance(name) {
		return true
	}
	begin, ok := BudgetWindowBegin(name)
	return ok && !begin.Before(s.Since)
}

// BudgetDrift is a counter that is not what ledger and open reservations add up to.
type BudgetDrift struct {
	Name string
	// Counter is the store's value; Held, Pending and Ledger should add up to it.
	Counter, Held, Pending, Ledger int64
}

// Micros is the drift: what the counter has too much, or too little below 0.
func (d BudgetDrift) Micros() int64 { return d.Counter - d.Held - d.Pending - d.Ledger }

// Compare lists every budget of b and sums whose window began after the sums
// did, and every balance, by name; those that agree are among them. Book and sums are read one
// after the other, so under traffic a drift counts only when it stays.
func (b BudgetBook) Compare(sums BudgetSums) []BudgetDrift {
	rows := make(map[string]*BudgetDrift)
	row := func(name string) *BudgetDrift {
		if rows[name] == nil {
			rows[name] = &BudgetDrift{Name: name}
		}
		return rows[name]
	}
	for _, c := range b.Counters {
		row(c.Name).Counter += c.Micros
	}
	for name, micros := range b.Held {
		row(name).Held += micros
	}
	for name, micros := range sums.Spent {
		if !IsImagesName(name) {
			row(name).Ledger += micros
		}
	}
	for _, r := range b.Pending {
		if sums.Settled[r.RequestID] {
			continue
		}
		for _, name := range r.Budgets {
			if !IsImagesName(name) {
				row(name).Pending += r.CostMicros
			}
		}
	}
	list := make([]BudgetDrift, 0, len(rows))
	for _, r := range rows {
		if sums.Covers(r.Name) {
			list = append(list, *r)
		}
	}
	slices.SortFunc(list, func(a, b BudgetDrift) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// earliestZone is how much earlier than in UTC a day begins in the zone that is
// furthest east.
const earliestZone = 14 * time.Hour

// IsBudgetName reports whether name is that of a counter of money spent, a
// balance's among them.
func IsBudgetName(name string) bool { return strings.HasPrefix(name, "budget:") }

// IsImagesName reports whether name is that of a counter of images.
func IsImagesName(name string) bool { return strings.HasPrefix(name, "images:") }

// BudgetWindowBegin is the earliest moment, in any time zone, at which the
// window of a budget's name can begin; ok is false for what is no such name.
func BudgetWindowBegin(name string) (at time.Time, ok bool) {
	window := name[strings.LastIndexByte(name, ':')+1:]
	for _, layout := range []string{time.DateOnly, "2006-01"} {
		if at, err := time.Parse(layout, window); err == nil {
			return at.Add(-earliestZone), true
		}
	}
	return time.Time{}, false
}

// latestZone is how much later than in UTC a day ends in the zone furthest west.
const latestZone = 12 * time.Hour

// RebuildBegin is where sums have to begin to have every window that is current
// at that time in any time zone.
func RebuildBegin(at time.Time) time.Time { return MonthBegin(at.Add(-latestZone)) }

// MonthBegin is where sums have to begin to have all windows of the month that
// at lies in, in every time zone.
func MonthBegin(at time.Time) time.Time {
	at = at.UTC()
	return time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC).Add(-earliestZone)
}

// BudgetCorrection brings a correction of the ledger to the store's counters.
type BudgetCorrection struct {
	RequestID string
	Identity  string
	// EntryNo is that of the correction's last entry: applying it again changes nothing.
	EntryNo int
	// Budgets are the counters that the settlement was charged to.
	Budgets []string
	// DeltaMicros is added to each of them; below 0 it gives money back.
	DeltaMicros int64
}
