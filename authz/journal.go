package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
	"keyway/journal"
	"keyway/telemetry"
)

// An admission that spends money while the store is away (on_store_down:
// optimistic) is written to this journal before the request goes out, and charged
// from there when the store is back, oldest first, whatever the limits say then.
//
// Its settlement comes by another way, extproc's own journal, and either may be
// first. Each carries the whole decision and the same request id, and the store
// keeps the end of a request for a day:
//
//	admission first: the hold is charged, the settlement corrects it to what was used
//	settlement first: what was used is charged, the admission finds it ended
//
// Both end with the same counters and one record. While nobody has landed,
// extproc goes on renewing the lease of a request that the store does not know
// yet (Decision.Unreserved). A request that nobody settles is swept like any
// other, once its admission has landed. Landing twice, after a crash, changes nothing.

const (
	// DefaultJournalBytes bounds the journal: some 30 000 admissions.
	DefaultJournalBytes = 16 << 20
	// replayTimeout bounds one call; a store that is silent is noticed long before.
	replayTimeout = 3 * time.Second
)

func openJournal(path string, maxBytes int64) (*journal.Journal[domain.Decision], error) {
	return journal.Open(path, maxBytes, journal.Codec[domain.Decision]{Encode: encodeAdmission, Decode: decodeAdmission})
}

// encodeAdmission writes d with the limits of its holds, which a decision does
// not carry elsewhere: a rate is charged by them.
func encodeAdmission(d domain.Decision) ([]byte, error) {
	p := &keywayv1.Admission{Decision: keywayv1.DecisionToProto(d)}
	for _, h := range d.Holds {
		p.Limits = append(p.Limits, h.Limit)
	}
	return proto.Marshal(p)
}

func decodeAdmission(raw []byte) (domain.Decision, error) {
	var p keywayv1.Admission
	if err := proto.Unmarshal(raw, &p); err != nil {
		return domain.Decision{}, fmt.Errorf("decode admission: %w", err)
	}
	d := keywayv1.DecisionFromProto(p.GetDecision())
	if len(p.GetLimits()) != len(d.Holds) {
		return domain.Decision{}, errors.New("decode admission: it has not a limit for each hold")
	}
	for i, limit := range p.GetLimits() {
		d.Holds[i].Limit = limit
	}
	return d, nil
}

// openJournal makes the journal ready, where there is one.
func (s *Server) openJournal() error {
	if s.journalFile == "" {
		return nil
	}
	j, err := openJournal(s.journalFile, s.journalBytes)
	if err != nil {
		return err
	}
	s.journal.Store(j)
	if n := j.Len(); n > 0 {
		s.logger.Info("journal holds admissions of an earlier run", slog.Int("count", n))
		s.outage.remember(j.Waiting(), s.now())
	}
	return nil
}

// closeJournal lands what it can.
func (s *Server) closeJournal() error {
	j := s.journal.Load()
	if j == nil {
		return nil
	}
	s.newReplay(j).Drain(context.Background())
	if n := j.Len(); n > 0 {
		s.logger.Warn("admissions stay in the journal for the next start", slog.Int("count", n))
	}
	return j.Close()
}

// goesBlind reports whether a request goes out although the store is away. One
// that spends money is in the journal when it says so.
func (s *Server) goesBlind(d *domain.Decision, own, shared domain.Policy) bool {
	b := blindly(d.Holds, own, shared)
	j := s.journal.Load()
	if b.credit && j == nil {
		b = blind{}
	}
	if !s.outage.admits(d.Holds, b, s.now()) {
		return false
	}
	if b.credit {
		d.Unreserved = true
		if err := j.Append(*d); err != nil {
			d.Unreserved = false
			s.outage.takeBack(d.Holds)
			if s.unwritten.due(s.now()) {
				s.logger.Error("requests are refused: the journal of optimistic admissions cannot take them", telemetry.Err(err))
			}
			return false
		}
	}
	s.metrics.outageAdmissions.WithLabelValues(b.mode()).Inc()
	return true
}

// newReplay says how admissions that wait in j land.
func (s *Server) newReplay(j *journal.Journal[domain.Decision]) *journal.Replay[domain.Decision] {
	return &journal.Replay[domain.Decision]{
		Journal: j, Land: s.landWaiting, Timeout: replayTimeout, Final: domain.ErrRefused,
		Stays: func(d domain.Decision, err error) {
			if !errors.Is(err, domain.ErrStoreDown) {
				s.logger.Error("an admission does not land", telemetry.RequestID(d.RequestID), telemetry.Err(err))
			}
		},
		SetAside: func(d domain.Decision, err error) {
			s.metrics.refused.Inc()
			s.logger.Error("the store refuses an admission for good; it is set aside, and its request charged by its settlement alone",
				telemetry.RequestID(d.RequestID), telemetry.Err(err), slog.String("file", j.RefusedPath()))
		},
	}
}

// landWaiting charges an admission of the journal.
func (s *Server) landWaiting(ctx context.Context, d domain.Decision) error {
	if err := s.reservations.AdmitLate(ctx, d); err != nil {
		return err
	}
	s.outage.over(s.now())
	s.metrics.replayed.Inc()
	return nil
}

// replay lands what waits in the journal, where there is one, until ctx ends.
func (s *Server) replay(ctx context.Context) error {
	if j := s.journal.Load(); j != nil {
		s.newReplay(j).Run(ctx)
	}
	return nil
}
