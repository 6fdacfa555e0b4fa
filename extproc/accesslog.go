package extproc

import (
	"context"
	"errors"
	"io"
	"time"

	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"

	"keyway/domain"
	"keyway/envoy"
	"keyway/telemetry"
)

// unwatchedDelay lets the watch side, of whichever replica, settle first: it
// knows more than an access-log entry does.
const unwatchedDelay = time.Second

// logEntry is what one access-log entry says, in plain types.
type logEntry struct {
	decision domain.Decision
	// status is what the client got; 0 for none.
	status   int
	attempts int
	notes    string
	// reached: the last attempt's connection to a provider was made.
	reached bool
	// byClient: the client's side ended first.
	byClient bool
	// byUpstream: the provider's side did.
	byUpstream bool
	// clean: no flag and no detail tells of a break.
	clean bool
	// unread: the watch has left the answer to this entry, and said by which id the
	// provider knows it.
	unread     bool
	upstreamID string
	// answeredAt is when the last attempt's answer began; zero when it did not.
	answeredAt time.Time
	// relayed: the relay answered, which settles by itself.
	relayed   bool
	bodyBytes int64
	endedAt   time.Time
}

// StreamAccessLogs implements envoy.service.accesslog.v3.AccessLogService.
func (s *Server) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	ended := make(chan error, 1)
	go func() { ended <- s.readAccessLogs(stream) }() // It ends with the stream.
	select {
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			return err
		}
	case <-s.quiet:
	}
	return stream.SendAndClose(&accesslogv3.StreamAccessLogsResponse{})
}

// A stop waits until nothing was held for quietTicks of quietTick: longer than
// Envoy keeps an entry back.
const (
	quietTick  = 50 * time.Millisecond
	quietTicks = 4
)

// awaitQuiet ends the streams of the access log once the stop has begun and
// nothing is held here any more. By themselves they end with Envoy alone, and
// every stop would last to its limit. Envoy goes on writing to the successor.
func (s *Server) awaitQuiet(ctx context.Context, stopping <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-stopping:
	}
	tick := time.NewTicker(quietTick)
	defer tick.Stop()
	for still := 0; still < quietTicks; still++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.leases.bound() > 0 {
			still = -1
		}
	}
	close(s.quiet)
}

// readAccessLogs takes in entries until the stream ends, and returns how.
func (s *Server) readAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, raw := range msg.GetHttpLogs().GetLogEntry() {
			if raw.GetCommonProperties().GetAccessLogType() == accesslogdatav3.AccessLogType_DownstreamPeriodic {
				s.runs(raw)
				continue
			}
			if s.known(raw) {
				continue
			}
			if entry, ok := s.readEntry(raw); ok {
				s.ended(entry)
			}
		}
	}
}

// runs takes the word of the access log that a request still waits for its
// answer, or that the answer, which nobody reads, still goes to the client, and
// keeps its holds for another lease: nobody else could. Requests that have another
// owner here are left to it.
func (s *Server) runs(raw *accesslogdatav3.HTTPAccessLogEntry) {
	id := raw.GetRequest().GetRequestId()
	_, unread := readUnread(raw)
	if raw.GetResponse().GetResponseCode() != nil && !unread || s.leases.owned(id) || s.recent.has(id) {
		return
	}
	if entry, ok := s.readEntry(raw); ok {
		s.leases.keep(leaseOf(entry.decision, entry.decision.Last(entry.attempts)))
	}
}

// known takes in the entry of a request that is watched here or was settled
// here. That is nearly every one, so it is found out before the decision is decoded.
func (s *Server) known(raw *accesslogdatav3.HTTPAccessLogEntry) bool {
	id := raw.GetRequest().GetRequestId()
	return s.ends.tell(id, ending{byClient: leftFirst(raw)}) || s.recent.has(id)
}

// leftFirst reports whether the client's side ended before the answer did.
func leftFirst(raw *accesslogdatav3.HTTPAccessLogEntry) bool {
	flags := raw.GetCommonProperties().GetResponseFlags()
	return flags.GetDownstreamConnectionTermination() || flags.GetDownstreamRemoteReset() || flags.GetDownstreamProtocolError()
}

