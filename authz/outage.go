package authz

import (
	"log/slog"
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

// openWindow is for how long a request's limits may be kept by each replica on
// its own: the shortest window of the policies that limit it, and 0 where
// anything but a rate of theirs does.
func openWindow(holds []domain.Hold, own, shared domain.Policy) time.Duration {
	windows := map[domain.Scope]time.Duration{
		domain.ScopeKey: own.OpenWindow, domain.ScopeKeyModel: own.OpenWindow,
		domain.ScopeIdentity: shared.OpenWindow, domain.ScopeIdentityModel: shared.OpenWindow,
	}
	var open time.Duration
	for i, h := range holds {
		window := windows[h.Scope]
		if h.Kind != domain.LimitRPM && h.Kind != domain.LimitTPM && h.Kind != domain.LimitCountTokens {
			window = 0
		}
		if i == 0 || window < open {
			open = window
		}
	}
	return open
}

// outage bounds what is admitted while the store is away: of each rate, what it
// gives within the open window, once per outage.
type outage struct {
	// away spares the lock while all is well.
	away atomic.Bool

	mu sync.Mutex
	// began is when the store was first found away, ended when it last came back.
	began, ended time.Time
	spent        map[rateBucket]int64
}

// complaint says something in the log that may be true of every request, at most
// once in complaintPause. The zero value is ready.
type complaint struct{ last atomic.Int64 }

const complaintPause = 10 * time.Second

// note complains that budgets are unknown.
func (c *complaint) note(log *slog.Logger, now time.Time) {
	last := c.last.Load()
	if now.UnixNano()-last < int64(complaintPause) || !c.last.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	log.Error("budgeted requests are refused: the store is new or has lost writes, and no worker has rebuilt its budgets from the ledger yet; is one running?")
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

// admits notes that the store is away, and reports whether holds fit into what
// is left of the window open; if so they are charged, all of them.
func (o *outage) admits(holds []domain.Hold, open time.Duration, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() {
		if now.Sub(o.ended) > outageRest {
			clear(o.spent)
		}
		o.began = now
		o.away.Store(true)
	}
	if open <= 0 || now.Sub(o.began) > open {
		return false
	}
	for _, h := range holds {
		if h.Leased {
			continue // taken when the store was there
		}
		bucket := bucketOf(h)
		spent, known := o.spent[bucket]
		if !known && len(o.spent) >= maxOpenBuckets || spent+h.Amount > allowance(h, open) {
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

// allowance is what the rate of h gives within open. Config bounds both, so
// that the product fits.
func allowance(h domain.Hold, open time.Duration) int64 {
	return h.Limit * open.Milliseconds() / time.Minute.Milliseconds()
}
