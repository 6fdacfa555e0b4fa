package envoy

import (
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// EncodeDecision writes d in the form in which it crosses Envoy: protobuf in
// unpadded URL-safe base64, which survives both metadata and gRPC headers.
func EncodeDecision(d domain.Decision) (string, error) {
	d.Route = nil // for people, and in the store
	raw, err := proto.Marshal(keywayv1.DecisionToProto(d))
	if err != nil {
		return "", fmt.Errorf("encode decision: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(raw), nil
}

// DecodeDecision reads what EncodeDecision wrote. Envoy writes "-" where there
// is no decision (a request that authz refused): that is domain.ErrNotFound.
func DecodeDecision(s string) (domain.Decision, error) {
	if s == "" || s == "-" {
		return domain.Decision{}, fmt.Errorf("decode decision: %w", domain.ErrNotFound)
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return domain.Decision{}, fmt.Errorf("decode decision: %w", err)
	}
	var p keywayv1.Decision
	if err := proto.Unmarshal(raw, &p); err != nil {
		return domain.Decision{}, fmt.Errorf("decode decision: %w", err)
	}
	return keywayv1.DecisionFromProto(&p), nil
}
