package domain

import (
	"strings"
	"sync"
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
	LimitImagesDay   LimitKind = "images_day"   // images per calendar day
	LimitBalance     LimitKind = "balance"      // prepaid micro-units, without an end
	// LimitCountTokens is counts of tokens per minute, token bucket.
	LimitCountTokens LimitKind = "count_tokens_rpm"
)

// IsBudget reports whether k counts money.
func (k LimitKind) IsBudget() bool {
	return k == LimitBudgetDay || k == LimitBudgetMonth || k == LimitBalance
}

// IsRate reports whether k counts by the minute.
func (k LimitKind) IsRate() bool { return k == LimitRPM || k == LimitTPM }

// Scope says whose bucket it is.
type Scope string

// The scopes of SPEC §3 that are enforced; intersection applies.
const (
	ScopeKey      Scope = "key"
	ScopeIdentity Scope = "identity"
	// ScopeKeyModel and ScopeIdentityModel are one model's share of either.
	ScopeKeyModel      Scope = "key_model"
	ScopeIdentityModel Scope = "identity_model"
	// ScopeRegion is everyone in the region together.
	ScopeRegion Scope = "region"
)

// ofModel is the scope of one model's own limits within s.
func (s Scope) ofModel() Scope {
	if s == ScopeIdentity {
		return ScopeIdentityModel
	}
	return ScopeKeyModel
}

// Policy is a set of limits for a key or an identity. A zero field is the
// absence of that limit.
type Policy struct {
	Name string
	// RPM is requests per minute, RPMBurst how many of them at once; 0 is RPM.
	RPM      int64
	RPMBurst int64
	// TPM is tokens per minute, prompt estimate and output cap together;
	// TPMBurst is how many of them at once; 0 is TPM.
	TPM      int64
	TPMBurst int64
	// InFlight is how many requests may run at once.
	InFlight int64
	// BudgetDayMicros and BudgetMonthMicros are money per calendar window, in
	// millionths of the currency unit.
	BudgetDayMicros   int64
	BudgetMonthMicros int64
	// ImagesDay is images per calendar day.
	ImagesDay int64
	// CountTokensRPM is how many prompts per minute may be counted, for free and
	// beside every other limit.
	CountTokensRPM int64
	// Models are further limits of single models, by the name clients use; each
	// has a time zone of its own, and no Models.
	Models map[string]Policy
	// TimeZone is the IANA zone of the calendar windows; "" is UTC.
	TimeZone string
	// InjectCap: where a budget applies and the client set no output cap, the
	// one that was reserved goes into the request, so that the answer cannot
	// cost more than the hold.
	InjectCap bool
	// Leased: each replica of authz takes of the rates, those of Models included,
	// ahead of the requests, and gives out what it has taken without asking.
	Leased bool
	// OpenWindow is for how long after the store went away limits are kept by
	// each replica on its own; 0 refuses at once.
	OpenWindow time.Duration
	// OptimisticMicros is what each replica may then let one owner spend, in
	// millionths of the currency unit; 0 admits nothing but what only rates limit.
	OptimisticMicros int64
}

// Hold is the share of one QuotaBucket that a reservation takes.
type Hold struct {
	Kind  LimitKind
	Scope Scope
	// ID is by Scope the key id, the identity, either of them with a blank and
	// the model, or the region.
	ID string
	// Window is the calendar window, "2026-11-29" or "2026-11"; "" where the
	// kind has none.
	Window string
	// Limit is what the bucket gives per minute or window, or at once for
	// in_flight; read by reserve only, or where it is Leased. Of a balance it is 0:
	// what was paid in lies in the store.
	Limit int64
	// Burst is the size of a rate bucket: what it gives at once; 0 is Limit. Read
	// by reserve only.
	Burst int64
	// Amount is what is held: 1 for rpm and in_flight, tokens for tpm, micro-units
	// for budgets, images for images_day.
	Amount int64
	// Leased: the amount comes out of a lease that the replica has taken before.
	// A reservation does not charge it; its settlement corrects the bucket by what
	// was used beyond it, or was not used.
	Leased bool
}

// Size is the most that the bucket of h can give at once.
func (h Hold) Size() int64 {
	if h.Burst > 0 && h.Window == "" {
		return h.Burst
	}
	return h.Limit
}

// Demand is what one request asks of its buckets.
type Demand struct {
	// Models are those that may be dispatched; the limits of each apply.
	Models []string
	// Tokens is prompt estimate plus output cap.
	Tokens int64
	// CostMicros is the money that Tokens can cost at most.
	CostMicros int64
	// Images is how many images it asks for; 0 for text, which no limit of
	// images concerns.
	Images int64
	// Toll is which of the limits it takes from.
	Toll Toll
}

