package domain

import (
	"time"
)

// LimitKind is the kind of a QuotaBucket (SPEC §1).
type LimitKind string

// The kinds that one reservation may hold.
const (
	LimitRPM         LimitKind = "rpm"          // requests per minute, token bucket
	LimitTPM         LimitKind = "tpm"          // tokens per minute, token bucket
	LimitInFlight    LimitKind = "in_flight"    // leases
	LimitBudgetDay   LimitKind = "budget_day"   // micro-units per calendar day
	LimitBudgetMonth LimitKind = "budget_month" // micro-units per calendar month
)

// IsBudget reports whether k counts money.
func (k LimitKind) IsBudget() bool { return k == LimitBudgetDay || k == LimitBudgetMonth }

// Scope says whose bucket it is.
type Scope string

// The scopes of SPEC §3 that are enforced; intersection applies.
const (
	ScopeKey      Scope = "key"
	ScopeIdentity Scope = "identity"
)

// Policy is a set of limits for a key or an identity. A zero field is the
// absence of that limit.
type Policy struct {
	Name string
	// RPM is requests per minute; the burst is the same number.
	RPM int64
	// TPM is tokens per minute, prompt estimate and output cap together.
	TPM int64
	// InFlight is how many requests may run at once.
	InFlight int64
	// BudgetDayMicros and BudgetMonthMicros are money per calendar window, in
	// millionths of the currency unit.
	BudgetDayMicros   int64
	BudgetMonthMicros int64
	// TimeZone is the IANA zone of the calendar windows; "" is UTC.
	TimeZone string
	// InjectCap: where a budget applies and the client set no output cap, the
	// one that was reserved goes into the request, so that the answer cannot
	// cost more than the hold.
	InjectCap bool
}

// Hold is the share of one QuotaBucket that a reservation takes.
type Hold struct {
	Kind  LimitKind
	Scope Scope
	// ID is the key id or the identity, by Scope.
	ID string
	// Window is the calendar window of a budget, "2026-11-29" or "2026-11"; "" otherwise.
	Window string
	// Limit is the bucket's size per window; read by reserve only.
	Limit int64
	// Amount is what is held: 1 for rpm and in_flight, tokens for tpm, micro-units for budgets.
	Amount int64
}

// Demand is what one request asks of its buckets.
type Demand struct {
	// Tokens is prompt estimate plus output cap.
	Tokens int64
	// CostMicros is the money that Tokens can cost at most.
	CostMicros int64
}

// Holds lists the holds that p asks for in scope of id at time now. The order
// is fixed: rpm, tpm, in_flight, budget_day, budget_month. An unknown time
// zone falls back to UTC; config refuses it long before.
func (p Policy) Holds(scope Scope, id string, d Demand, now time.Time) []Hold {
	loc, err := time.LoadLocation(p.TimeZone)
	if err != nil {
		loc = time.UTC
	}
	local := now.In(loc)
	all := []Hold{
		{Kind: LimitRPM, Limit: p.RPM, Amount: 1},
		{Kind: LimitTPM, Limit: p.TPM, Amount: d.Tokens},
		{Kind: LimitInFlight, Limit: p.InFlight, Amount: 1},
		{Kind: LimitBudgetDay, Limit: p.BudgetDayMicros, Amount: d.CostMicros, Window: local.Format("2006-01-02")},
		{Kind: LimitBudgetMonth, Limit: p.BudgetMonthMicros, Amount: d.CostMicros, Window: local.Format("2006-01")},
	}
	holds := make([]Hold, 0, len(all))
	for _, h := range all {
		if h.Limit <= 0 {
			continue
		}
		h.Scope, h.ID = scope, id
		holds = append(holds, h)
	}
	return holds
}

// Refusal says which hold did not fit and when it can.
type Refusal struct {
	Kind  LimitKind
	Scope Scope
	Limit int64
	// Remaining is what the bucket could still give, in the kind's unit.
	Remaining int64
	// RetryAfter is when the amount asked for can fit; 0 when waiting does
	// not help (the amount is larger than the limit, or a budget is spent).
	RetryAfter time.Duration
}
