package extproc

import (
	"context"
	"time"

	"keyway/domain"
	"keyway/telemetry"
)

// StoredIDs keeps which channel made what providers keep.
type StoredIDs interface {
	Remember(ctx context.Context, made domain.StoredID, keep time.Duration) error
}

// rememberTimeout bounds the wait of the first bytes that name a stored id.
const rememberTimeout = 250 * time.Millisecond

// remember keeps which channel made the response, before its id reaches the
// client, which may use it at once and at any replica. Where the store does not
// take it now, the settlement brings it. Of one that is made in the background it
// is noted as well who follows it.
func (w *watch) remember() {
	if w.remembered || w.decision.API.Free() || !w.decision.API.Continues() {
		return
	}
	id := w.watcher.UpstreamID()
	if id == "" {
		return
	}
	w.remembered = true
	s, holder := w.server, w.slotHolder()
	made := domain.StoredID{Identity: w.decision.Identity, ID: id, Channel: holder.Channel, Model: w.decision.ModelOf(holder)}
	ctx, cancel := context.WithTimeout(context.Background(), rememberTimeout)
	defer cancel()
	if err := s.storedIDs.Remember(ctx, made, s.keepStoredIDs()); err != nil {
		w.unkept = made
		s.logger.Warn("stored id waits for the settlement", telemetry.RequestID(w.decision.RequestID), telemetry.Err(err))
	}
	if w.decision.Background && s.background != nil {
		s.background.keep(ctx, w.soFar(id))
	}
}

// keepStoredIDs is how long stored ids are remembered.
func (s *Server) keepStoredIDs() time.Duration {
	if snap := s.config.Load(); snap != nil {
		return snap.KeepStoredIDs
	}
	return domain.DefaultKeepStoredIDs
}
