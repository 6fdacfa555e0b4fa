package extproc

import (
	"context"
	"errors"

	"keyway/domain"
	"keyway/journal"
	"keyway/telemetry"
)

// newReplay says how settlements that wait in the journal land.
func (s *Server) newReplay() *journal.Replay[domain.Settlement] {
	return &journal.Replay[domain.Settlement]{
		Journal: s.journal, Land: s.landWaiting, Timeout: storeTimeout, Final: domain.ErrRefused,
		Stays: s.staysWaiting, SetAside: s.setAside,
	}
}

// landWaiting lands a settlement of the journal, and ends what kept its reservation open.
func (s *Server) landWaiting(ctx context.Context, settlement domain.Settlement) error {
	result, err := s.land(ctx, settlement)
	if err != nil {
		return err
	}
	s.leases.drop(settlement.Decision.RequestID)
	s.settled(settlement, result)
	return nil
}

// staysWaiting logs what the store's own alarms do not tell.
func (s *Server) staysWaiting(settlement domain.Settlement, err error) {
	if !errors.Is(err, domain.ErrStoreDown) {
		s.logger.Error("a settlement of the journal does not land", telemetry.RequestID(settlement.Decision.RequestID), telemetry.Err(err))
	}
}

// setAside gives up a settlement that the store never takes; its reservation is
// left to the sweeper.
func (s *Server) setAside(settlement domain.Settlement, err error) {
	s.leases.drop(settlement.Decision.RequestID)
	s.metrics.refused.Inc()
	s.logger.Error("the store refuses a settlement for good; it is set aside and left to the sweeper",
		telemetry.RequestID(settlement.Decision.RequestID), telemetry.Err(err), "file", s.journal.RefusedPath())
}
