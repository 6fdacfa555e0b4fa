package domain

import "time"

// DefaultLease is how long a reservation, an in_flight member or a slot
// outlives its owner's last renewal (SPEC §3).
const DefaultLease = 30 * time.Second

// Patch is one edit of a client's request body: at Offset, Delete bytes go and
// Insert comes. A list is sorted by Offset and does not overlap (ARCHITECTURE §5.1).
type Patch struct {
	Offset int64
	Delete int64
	Insert string
}

// Candidate is one channel a request may go to, with what is particular to it.
type Candidate struct {
	Channel       string
	UpstreamModel string
	// Slots is the channel's SkSlot limit in this region; 0 is unlimited.
	Slots int64
	// Patches turn the client's body into the one for this channel.
	Patches []Patch
	// Egress is the channel's form; it is not kept with the decision.
	Egress Egress
	// Class is the model class that the attempt is evidence about, and Account
	// the channel's (see Channel.Account).
	Class   string
	Account string
	// Trial: its cooldown was over, and the answer decides whether it is usable again.
	Trial bool
	// Model is the name that is dispatched here and Price what it costs; "" and
	// nil are those of the Decision.
	Model string
	Price *Price
}

// Decision is what authz decides for one admitted request. It travels with the
// request in Envoy's dynamic metadata, and lies in the store beside the
// reservation, so that any replica can carry it out and settle it.
type Decision struct {
	RequestID string
	KeyID     string
	Identity  string
	API       API
	// Path is the path below the provider's base URL, with the query that may
	// pass, such as "/chat/completions".
	Path string
	// Model is the name that is dispatched: its limits apply, and Price is its price.
	Model string
	// Asked is the name that the client sent, where that is another one; see AskedModel.
	Asked  string
	Stream bool
	// StripUsage: the usage chunk of the stream was asked for by us, not by the client.
	StripUsage bool
	// PromptTokens is the corrected estimate; OutputCap is what was reserved for the answer.
	PromptTokens int64
	OutputCap    int64
	// PromptEstimate is the estimate before its correction, and Class what it
	// was made of; "" when the estimate says too little to learn from it.
	PromptEstimate int64
	Class          ContentClass
	// Units are what the request asks for that is charged by the piece, by Tool;
	// what the answer counts of a kind takes their place.
	Units [ToolKinds]int64
	// BodyLen is the client's body length in bytes.
	BodyLen    int64
	AdmittedAt time.Time
	Price      Price
	Holds      []Hold
	// Candidates are in the order in which they are tried; never empty.
	Candidates []Candidate
	// Route is how all channels stood, for Explain. It lies in the store and does
	// not travel with the request.
	Route []Standing
	// Lease is how long holds and slots live without renewal.
	Lease time.Duration
	// FirstByteLimit is how long one attempt may wait for response headers.
	FirstByteLimit time.Duration
	// Unreserved: it went out before its reservation was written, which comes later:
	// out of authz's journal, where the store was away, or, where leases were all
	// that it needed, at authz's next exchange with the store.
	Unreserved bool
	// Background: the response is made in the background, and goes on, and costs,
	// when its request is over.
	Background bool
	// Heartbeat and IdleLimit are the model's: after how long a silent stream
	// gets a heartbeat, and after how long it is ended. 0 never does.
	Heartbeat time.Duration
	IdleLimit time.Duration
}

// Candidate returns the candidate of attempt n (1-based); ok is false beyond the list.
func (d *Decision) Candidate(attempt int) (c Candidate, ok bool) {
	if attempt < 1 || attempt > len(d.Candidates) {
		return Candidate{}, false
	}
	return d.Candidates[attempt-1], true
}

// Last is the candidate to which the last of that many attempts went, or the
// first one before any ran.
func (d *Decision) Last(attempts int) Candidate {
	c, _ := d.Candidate(min(max(attempts, 1), len(d.Candidates)))
	return c
}

// ModelOf is the name that is dispatched to c.
func (d *Decision) ModelOf(c Candidate) string {
	if c.Model != "" {
		return c.Model
	}
	return d.Model
}

// PriceOf is what the model costs that is dispatched to c.
func (d *Decision) PriceOf(c Candidate) Price {
	if c.Price != nil {
		return *c.Price
	}
	return d.Price
}

// AskedModel is the name that the client sent.
func (d *Decision) AskedModel() string {
	if d.Asked != "" {
		return d.Asked
	}
	return d.Model
}

// SentUnits are the units of d that a provider has done, or charges for, once it
// has the request. Images come with the answer.
func (d *Decision) SentUnits() [ToolKinds]int64 {
	units := d.Units
	units[ToolImageGeneration] = 0
	return units
}

// Admission is the store's answer to a reservation.
type Admission struct {
	// Refusal is nil when everything was charged.
	Refusal *Refusal
	// Skipped is how many of the first candidates had no slot free; the slot
	// that is held is that of the candidate behind them.
	Skipped int
	// SlotRefused: the limits had room, no candidate had a slot; nothing stays charged.
	SlotRefused bool
	// BudgetsUnknown: the store has lost writes, and until its windows are rebuilt
	// from the ledger nobody can say what is left of them; nothing stays charged.
	BudgetsUnknown bool
	// Remaining is, by the order of Decision.Holds, what each bucket has left.
	Remaining []int64
	// Reset is, by the same order, when a rate bucket is full again; 0 for others.
	Reset []time.Duration
}

// Settlement ends a reservation.
type Settlement struct {
	Decision Decision
	// Channel is the one whose slot is held; "" for none.
	Channel string
	// Record goes to the ledger.
	Record UsageRecord
	// Stored is what the provider keeps of it; zero when that is known already.
	Stored StoredID
}

// SlotMove takes a request's slot from the channel that failed to the one that
// is tried next.
type SlotMove struct {
	RequestID string
	// From is the channel that is left; a zero Candidate is none.
	From Candidate
	To   Candidate
	// Lease is how long the new slot lives without renewal.
	Lease time.Duration
}

// SettleResult is what a settlement found.
type SettleResult int

// The results; all three are success for the caller.
const (
	// SettleDone: this call settled it.
	SettleDone SettleResult = iota
	// SettleAlready: it had been settled before; nothing changed.
	SettleAlready
	// SettleUnknown: the store does not know the reservation (it lost data);
	// the record was kept for the ledger all the same.
	SettleUnknown
)

// Lease is what a renewal keeps alive for one running request.
type Lease struct {
	RequestID string
	Identity  string
	Holds     []Hold
	// Channel is the one whose slot is held; "" for none.
	Channel string
	TTL     time.Duration
	// Unreserved: that nobody knows the request yet does not mean that it has ended.
	Unreserved bool
}

// ExpiredReservation is one whose lease ended unsettled.
type ExpiredReservation struct {
	Decision Decision
	// Renewed is true when a running request once renewed it, so an upstream has most likely seen it.
	Renewed bool
}
