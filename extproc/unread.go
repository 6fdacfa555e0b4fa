package extproc

import (
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"keyway/domain"
	"keyway/envoy"
	"keyway/wire"
)

// unreadNote is what the watch leaves with a request whose answer it does not read.
func unreadNote(upstreamID string) *structpb.Struct {
	note := &structpb.Struct{Fields: map[string]*structpb.Value{envoy.MetadataUnread: structpb.NewStringValue(upstreamID)}}
	return &structpb.Struct{Fields: map[string]*structpb.Value{envoy.WatchNamespace: structpb.NewStructValue(note)}}
}

// readUnread finds that note.
func readUnread(raw *accesslogdatav3.HTTPAccessLogEntry) (upstreamID string, unread bool) {
	note, unread := raw.GetCommonProperties().GetMetadata().GetFilterMetadata()[envoy.WatchNamespace].GetFields()[envoy.MetadataUnread]
	return note.GetStringValue(), unread
}

// settleUnread ends a good answer that nobody has read by the entry of its end.
// That the channel served has been reported at its head.
func (s *Server) settleUnread(entry logEntry) {
	d := entry.decision
	holder := d.Last(entry.attempts)
	attempts := attemptsOf(d, entry.attempts, entry.notes)
	if n := len(attempts); n > 0 {
		attempts[n-1].Status, attempts[n-1].At = entry.status, entry.answeredAt
	}
	r := recordOf(d, attempts)
	r.Source, r.Status, r.UpstreamRequestID, r.EndedAt = domain.SourceEstimate, entry.status, entry.upstreamID, entry.endedAt
	switch {
	case entry.clean:
		r.Outcome = domain.OutcomeSuccess
	case entry.byClient:
		r.Outcome = domain.OutcomeCancelled
	default:
		r.Outcome = domain.OutcomeUpstreamCut
	}
	if entry.byUpstream {
		s.evidence.failed(holder, wire.Failure{})
	}
	r.Usage = unread(d, r.Outcome, entry.bodyBytes)
	r.CostMicros = d.PriceOf(holder).CostMicros(r.Usage)
	s.settle(domain.Settlement{Decision: d, Channel: holder.Channel, Record: r})
}

// soundBytesPerToken is the length of a token of sound: 20 of them are a second,
// which takes some 10 000 bytes, as wire reckons with.
const soundBytesPerToken = 500

// unread is what a good answer used that nobody could read: sound, or what passes
// raw. Of one that was cut the pieces count whole, since a provider counts them in
// what it was sent, and of the tokens of sound those that went on to the client.
func unread(d domain.Decision, outcome domain.Outcome, bytes int64) domain.Usage {
	u := domain.Usage{InputUncached: d.PromptTokens, Tools: d.Units}
	if d.API == domain.APISpeech {
		u.Output = d.OutputCap
		if outcome != domain.OutcomeSuccess {
			u.Output = min(u.Output, bytes/soundBytesPerToken)
		}
		u.OutputAudio = u.Output
	}
	return u
}
