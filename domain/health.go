package domain

import "time"

// EveryClass stands for all model classes of a channel: evidence against the
// account or the host, not against one class. No class can have this name.
const EveryClass = "*"

// ChannelClass is the unit of channel health: a channel and one of its model
// classes, or EveryClass.
type ChannelClass struct {
	Channel string
	Class   string
}

// HealthState is what may be sent to a channel. Its order is that of severity.
type HealthState int

// The states of a channel's class.
const (
	// HealthUsable: nothing is known against it.
	HealthUsable HealthState = iota
	// HealthTrial: its cooldown is over, and one request in the region may try
	// it (half-open). It needs a claim.
	HealthTrial
	// HealthCooling: nothing goes there until its time is over, or until the
	// trial that runs has ended.
	HealthCooling
	// HealthOut: nothing goes there until the channel is changed or reset.
	HealthOut
)

// String is the state as people, metrics and JSON have it.
func (s HealthState) String() string {
	return [...]string{HealthUsable: "usable", HealthTrial: "trial", HealthCooling: "cooling", HealthOut: "out"}[s]
}

// CooldownReason is what an upstream's failure is about.
type CooldownReason string

// The reasons. ReasonQuota and ReasonAuth are not cured by waiting.
const (
	ReasonNone CooldownReason = ""
	// ReasonRate: too many requests or tokens.
	ReasonRate CooldownReason = "rate"
	// ReasonOverload: the provider has no capacity (503, 529, overloaded_error).
	ReasonOverload CooldownReason = "overload"
	// ReasonServer: the provider failed (other 5xx, a broken answer), or refused
	// this one request for a reason of the credential's (403).
	ReasonServer CooldownReason = "server"
	// ReasonUnanswered: no connection, a reset, or no answer in time.
	ReasonUnanswered CooldownReason = "unanswered"
	// ReasonQuota: the account is out of money, or over its spend limit.
	ReasonQuota CooldownReason = "quota"
	// ReasonAuth: the credential is not accepted (any more).
	ReasonAuth CooldownReason = "auth"
)

// TakesOut reports whether r takes a channel out until someone acts.
func (r CooldownReason) TakesOut() bool { return r == ReasonQuota || r == ReasonAuth }

// ChannelHealth is what routing may know of a channel for one class. The zero
// value is a channel of which nothing is known.
type ChannelHealth struct {
	State HealthState
	// Until is when the cooldown, or the lease of the trial that runs, ends, by the
	// reader's own clock. It is zero unless State is HealthCooling.
	Until time.Time
	// OnTrial: it cools only until the trial that runs has ended.
	OnTrial bool
	// Reason is why; ReasonNone when usable.
	Reason CooldownReason
	// ErrorRate is the moving average of failed attempts, 0 to 1.
	ErrorRate float64
	// TTFT is the moving average of the time to the first byte of streams; 0 is unknown.
	TTFT time.Duration
	// QuotaLeft is the unused share of the account's rate limit, 0 to 1, and
	// QuotaEnds the time until it is whole again; 0 is unknown.
	QuotaLeft float64
	QuotaEnds time.Duration
	// InUse is how many of the channel's slots are taken.
	InUse int64
}

// Cooldown is what the region knows against a channel, as it was read.
type Cooldown struct {
	ChannelClass
	// Account is that of the channel when the evidence came (see Channel.Account).
	Account string
	Reason  CooldownReason
	// Out: it does not end by itself.
	Out bool
	// Left is how long it still cools; 0 or less once a trial may run.
	Left time.Duration
	// TrialLeft is how long the trial that runs is waited for; 0 or less for none.
	TrialLeft time.Duration
	// Level counts the trials in a row that failed.
	Level int
}

// Health is the state of c for someone who read it at the time read and looks
// at it at the time now.
func (c Cooldown) Health(read, now time.Time) ChannelHealth {
	h := ChannelHealth{State: HealthTrial, Reason: c.Reason}
	switch ends := read.Add(max(c.Left, c.TrialLeft)); {
	case c.Out:
		h.State = HealthOut
	case ends.After(now):
		h.State, h.Until, h.OnTrial = HealthCooling, ends, !read.Add(c.Left).After(now)
	}
	return h
}

// CooldownBounds are the lengths of cooldowns.
type CooldownBounds struct {
	// First is that of evidence that names no time; each failed trial doubles it.
	First time.Duration
	// Least and Most clamp what an upstream asks for.
	Least, Most time.Duration
}

// Evidence is one failure of an upstream, the only thing that cools.
type Evidence struct {
	ChannelClass
	Account string
	Reason  CooldownReason
	// Wait is what the upstream asked for; 0 when it named no time.
	Wait   time.Duration
	Bounds CooldownBounds
}

// Trial is a request's claim to be the one that tries a channel whose cooldown
// is over.
type Trial struct {
	ChannelClass
	RequestID string
	// Lease is how long others wait for its end; 0 gives the claim back.
	Lease time.Duration
}

// HealthAlpha is the weight of the newest attempt in the moving averages of a
// channel (SPEC §4).
const HealthAlpha = 0.2

// ChannelSample sums up attempts of one class at a channel.
type ChannelSample struct {
	ChannelClass
	// Attempts are those that ended, Failed of them by the upstream's fault.
	Attempts, Failed int64
	// TTFT is the sum over Timed streams.
	TTFT  time.Duration
	Timed int64
	// QuotaLeft and QuotaEnds are what the last answer said of the account's rate
	// limit (see ChannelHealth); 0 is nothing.
	QuotaLeft float64
	QuotaEnds time.Duration
}

// ChannelStat are the moving averages of one class at a channel, and what is
// left of its quota.
type ChannelStat struct {
	ErrorRate float64
	TTFT      time.Duration
	// QuotaLeft and QuotaEnds are as in ChannelHealth, at the time of the read.
	QuotaLeft float64
	QuotaEnds time.Duration
}
