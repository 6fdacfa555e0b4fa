package domain

import (
	"slices"
	"time"
)

// Outcome is how a request ended (ARCHITECTURE §3).
type Outcome string

// The outcomes.
const (
	OutcomeSuccess Outcome = "success"
	// OutcomeFailed: an error status, an error event, or no channel answered.
	OutcomeFailed Outcome = "failed"
	// OutcomeCancelled: the client left first.
	OutcomeCancelled Outcome = "cancelled"
	// OutcomeUpstreamCut: the upstream ended after its headers without an end marker.
	OutcomeUpstreamCut Outcome = "upstream_cut"
	// OutcomeAbandoned: nobody settled it within its lease.
	OutcomeAbandoned Outcome = "abandoned"
)

// Outcomes lists every outcome, for closed label sets and validation.
func Outcomes() []Outcome {
	return []Outcome{OutcomeSuccess, OutcomeFailed, OutcomeCancelled, OutcomeUpstreamCut, OutcomeAbandoned}
}

// Valid reports whether o is one of Outcomes.
func (o Outcome) Valid() bool { return slices.Contains(Outcomes(), o) }

// Source says where the token counts of a record come from.
type Source string

// The sources.
const (
	SourceUpstream Source = "upstream"
	SourceEstimate Source = "estimate"
)

// Attempt is one call to a channel. Status is the HTTP status it answered; 0
// when it did not answer or its answer was not seen.
type Attempt struct {
	Channel string
	Status  int
	// Reason is what its failure was about; ReasonNone when it served, when the
	// request was at fault, and when nobody saw. The ledger does not keep it.
	Reason CooldownReason
	// At is when its answer began; zero when none was seen. The ledger does not
	// keep it.
	At time.Time
}

// UsageRecord is one settlement: the unit of the Ledger. Append only.
type UsageRecord struct {
	RequestID string
	// Attempt is the number of the attempt that ended the request, 1-based; 0 when none ran.
	Attempt  int
	KeyID    string
	Identity string
	API      API
	// Model is the name asked for, ModelServed the one the provider named ("" when unknown).
	Model       string
	ModelServed string
	// ModelDispatched is ours: the one asked for, that behind an alias, or a
	// fallback. Its limits and its price count. "" in entries of former versions.
	ModelDispatched string
	// Channel is that of the last attempt; "" when none ran.
	Channel  string
	Attempts []Attempt
	Outcome  Outcome
	Source   Source
	// Status is the HTTP status the client got; 0 when it got none.
	Status       int
	Usage        Usage
	CostMicros   int64
	PriceVersion string
	// RawUsage is the provider's usage object as it came, JSON; nil when none came.
	RawUsage []byte
	// PromptTokensEstimate is what was reserved for the prompt.
	PromptTokensEstimate int64
	UpstreamRequestID    string
	AdmittedAt           time.Time
	// FirstByteAt is zero when no byte came.
	FirstByteAt time.Time
	EndedAt     time.Time
	// SettledAt is when the settlement reached the store, by the store's clock; zero
	// until it was read from the outbox.
	SettledAt time.Time
	// EntryNo is 0 for the settlement itself and counts its corrections from 1.
	// Those may have negative counts: they are added to what stands.
	EntryNo int
	// Reason is why a correction was made; "" for a settlement.
	Reason string
	// Budgets are the names of the counters of money and of images that it was
	// charged to (see BudgetCounter), so that each can be added up from the ledger
	// alone; that of a balance is the first.
	Budgets []string
}
