package config

import (
	"fmt"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
)

// maxDetailBytes bounds the reason that a NACK carries.
const maxDetailBytes = 16 << 10

// answer takes one response of the control plane and makes the ACK or NACK for it.
func (s *subscriber) answer(resp *discoveryv3.DeltaDiscoveryResponse) *discoveryv3.DeltaDiscoveryRequest {
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}
	for _, removed := range resp.GetRemovedResources() {
		if removed == s.name {
			// A region's configuration is replaced, never taken away: to go
			// on serving is the safe reading.
			s.resourceVersion = ""
			s.Logger.Warn("control plane removed the configuration; the last good one stays in force")
		}
	}
	for _, res := range resp.GetResources() {
		if res.GetName() != s.name {
			continue
		}
		if err := s.receive(res); err != nil {
			s.Logger.Error("configuration refused; the last good one stays in force", "error", err)
			detail := err.Error()
			ack.ErrorDetail = &rpcstatus.Status{
				Code: int32(codes.InvalidArgument),
				// A cut may fall inside a character, which a message must not hold.
				Message: strings.ToValidUTF8(detail[:min(len(detail), maxDetailBytes)], ""),
			}
		}
	}
	return ack
}

// receive puts one resource in force and keeps it for the next start.
func (s *subscriber) receive(res *discoveryv3.Resource) error {
	rc := new(keywayv1.RegionConfig)
	if err := res.GetResource().UnmarshalTo(rc); err != nil {
		return fmt.Errorf("decode configuration: %w", err)
	}
	fresh, err := s.accept(rc)
	if err != nil {
		return err
	}
	s.resourceVersion = res.GetVersion()
	if fresh == outcomeKnown {
		return nil
	}
	s.Logger.Info("configuration is in force", "version", rc.GetVersion())
	if s.CacheFile == "" {
		return nil
	}
	if err := SaveRegionConfig(s.CacheFile, rc); err != nil {
		// In force all the same: a full disk must not stop a price change.
		s.Logger.Error("configuration is not kept for the next start", "file", s.CacheFile, "error", err)
	}
	return nil
}

// outcome is what accept did with a good configuration.
type outcome int

const (
	// outcomeKnown: it is in force already.
	outcomeKnown outcome = iota
	// outcomeSet: it is in force now.
	outcomeSet
)

// accept compiles rc and puts it in force, unless it is older than the one in
// force or belongs elsewhere.
func (s *subscriber) accept(rc *keywayv1.RegionConfig) (outcome, error) {
	if last := s.last.GetVersion(); rc.GetVersion() < last {
		return outcomeKnown, fmt.Errorf("accept configuration: version %d is older than %d, which is in force", rc.GetVersion(), last)
	}
	if region := rc.GetConfig().GetRegion(); region != s.Region {
		return outcomeKnown, fmt.Errorf("accept configuration: it is for region %q, this is %q", region, s.Region)
	}
	if s.last != nil && proto.Equal(rc, s.last) {
		return outcomeKnown, nil
	}
	snapshot, err := Compile(rc)
	if err != nil {
		return outcomeKnown, err
	}
	s.last = rc
	s.Holder.Set(snapshot)
	return outcomeSet, nil
}
