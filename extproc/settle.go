package extproc

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"keyway/domain"
	"keyway/telemetry"
)

// storeTimeout bounds one call to the store. A store that does not answer at
// all is noticed by its own guard much earlier.
const storeTimeout = 3 * time.Second

// Store is what extproc asks of the regional store.
type Store interface {
	Settle(ctx context.Context, s domain.Settlement) (domain.SettleResult, error)
	// Renew keeps leases alive; false means that the request is no longer open. One
	// that is Unreserved and that nobody knows yet counts as open.
	Renew(ctx context.Context, leases []domain.Lease) ([]bool, error)
	// MoveSlot reports false, and leaves the old slot released, when the new channel is full.
	MoveSlot(ctx context.Context, m domain.SlotMove) (bool, error)
}

// settle ends a reservation: in the store at once, or, when the store does not
// answer, in the journal, which lands it later. It never uses the request's
// own context, which has ended when a settlement is due.
func (s *Server) settle(settlement domain.Settlement) {
	id := settlement.Decision.RequestID
	s.leases.drop(id)
	s.recent.add(id)
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	result, err := s.land(ctx, settlement)
	if err == nil {
		s.settled(settlement, result)
		if settlement.Decision.Background && s.background != nil {
			s.background.done(id)
		}
		return
	}
	if !errors.Is(err, domain.ErrStoreDown) {
		s.logger.Error("settle failed; the journal will land it", telemetry.RequestID(id), telemetry.Err(err))
	}
	if err := s.journal.Append(settlement); err != nil {
		s.metrics.lost.Inc()
		s.logger.Error("settlement is left to the sweeper", telemetry.RequestID(id), telemetry.Err(err))
		return
	}
	s.keepOpen(settlement.Decision)
}

// land writes a settlement, and before it what it says of a stored id.
func (s *Server) land(ctx context.Context, settlement domain.Settlement) (domain.SettleResult, error) {
	if settlement.Stored.ID != "" {
		if err := s.storedIDs.Remember(ctx, settlement.Stored, s.keepStoredIDs()); err != nil {
			return 0, err
		}
	}
	return s.store.Settle(ctx, settlement)
}

// keepOpen keeps the sweeper from a reservation whose settlement waits in the
// journal. The request itself is over: its leases and its slot may end.
func (s *Server) keepOpen(d domain.Decision) {
	s.leases.hold(domain.Lease{RequestID: d.RequestID, Identity: d.Identity, TTL: d.Lease, Unreserved: d.Unreserved}, time.Time{})
}

// settled counts and logs what a settlement did, once.
func (s *Server) settled(settlement domain.Settlement, result domain.SettleResult) {
	r := settlement.Record
	s.metrics.observeSettlement(r, result)
	if result == domain.SettleAlready {
		return
	}
	d := settlement.Decision
	if !d.PriceOf(d.Last(r.Attempt)).PricesTier(r.Usage.Tier) {
		s.metrics.unpricedTiers.Inc()
	}
	if result == domain.SettleUnknown && !settlement.Decision.Unreserved {
		s.logger.Warn("settled a reservation that the store does not know", telemetry.RequestID(r.RequestID))
	}
	s.logger.LogAttrs(context.Background(), slog.LevelInfo, "request settled",
		telemetry.RequestID(r.RequestID), telemetry.KeyID(r.KeyID),
		slog.String("model", r.Model), slog.String("channel", r.Channel), slog.Int("attempts", len(r.Attempts)),
		slog.String("outcome", string(r.Outcome)), slog.String("source", string(r.Source)), slog.Int("status", r.Status),
		slog.Int64("input_tokens", r.Usage.Input()), slog.Int64("output_tokens", r.Usage.Output),
		slog.Int64("cost_micros", r.CostMicros))
}

// recent remembers the last requests that this process settled, so that their
// access-log entries, one for every request, cost the store nothing. It is a
// memory saver only: settling twice is harmless.
type recent struct {
	mu   sync.Mutex
	ring []string
	next int
	set  map[string]struct{}
}

// recentSize covers the requests of several access-log flushes.
const recentSize = 16_384

func newRecent() *recent {
	return &recent{ring: make([]string, recentSize), set: make(map[string]struct{}, recentSize)}
}

func (r *recent) add(requestID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.set[requestID]; ok {
		return
	}
	delete(r.set, r.ring[r.next])
	r.ring[r.next] = requestID
	r.set[requestID] = struct{}{}
	r.next = (r.next + 1) % recentSize
}

func (r *recent) has(requestID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.set[requestID]
	return ok
}