// Holds lists the holds that p asks for in scope of id at time now: those of
// the scope, then those of each model within it. The order in each is fixed: rpm,
// tpm, in_flight, budget_day, budget_month, images_day; a request that is free of
// them takes rpm and in_flight, or count_tokens_rpm alone. The windows are those of
// now, which is the moment of the admission: what it holds is settled in the same
// windows, however late. An unknown time zone falls back to UTC; config refuses
// it long before.
func (p Policy) Holds(scope Scope, id string, d Demand, now time.Time) []Hold {
	holds := p.ownHolds(Hold{Scope: scope, ID: id}, d, now)
	for _, name := range d.Models {
		if model, ok := p.Models[name]; ok {
			holds = append(holds, model.ownHolds(Hold{Scope: scope.ofModel(), ID: id + " " + name}, d, now)...)
		}
	}
	return holds
}

// Concerns reports whether h is charged for a request that model served: all
// are but the holds of other models.
func (h Hold) Concerns(model string) bool {
	return h.Scope != ScopeKeyModel && h.Scope != ScopeIdentityModel || strings.HasSuffix(h.ID, " "+model)
}

// ownHolds are the holds without those of models; each has the owner of of.
func (p Policy) ownHolds(of Hold, d Demand, now time.Time) []Hold {
	if d.Toll == TollCount {
		of.Kind, of.Limit, of.Amount = LimitCountTokens, p.CountTokensRPM, 1
		if of.Limit <= 0 {
			return nil
		}
		return []Hold{of}
	}
	local := now.In(zoneOf(p.TimeZone))
	day, month := local.Format("2006-01-02"), local.Format("2006-01")
	all := []Hold{
		{Kind: LimitRPM, Limit: p.RPM, Burst: p.RPMBurst, Amount: 1},
		{Kind: LimitTPM, Limit: p.TPM, Burst: p.TPMBurst, Amount: d.Tokens},
		{Kind: LimitInFlight, Limit: p.InFlight, Amount: 1},
		{Kind: LimitBudgetDay, Limit: p.BudgetDayMicros, Amount: d.CostMicros, Window: day},
		{Kind: LimitBudgetMonth, Limit: p.BudgetMonthMicros, Amount: d.CostMicros, Window: month},
		{Kind: LimitImagesDay, Limit: p.ImagesDay, Amount: d.Images, Window: day},
	}
	holds := make([]Hold, 0, len(all))
	for _, h := range all {
		if h.Limit <= 0 || h.Kind == LimitImagesDay && h.Amount <= 0 {
			continue
		}
		if d.Toll == TollCall && h.Kind != LimitRPM && h.Kind != LimitInFlight {
			continue
		}
		h.Scope, h.ID = of.Scope, of.ID
		h.Leased = p.Leased && h.Kind.IsRate()
		holds = append(holds, h)
	}
	return holds
}

// BalanceHold is what a request that may cost micros holds of the balance of a
// prepaid identity. It stands first among the holds of a decision.
func BalanceHold(identity string, micros int64) Hold {
	return Hold{Kind: LimitBalance, Scope: ScopeIdentity, ID: identity, Amount: micros}
}

// zones keeps what time.LoadLocation found, which reads a file at every call.
// Only names that config accepted come here, so it stays small.
var zones sync.Map // string to *time.Location

func zoneOf(name string) *time.Location {
	if name == "" {
		return time.UTC
	}
	if found, ok := zones.Load(name); ok {
		if loc, ok := found.(*time.Location); ok {
			return loc
		}
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return time.UTC
	}
	zones.Store(name, loc)
	return loc
}

// LimitsImages reports whether p has a limit of images that concerns model.
func (p Policy) LimitsImages(model string) bool {
	return p.ImagesDay > 0 || p.Models[model].ImagesDay > 0
}

// Refusal says which hold did not fit and when it can. Where several did not,
// it is one that waiting does not help, else the one that frees soonest.
type Refusal struct {
	Kind  LimitKind
	Scope Scope
	Limit int64
	// Size is the most that the bucket gives at once (see Hold.Size).
	Size int64
	// Remaining is what the bucket could still give, in the kind's unit.
	Remaining int64
	// RetryAfter is when the amount asked for can fit; 0 when waiting does
	// not help (the amount is larger than the limit, or a budget is spent).
	RetryAfter time.Duration
}
