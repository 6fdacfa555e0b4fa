package authz

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"keyway/domain"
)

const (
	// leaseTick is how often leases are taken and put back.
	leaseTick = 200 * time.Millisecond
	// leaseIdle is how long a lease that nobody uses stays here.
	leaseIdle = 10 * time.Second
	// leaseShare is the part of a minute's rate that one lease may be: a second's.
	// It is more only where a single request asks for more.
	leaseShare = 60
	// leaseTimeout bounds one exchange with the store.
	leaseTimeout = 2 * time.Second
	// maxLeased bounds the buckets of this replica; beyond it, the rates of further
	// owners are counted by the store.
	maxLeased = 100_000
	// maxNotes bounds the requests whose reservations wait to be written.
	maxNotes = 10_000
)

// Rates lends out what the central buckets of rates hold.
type Rates interface {
	// LeaseRates takes tokens, or puts them back; the answers are in the order of
	// wishes. It is never repeated: what failed counts as nothing taken.
	LeaseRates(ctx context.Context, wishes []domain.RateWish) ([]domain.RateLease, error)
	// Note writes the reservations of requests that went out on leases alone.
	Note(ctx context.Context, decisions []domain.Decision) error
}

// rateBucket is one rate of one owner.
type rateBucket struct {
	kind  domain.LimitKind
	scope domain.Scope
	id    string
}

func bucketOf(h domain.Hold) rateBucket { return rateBucket{h.Kind, h.Scope, h.ID} }

// lending gives out tokens that were leased from central buckets ahead of the
// requests. What is not here, the store is asked for at the request.
//
//	request ── enough here ──► taken, no call
//	        └─ not enough ───► central, and the next lease will be larger
type lending struct {
	rates  Rates
	logger *slog.Logger
	now    func() time.Time
	// dropped counts requests whose reservation was never written.
	dropped func()
	// answered hears of each exchange that the store answered: where leases do, no
	// request tells that it is back.
	answered func()

	mu      sync.Mutex // guards all below
	buckets map[rateBucket]*leased
	notes   []domain.Decision
}

// leased is what this replica holds of one rate.
type leased struct {
	// hold and identity are those of the last request: its limit and burst may have changed.
	hold     domain.Hold
	identity string
	left     int64
	// recent is about what was asked for within the last second; largest is the
	// most that one request asked for in the last tick in which any asked.
	recent, largest int64
	asked           bool // in this tick
	used            time.Time
	// askAt is when the central bucket has something to give again.
	askAt time.Time
	// central is what that had left at seen.
	central int64
	seen    time.Time
	// refusal is what the store said to refusedFor tokens at refusedAt.
	refusal    *domain.Refusal
	refusedFor int64
	refusedAt  time.Time
}

func newLending(r Rates, logger *slog.Logger, now func() time.Time, dropped func()) *lending {
	return &lending{rates: r, logger: logger, now: now, dropped: dropped, answered: func() {}, buckets: map[rateBucket]*leased{}}
}

func anyLeased(holds []domain.Hold) bool {
	return slices.ContainsFunc(holds, func(h domain.Hold) bool { return h.Leased })
}

// take takes every hold that may be leased out of what is here; where that is
// not enough, the hold becomes one that the store has to charge. A refusal is
// the store's own, a moment old: then nothing is taken.
func (l *lending) take(d *domain.Decision) *domain.Refusal {
	if !anyLeased(d.Holds) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for i := range d.Holds {
		h := &d.Holds[i]
		if !h.Leased {
			continue
		}
		b := l.bucket(d.Identity, *h)
		if b == nil {
			h.Leased = false
			continue
		}
		b.ask(h.Amount, now)
		if b.left >= h.Amount {
			b.left -= h.Amount
			continue
		}
		h.Leased = false
		if r := b.refused(h.Amount, now); r != nil {
			l.restore(d.Holds[:i])
			return r
		}
	}
	return nil
}

// bucket is that of h; nil when there are too many.
func (l *lending) bucket(identity string, h domain.Hold) *leased {
	b, ok := l.buckets[bucketOf(h)]
	if !ok {
		if len(l.buckets) >= maxLeased {
			return nil
		}
		b = &leased{}
		l.buckets[bucketOf(h)] = b
	}
	b.identity, b.hold = identity, h
	return b
}

// ask notes a demand, unless it can never be met.
func (b *leased) ask(amount int64, now time.Time) {
	if amount > b.hold.Size() {
		return
	}
	if !b.asked {
		b.largest = 0
	}
	b.asked, b.used = true, now
	b.recent += amount
	b.largest = max(b.largest, amount)
}

// refused is what the store said to no more than amount within the last tick,
// as it would say it now.
func (b *leased) refused(amount int64, now time.Time) *domain.Refusal {
	ago := now.Sub(b.refusedAt)
	if b.refusal == nil || amount < b.refusedFor || ago > leaseTick || b.refusal.RetryAfter > 0 && ago >= b.refusal.RetryAfter {
		return nil
	}
	r := *b.refusal
	if r.RetryAfter > 0 {
		r.RetryAfter -= ago
	}
	return &r
}

// putBack returns what take took for a request that did not go out.
func (l *lending) putBack(holds []domain.Hold) {
	if !anyLeased(holds) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restore(holds)
}