// readEntry reads an entry; ok is false for a request that was never admitted.
func (s *Server) readEntry(raw *accesslogdatav3.HTTPAccessLogEntry) (entry logEntry, ok bool) {
	common := raw.GetCommonProperties()
	metadata := common.GetMetadata().GetFilterMetadata()
	decision, err := envoy.DecodeDecision(metadata[envoy.MetadataNamespace].GetFields()[envoy.MetadataDecision].GetStringValue())
	if err != nil {
		if !errors.Is(err, domain.ErrNotFound) {
			s.logger.Error("access log entry without a readable decision", telemetry.Err(err))
		}
		return logEntry{}, false
	}
	flags := common.GetResponseFlags()
	entry = logEntry{
		decision:  decision,
		status:    int(raw.GetResponse().GetResponseCode().GetValue()),
		attempts:  int(common.GetUpstreamRequestAttemptCount()),
		notes:     metadata[envoy.AttemptsNamespace].GetFields()[envoy.MetadataAttempts].GetStringValue(),
		reached:   common.GetUpstreamRemoteAddress() != nil,
		byClient:  leftFirst(raw),
		relayed:   common.GetUpstreamCluster() == envoy.ClusterRelay,
		bodyBytes: int64(raw.GetResponse().GetResponseBodyBytes()),
	}
	entry.byUpstream = !entry.byClient && (flags.GetUpstreamRemoteReset() || flags.GetUpstreamConnectionTermination() ||
		flags.GetUpstreamProtocolError() || flags.GetUpstreamRequestTimeout())
	entry.clean = !entry.byClient && !entry.byUpstream && !flags.GetLocalReset() && raw.GetResponse().GetResponseCodeDetails() == detailsViaUpstream
	entry.upstreamID, entry.unread = readUnread(raw)
	entry.endedAt = s.now()
	if begun := common.GetStartTime(); begun != nil {
		if d := common.GetDuration(); d != nil {
			entry.endedAt = begun.AsTime().Add(d.AsDuration())
		}
		if d := common.GetTimeToFirstUpstreamRxByte(); d != nil {
			entry.answeredAt = begun.AsTime().Add(d.AsDuration())
		}
	}
	return entry, true
}

// detailsViaUpstream is Envoy's word for an answer that an upstream gave.
const detailsViaUpstream = "via_upstream"

// detailsUnanswered begins Envoy's words for an attempt that got no answer: no
// connection, a reset before the headers, or no headers in time.
const detailsUnanswered = "upstream_"

// ended takes the word of the access log: to the watch that waits for it, or,
// where nobody watched, to a settlement.
func (s *Server) ended(entry logEntry) {
	id := entry.decision.RequestID
	if s.ends.tell(id, ending{byClient: entry.byClient}) || s.recent.has(id) {
		return
	}
	if entry.unread {
		s.settleUnread(entry)
		return
	}
	if entry.status == 0 && !entry.relayed {
		// No response headers: nobody can have watched it.
		s.blameUnseen(entry.decision, entry.attempts, entry.notes)
		s.settleEntry(entry)
		return
	}
	if entry.clean || (entry.decision.Background && entry.status < 400) {
		// The watch side of another replica saw it to its end, or follows what goes
		// on in the background.
		return
	}
	time.AfterFunc(unwatchedDelay, func() {
		if !s.recent.has(id) {
			s.settleEntry(entry)
		}
	})
}

// settleEntry settles by the access log alone: what was used is an estimate.
func (s *Server) settleEntry(entry logEntry) {
	d := entry.decision
	r := recordOf(d, attemptsOf(d, entry.attempts, entry.notes))
	r.Source, r.Status, r.EndedAt = domain.SourceEstimate, entry.status, entry.endedAt
	switch {
	case entry.byClient:
		r.Outcome = domain.OutcomeCancelled
	case entry.status == 0 || entry.status >= 400:
		r.Outcome = domain.OutcomeFailed
	default:
		r.Outcome = domain.OutcomeUpstreamCut
	}
	switch {
	case entry.status >= 400 || !entry.reached || r.Outcome == domain.OutcomeFailed:
		// Nothing was delivered, or no provider ever saw the prompt.
	default:
		r.Usage = domain.Usage{InputUncached: d.PromptTokens, Output: unreadOutput(d, entry.bodyBytes), Tools: d.SentUnits()}
	}
	r.CostMicros = d.PriceOf(d.Last(entry.attempts)).CostMicros(r.Usage)
	s.evidence.undecided(d.RequestID, d.Last(entry.attempts))
	s.settle(domain.Settlement{Decision: d, Channel: d.Last(entry.attempts).Channel, Record: r})
}

// frameBytesPerToken is the length of one streamed chunk, which carries about
// one token in some 180 bytes of JSON.
const frameBytesPerToken = 180

// unreadOutput estimates the output of a body that nobody read.
func unreadOutput(d domain.Decision, bodyBytes int64) int64 {
	per := int64(bytesPerToken)
	if d.Stream {
		per = frameBytesPerToken
	}
	return min(bodyBytes/per, d.OutputCap)
}
