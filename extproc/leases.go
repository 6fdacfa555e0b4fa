package extproc

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"keyway/domain"
)

const (
	// firstRenewal is soon, so that a hold whose request really runs is marked
	// as such long before a crash could hide it; short requests never renew.
	firstRenewal = 2 * time.Second
	// renewTick is how often due leases are looked for.
	renewTick = 500 * time.Millisecond
	// renewBatch bounds one call to the store.
	renewBatch = 500
	// renewalsPerLease: a lease is renewed three times before it would end.
	renewalsPerLease = 3
)

// leases keeps the holds of running requests alive while this process runs.
// Many goroutines add and drop; one renews.
type leases struct {
	store  Store
	logger *slog.Logger

	mu   sync.Mutex
	held map[string]*held
}

type held struct {
	lease domain.Lease
	due   time.Time
	// until ends the renewal of a request that nobody watches; zero while a watch
	// owns it.
	until time.Time
	// told: the access log tells whoever gets it that the request runs, again and
	// again, and each time it is renewed once.
	told bool
}

func newLeases(store Store, logger *slog.Logger) *leases {
	return &leases{store: store, logger: logger, held: make(map[string]*held)}
}

// hold begins or changes the renewal of a request; with a zero until it goes
// on until drop, whatever until comes later.
func (l *leases) hold(lease domain.Lease, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, ok := l.held[lease.RequestID]
	if !ok {
		h = &held{due: time.Now().Add(min(firstRenewal, lease.TTL/renewalsPerLease))}
		l.held[lease.RequestID] = h
	}
	h.lease, h.told = lease, false
	if !ok || !h.until.IsZero() {
		h.until = until
	}
}

// keep renews a request that nobody here owns, of which the access log tells that
// it runs: once, since the log will tell it again, of which replica ever.
func (l *leases) keep(lease domain.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, ok := l.held[lease.RequestID]; ok && h.until.IsZero() {
		return
	}
	now := time.Now()
	l.held[lease.RequestID] = &held{
		lease: lease, due: now, until: now.Add(lease.TTL/renewalsPerLease + renewTick), told: true,
	}
}

// owned reports whether a watch keeps the request's holds, or an attempt for
// longer than its next lease.
func (l *leases) owned(requestID string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, ok := l.held[requestID]
	return ok && !h.told && (h.until.IsZero() || time.Until(h.until) > h.lease.TTL)
}

// bound is how many have to be kept by this process, and by no other.
func (l *leases) bound() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.held {
		if !h.told {
			n++
		}
	}
	return n
}

// drop ends the renewal of a request.
func (l *leases) drop(requestID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, requestID)
}

func (l *leases) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// run renews until ctx ends.
func (l *leases) run(ctx context.Context) {
	ticker := time.NewTicker(renewTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for batch := l.takeDue(now); len(batch) > 0; batch = l.takeDue(now) {
				if !l.renew(ctx, batch) {
					break
				}
			}
		}
	}
}

// takeDue returns leases that are due and puts off their next renewal.
func (l *leases) takeDue(now time.Time) []domain.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	var batch []domain.Lease
	for id, h := range l.held {
		if !h.until.IsZero() && now.After(h.until) {
			delete(l.held, id)
			continue
		}
		if now.Before(h.due) {
			continue
		}
		// Jitter keeps streams that began together from renewing together.
		h.due = now.Add(jitter(h.lease.TTL / renewalsPerLease))
		if h.told {
			h.due = h.until
		}
		batch = append(batch, h.lease)
		if len(batch) == renewBatch {
			break
		}
	}
	return batch
}

// renew reports whether the store answered. What it no longer knows as open is dropped.
func (l *leases) renew(ctx context.Context, batch []domain.Lease) bool {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	open, err := l.store.Renew(ctx, batch)
	if err != nil {
		if !errors.Is(err, domain.ErrStoreDown) && ctx.Err() == nil {
			l.logger.Error("renew leases failed", "count", len(batch), "error", err)
		}
		l.retrySoon(batch)
		return false
	}
	for i, ok := range open {
		if !ok {
			l.drop(batch[i].RequestID)
		}
	}
	return true
}

// retrySoon makes what could not be renewed due at the next tick.
func (l *leases) retrySoon(batch []domain.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range batch {
		if h, ok := l.held[lease.RequestID]; ok {
			h.due = time.Now()
		}
	}
}
