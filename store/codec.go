package store

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// The fields of an outbox entry, and the version of what lies in fieldRecord.
const (
	fieldVersion  = "v"
	fieldRecord   = "r"
	recordVersion = "1"
)

func encodeDecision(d domain.Decision) ([]byte, error) {
	raw, err := proto.Marshal(keywayv1.DecisionToProto(d))
	if err != nil {
		return nil, fmt.Errorf("encode decision: %w", err)
	}
	return raw, nil
}

func decodeDecision(raw string) (domain.Decision, error) {
	var message keywayv1.Decision
	if err := proto.Unmarshal([]byte(raw), &message); err != nil {
		return domain.Decision{}, fmt.Errorf("decode decision: %w", err)
	}
	if message.GetRequestId() == "" {
		return domain.Decision{}, errors.New("decode decision: it names no request")
	}
	return keywayv1.DecisionFromProto(&message), nil
}

func encodeRecord(r domain.UsageRecord) ([]byte, error) {
	raw, err := proto.Marshal(keywayv1.RecordToProto(r))
	if err != nil {
		return nil, fmt.Errorf("encode usage record: %w", err)
	}
	return raw, nil
}

// decodeRecord reads the fields of an outbox entry. A version it does not know
// is an error: guessing at money would be worse than a dead letter.
func decodeRecord(fields map[string]any) (domain.UsageRecord, error) {
	if v := fields[fieldVersion]; v != recordVersion {
		return domain.UsageRecord{}, fmt.Errorf("decode usage record: unknown schema version %v", v)
	}
	raw, ok := fields[fieldRecord].(string)
	if !ok {
		return domain.UsageRecord{}, errors.New("decode usage record: the entry holds none")
	}
	var message keywayv1.UsageRecord
	if err := proto.Unmarshal([]byte(raw), &message); err != nil {
		return domain.UsageRecord{}, fmt.Errorf("decode usage record: %w", err)
	}
	if message.GetRequestId() == "" {
		return domain.UsageRecord{}, errors.New("decode usage record: it names no request")
	}
	return keywayv1.RecordFromProto(&message), nil
}
