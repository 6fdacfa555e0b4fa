package routing

import (
	"cmp"
	"math"
	"slices"
	"time"

	"keyway/domain"
)

// Option is one channel that may serve a request, as it stands now. What is
// not known of it stays zero and counts neither for nor against it.
type Option struct {
	Channel string
	// Priority: lower is tried first. Weight shares traffic within a priority;
	// less than 1 counts as 1.
	Priority int
	Weight   int
	// Cost is what the provider charges here, relative to the other channels; 0
	// counts as 1.
	Cost float64
	// ErrorRate is the moving share of attempts that failed, 0 to 1.
	ErrorRate float64
	// TTFT is the moving time to the first byte; 0 is not known.
	TTFT time.Duration
	// InUse is how many of Slots are taken; 0 slots are no limit.
	InUse, Slots int64
	// WindowLeft is the share of the provider's quota that is not used yet, 0 to
	// 1, and WindowEnds the time until it begins anew; 0 is not known.
	WindowLeft float64
	WindowEnds time.Duration
	// LeftOut is why the channel cannot serve now; "" lets it.
	LeftOut string
}

// Choice is what a request is ranked by.
type Choice struct {
	Strategy domain.Strategy
	// Affinity names the session, or the cached prompt, that should stay on one
	// channel: with StrategySticky and StrategyWeighted, which is also the zero
	// strategy, it takes the place of chance. "" is none.
	Affinity string
	// Random returns a number in [0, 1). A seeded source gives a repeatable order.
	Random func() float64
}

// Ranked is the place of one option; the order of a list is the order in which
// they are tried, with those that are left out behind.
type Ranked struct {
	// Index is that of the option.
	Index int
	// Score is what the option was ordered or drawn by; 0 when it is left out.
	Score float64
	// Note is why it stands behind others with a lower score; "" for none.
	Note string

	// An option stands before another by the first of these that differs.
	left     bool
	priority int
	group    float64
	key      float64
}

// The notes of a sticky channel that was passed over.
const (
	NoteFull    = "full"
	NoteFailing = "failing"
	NoteSlow    = "slow"
)

// Rank orders options for one request: every one is in the result once, and
// those with LeftOut are last. Lower priority numbers come first; within one
// priority the strategy decides. random is called at most once per option. The
// slice given is not changed.
//
// Where chance decides, it is weighted sampling without replacement: each
// option draws the key -ln(u)/score and the smallest goes first, so an option
// leads with probability score/Σ scores (Efraimidis and Spirakis, 2006). An
// affinity takes the place of u by a hash of itself and the channel's name,
// which is rendezvous hashing by weight: when a channel comes or goes, only the
// sessions move that it gains or loses.
func Rank(options []Option, c Choice) []Ranked {
	ranked := make([]Ranked, len(options))
	best := fastest(options)
	f := factorsOf(c.Strategy)
	for i := range options {
		o := &options[i]
		r := Ranked{Index: i, priority: o.Priority, left: o.LeftOut != ""}
		if !r.left {
			r.Score = f.score(o, best)
		}
		ranked[i] = r
	}
	sticky := c.Affinity != "" && f.sticks
	if f.top > 0 && !sticky {
		keepTop(ranked, f.top)
	}
	for i := range ranked {
		r, o := &ranked[i], &options[ranked[i].Index]
		switch {
		case r.left:
		case sticky:
			r.key = draw(hashed(c.Affinity, o.Channel), weightOf(o))
			if r.Note = escape(o, best); r.Note != "" {
				r.group = 1
			}
		case c.Strategy == domain.StrategyPriority:
			r.key = -r.Score
		case c.Strategy == domain.StrategyCost:
			r.group, r.key = costOf(o), draw(c.Random(), r.Score)
		default:
			r.key = draw(c.Random(), r.Score)
		}
	}
	slices.SortFunc(ranked, func(a, b Ranked) int {
		return cmp.Or(boolOrder(a.left, b.left), cmp.Compare(a.priority, b.priority), cmp.Compare(a.group, b.group),
			cmp.Compare(a.key, b.key), cmp.Compare(a.Index, b.Index))
	})
	return ranked
}

// draw is the key of an option whose chance is score; u is in [0, 1).
func draw(u, score float64) float64 { return -math.Log(1-u) / score } // 1-u is in (0, 1]: the logarithm is finite

// keepTop puts all but the top best of each priority into a later group.
func keepTop(ranked []Ranked, top int) {
	if len(ranked) <= top {
		return
	}
	slices.SortFunc(ranked, func(a, b Ranked) int {
		return cmp.Or(boolOrder(a.left, b.left), cmp.Compare(a.priority, b.priority), cmp.Compare(b.Score, a.Score), cmp.Compare(a.Index, b.Index))
	})
	place := 0
	for i := range ranked {
		if i > 0 && ranked[i].priority != ranked[i-1].priority {
			place = 0
		}
		if place >= top {
			ranked[i].group = 1
		}
		place++
	}
}

// boolOrder puts false before true.
func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// hashed is a number in [0, 1) that depends on both names and nothing else:
// every replica finds the same.
func hashed(affinity, channel string) float64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	h := uint64(offset)
	for i := range len(affinity) {
		h = (h ^ uint64(affinity[i])) * prime
	}
	h *= prime // between the names stands a zero
	for i := range len(channel) {
		h = (h ^ uint64(channel[i])) * prime
	}
	// FNV's high bits hardly depend on the last bytes; this spreads them.
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return float64(h>>11) / (1 << 53)
}

// Share is where in [0, 1) key falls among all keys of the same name, the same
// in every replica: a canary takes those below its share.
func Share(name, key string) float64 { return hashed(key, name) }
