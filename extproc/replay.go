package extproc

import (
	"context"
	"time"

	"keyway/telemetry"
)

// replayPause is how long the replay rests when nothing waits or the store does not answer.
const replayPause = 200 * time.Millisecond

// replay lands what waits in the journal, oldest first, until ctx ends.
func (s *Server) replay(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			for s.replayOldest(ctx) && ctx.Err() == nil {
			}
			timer.Reset(replayPause)
		}
	}
}

// replayOldest reports whether there was one and it landed.
func (s *Server) replayOldest(ctx context.Context) bool {
	settlement, ok := s.journal.Oldest()
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	result, err := s.land(ctx, settlement)
	if err != nil {
		return false
	}
	s.leases.drop(settlement.Decision.RequestID)
	s.settled(settlement, result)
	if err := s.journal.Landed(); err != nil {
		s.logger.Error("journal", telemetry.Err(err))
	}
	return true
}
