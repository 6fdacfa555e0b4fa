package keywayv1

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"keyway/domain"
)

// MarshalSettlement encodes s as a Settlement.
func MarshalSettlement(s domain.Settlement) ([]byte, error) {
	message := &Settlement{Decision: DecisionToProto(s.Decision), Channel: s.Channel, Record: RecordToProto(s.Record)}
	if s.Stored.ID != "" {
		message.Stored = &Stored{Id: text(s.Stored.ID), Channel: s.Stored.Channel, Model: s.Stored.Model}
	}
	raw, err := proto.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode settlement: %w", err)
	}
	return raw, nil
}

// UnmarshalSettlement decodes what MarshalSettlement made. It fails for anything
// else, and for a record of another request than the decision's.
func UnmarshalSettlement(raw []byte) (domain.Settlement, error) {
	var p Settlement
	if err := proto.Unmarshal(raw, &p); err != nil {
		return domain.Settlement{}, fmt.Errorf("decode settlement: %w", err)
	}
	s := domain.Settlement{Decision: DecisionFromProto(p.GetDecision()), Channel: p.GetChannel(), Record: RecordFromProto(p.GetRecord())}
	if s.Record.RequestID == "" || s.Record.RequestID != s.Decision.RequestID {
		return domain.Settlement{}, errors.New("decode settlement: its record is of another request")
	}
	if made := p.GetStored(); made != nil {
		s.Stored = domain.StoredID{Identity: s.Decision.Identity, ID: made.GetId(), Channel: made.GetChannel(), Model: made.GetModel()}
	}
	return s, nil
}