// restore is putBack; mu is held.
func (l *lending) restore(holds []domain.Hold) {
	for _, h := range holds {
		if b, ok := l.buckets[bucketOf(h)]; ok && h.Leased {
			b.left += h.Amount
		}
	}
}

// remember keeps what the store refused, so that it is asked once in a tick.
func (l *lending) remember(holds []domain.Hold, r domain.Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range holds {
		if b, ok := l.buckets[bucketOf(h)]; ok && h.Kind == r.Kind && h.Scope == r.Scope {
			b.refusal, b.refusedFor, b.refusedAt = &r, h.Amount, l.now()
		}
	}
}

// alone reports whether d went out on leases alone, so that nothing is left
// for the store to decide.
func alone(d *domain.Decision) bool {
	for _, h := range d.Holds {
		if !h.Leased {
			return false
		}
	}
	return len(d.Holds) > 0 && d.Candidates[0].Slots == 0
}

// note keeps a request whose reservation is written at the next tick.
func (l *lending) note(d domain.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.notes) >= maxNotes {
		l.dropped()
		return
	}
	l.notes = append(l.notes, d)
}

// fill writes into a what remains of the leased holds: what is here, and what
// the central bucket had when it was last seen and gained since.
func (l *lending) fill(a domain.Admission, holds []domain.Hold) domain.Admission {
	if !anyLeased(holds) {
		return a
	}
	if len(a.Remaining) != len(holds) {
		a.Remaining, a.Reset = make([]int64, len(holds)), make([]time.Duration, len(holds))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for i, h := range holds {
		b, ok := l.buckets[bucketOf(h)]
		if !ok || !h.Leased {
			continue
		}
		gained := int64(float64(h.Limit) * now.Sub(b.seen).Minutes())
		a.Remaining[i] = min(h.Size(), b.left+b.central+gained)
		a.Reset[i] = time.Duration(float64(h.Size()-a.Remaining[i]) / float64(h.Limit) * float64(time.Minute))
	}
	return a
}

// run takes and puts back leases until ctx ends, then puts back all.
func (l *lending) run(ctx context.Context) {
	ticker := time.NewTicker(leaseTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			l.tick(context.WithoutCancel(ctx), (*lending).rest)
			return
		case <-ticker.C:
			l.tick(ctx, (*lending).wish)
		}
	}
}

// tick exchanges leases as wishes say, and writes the reservations of what went out.
func (l *lending) tick(ctx context.Context, wishes func(*lending) ([]*leased, []domain.RateWish)) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	buckets, list := wishes(l)
	if len(list) > 0 {
		leases, err := l.rates.LeaseRates(ctx, list)
		if err != nil {
			l.logger.Debug("leases of rates failed", "error", err)
		} else {
			l.answered()
		}
		l.granted(buckets, list, leases)
	}
	l.mu.Lock()
	notes := l.notes
	l.notes = nil
	l.mu.Unlock()
	if len(notes) == 0 {
		return
	}
	if err := l.rates.Note(ctx, notes); err != nil {
		l.logger.Debug("reservations behind leases wait for the store", "count", len(notes), "error", err)
		for _, d := range notes {
			l.note(d)
		}
	}
}

// wish lists what to take and what to put back. What is put back is not here
// any more when the list is returned.
func (l *lending) wish() (buckets []*leased, list []domain.RateWish) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for id, b := range l.buckets {
		want := b.want(now)
		if now.Sub(b.used) > leaseIdle {
			want = -b.left
			delete(l.buckets, id)
		}
		b.asked, b.recent = false, b.recent*4/5
		if want == 0 {
			continue
		}
		if want < 0 {
			b.left += want
		}
		buckets, list = append(buckets, b), append(list, domain.RateWish{Identity: b.identity, Hold: b.hold, Want: want})
	}
	return buckets, list
}

// want is what to take, or below 0 to put back, so that about the next second
// is here: at least one more request, at most leaseShare of the limit.
func (b *leased) want(now time.Time) int64 {
	most := max(b.hold.Limit/leaseShare, b.largest)
	target := min(max(b.recent, b.largest), most, b.hold.Size())
	switch {
	case b.left > 2*target:
		return target - b.left
	case b.left < max(b.largest, target/2) && target > b.left && !now.Before(b.askAt):
		return target - b.left
	}
	return 0
}

// rest lists everything, to be put back.
func (l *lending) rest() (buckets []*leased, list []domain.RateWish) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, b := range l.buckets {
		if b.left > 0 {
			buckets, list = append(buckets, b), append(list, domain.RateWish{Identity: b.identity, Hold: b.hold, Want: -b.left})
		}
		delete(l.buckets, id)
	}
	return buckets, list
}

// granted takes in the answers. What was put back went before.
func (l *lending) granted(buckets []*leased, wishes []domain.RateWish, leases []domain.RateLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for i, b := range buckets {
		b.left += max(0, leases[i].Granted)
		b.central, b.seen, b.askAt = leases[i].Left, now, time.Time{}
		if leases[i].Granted < wishes[i].Want {
			b.askAt = now.Add(leases[i].Wait)
		}
	}
}
