package authz

import (
	"sync"
	"sync/atomic"
	"time"

	"keyway/domain"
)

const (
	// outageRest is how long the store has to have answered before the next
	// outage is another one: a store that comes and goes gives one allowance a minute.
	outageRest = time.Minute
	// maxOpenBuckets bounds what an outage remembers; beyond it, new keys are refused.
	maxOpenBuckets = 100_000
)

// blind is how far a request may go out while the store is away.
type blind struct {
	// open is for how long after the outage began; 0 is not at all.
	open time.Duration
	// most is what each hold's bucket may give in the whole outage, by the order of
	// the holds and in their units.
	most []int64
	// credit: money is spent, so the journal comes first.
	credit bool
}

// mode is the label of such an admission.
func (b blind) mode() string {
	if b.credit {
		return modeOptimistic
	}
	return modeOpenWindow
}

// blindly finds how far a request may go out: for the shortest window of the
// policies that limit it, each rate by what it gives within that, money by the
// policy's credit, and places in flight once. Everything else forbids it.
func blindly(holds []domain.Hold, own, shared domain.Policy) (b blind) {
	policies := make([]domain.Policy, len(holds))
	for i, h := range holds {
		switch h.Scope {
		case domain.ScopeKey, domain.ScopeKeyModel:
			policies[i] = own
		case domain.ScopeIdentity, domain.ScopeIdentityModel:
			policies[i] = shared
		default: // the region's ceiling has no policy that could say so
		}
		if i == 0 || policies[i].OpenWindow < b.open {
			b.open = policies[i].OpenWindow
		}
	}
	b.most = make([]int64, len(holds))
	for i, h := range holds {
		credit := policies[i].OptimisticMicros
		switch {
		case h.Kind == domain.LimitRPM || h.Kind == domain.LimitTPM:
			// Config bounds both, so that the product fits.
			b.most[i] = h.Limit * b.open.Milliseconds() / time.Minute.Milliseconds()
		case credit == 0:
			return blind{}
		case h.Kind.IsBudget():
			b.most[i], b.credit = credit, true
		case h.Kind == domain.LimitInFlight:
			b.most[i] = h.Limit // nobody tells this replica when a place is free again
		default:
			return blind{}
		}
	}
	return b
}

// outage bounds what is admitted while the store is away: of each bucket what
// blind says, once per outage.
type outage struct {
	// away spares the lock while all is well.
	away atomic.Bool

	mu sync.Mutex
	// began is when the store was first found away, ended when it last came back.
	began, ended time.Time
	spent        map[rateBucket]int64
}

// complaint spares the log what may be true of every request. The zero value is ready.
type complaint struct{ last atomic.Int64 }

const complaintPause = 10 * time.Second

// due reports whether it was not made within complaintPause; then it counts as made.
func (c *complaint) due(now time.Time) bool {
	last := c.last.Load()
	return now.UnixNano()-last >= int64(complaintPause) && c.last.CompareAndSwap(last, now.UnixNano())
}

func newOutage() *outage { return &outage{spent: map[rateBucket]int64{}} }

// over notes that the store answered.
func (o *outage) over(now time.Time) {
	if !o.away.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away.Store(false)
	o.began, o.ended = time.Time{}, now
}

// remember counts what went out blindly before this process began, so that its
// successor in the same outage has no credit of its own.
func (o *outage) remember(decisions []domain.Decision, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = now
	for _, d := range decisions {
		for _, h := range d.Holds {
			o.spent[bucketOf(h)] += h.Amount
		}
	}
}

// admits notes that the store is away, and reports whether holds fit into what
// is left of b; if so they are charged, all of them.
func (o *outage) admits(holds []domain.Hold, b blind, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() {
		if now.Sub(o.ended) > outageRest {
			clear(o.spent)
		}
		o.began = now
		o.away.Store(true)
	}
	if b.open <= 0 || now.Sub(o.began) > b.open {
		return false
	}
	for i, h := range holds {
		if h.Leased {
			continue // taken when the store was there
		}
		bucket := bucketOf(h)
		spent, known := o.spent[bucket]
		if !known && len(o.spent) >= maxOpenBuckets || spent+h.Amount > b.most[i] {
			return false
		}
	}
	for _, h := range holds {
		if !h.Leased {
			o.spent[bucketOf(h)] += h.Amount
		}
	}
	return true
}

// takeBack undoes what admits charged for a request that did not go out after all.
func (o *outage) takeBack(holds []domain.Hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range holds {
		bucket := bucketOf(h)
		// Where the outage is over meanwhile, its charges may be gone already.
		if spent, known := o.spent[bucket]; known && !h.Leased {
			o.spent[bucket] = max(spent-h.Amount, 0)
		}
	}
}
