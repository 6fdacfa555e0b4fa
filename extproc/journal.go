package extproc

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
	"keyway/journal"
)

// openJournal opens the journal of settlements that the store could not take;
// an entry is a keyway.v1.Settlement. Settling twice is harmless.
func openJournal(path string, maxBytes int64) (*journal.Journal[domain.Settlement], error) {
	return journal.Open(path, maxBytes, journal.Codec[domain.Settlement]{Encode: encodeSettlement, Decode: decodeSettlement})
}

func encodeSettlement(s domain.Settlement) ([]byte, error) {
	message := &keywayv1.Settlement{
		Decision: keywayv1.DecisionToProto(s.Decision), Channel: s.Channel, Record: keywayv1.RecordToProto(s.Record),
	}
	if s.Stored.ID != "" {
		message.Stored = &keywayv1.Stored{Id: s.Stored.ID, Channel: s.Stored.Channel, Model: s.Stored.Model}
	}
	return proto.Marshal(message)
}

func decodeSettlement(payload []byte) (domain.Settlement, error) {
	var p keywayv1.Settlement
	if err := proto.Unmarshal(payload, &p); err != nil {
		return domain.Settlement{}, fmt.Errorf("decode settlement: %w", err)
	}
	s := domain.Settlement{
		Decision: keywayv1.DecisionFromProto(p.GetDecision()),
		Channel:  p.GetChannel(),
		Record:   keywayv1.RecordFromProto(p.GetRecord()),
	}
	if s.Record.RequestID == "" || s.Record.RequestID != s.Decision.RequestID {
		return domain.Settlement{}, errors.New("decode settlement: its record is of another request")
	}
	if made := p.GetStored(); made != nil {
		s.Stored = domain.StoredID{Identity: s.Decision.Identity, ID: made.GetId(), Channel: made.GetChannel(), Model: made.GetModel()}
	}
	return s, nil
}
