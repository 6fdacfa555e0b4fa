package extproc

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"keyway/domain"
	"keyway/envoy"
)

// spoken is a request for 1000 characters of sound, priced by both.
func spoken() domain.Decision {
	d := decisionOf(domain.APISpeech)
	d.PromptTokens, d.OutputCap = 0, 1400
	d.Units[domain.ToolCharacter] = 1000
	d.Price.Tools = []domain.ToolRate{{Tool: domain.ToolCharacter, PerThousand: 7}}
	return d
}

// entryOf is the entry of the access log of an answer that the watch left unread.
func entryOf(t *testing.T, d domain.Decision, upstreamID string, flags *accesslogdatav3.ResponseFlags) *accesslogdatav3.HTTPAccessLogEntry {
	t.Helper()
	text, err := envoy.EncodeDecision(d)
	require.NoError(t, err)
	notes := unreadNote(upstreamID).GetFields()
	return &accesslogdatav3.HTTPAccessLogEntry{
		CommonProperties: &accesslogdatav3.AccessLogCommon{
			AccessLogType: accesslogdatav3.AccessLogType_DownstreamEnd,
			Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				envoy.MetadataNamespace: {Fields: map[string]*structpb.Value{envoy.MetadataDecision: structpb.NewStringValue(text)}},
				envoy.WatchNamespace:    notes[envoy.WatchNamespace].GetStructValue(),
			}},
			UpstreamRequestAttemptCount: 1,
			StartTime:                   timestamppb.New(start),
			TimeToFirstUpstreamRxByte:   durationpb.New(time.Second),
			Duration:                    durationpb.New(time.Minute),
			ResponseFlags:               flags,
		},
		Request: &accesslogdatav3.HTTPRequestProperties{RequestId: d.RequestID},
		Response: &accesslogdatav3.HTTPResponseProperties{
			ResponseCode: wrapperspb.UInt32(http.StatusOK), ResponseCodeDetails: detailsViaUpstream, ResponseBodyBytes: 50_000,
		},
	}
}

func soundAnswer() answer {
	return answer{
		status: http.StatusOK, fromUpstream: true, attempts: 1,
		headers: map[string][]string{"content-type": {"audio/mpeg"}, "x-request-id": {"up-1"}},
	}
}

func TestUnreadAnswersWaitForTheirEntry(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		flags   *accesslogdatav3.ResponseFlags
		details string
		outcome domain.Outcome
		tokens  int64
		failed  int64
	}{
		{"whole", nil, detailsViaUpstream, domain.OutcomeSuccess, 1400, 0},
		{"left, HTTP/1.1", &accesslogdatav3.ResponseFlags{DownstreamConnectionTermination: true}, "downstream_remote_disconnect", domain.OutcomeCancelled, 100, 0},
		{"left, HTTP/2", &accesslogdatav3.ResponseFlags{DownstreamRemoteReset: true}, "http2.remote_reset", domain.OutcomeCancelled, 100, 0},
		{"reset", &accesslogdatav3.ResponseFlags{UpstreamRemoteReset: true}, "upstream_reset_after_response_started{remote_reset}", domain.OutcomeUpstreamCut, 100, 1},
		{"dropped", &accesslogdatav3.ResponseFlags{UpstreamConnectionTermination: true}, "upstream_reset_after_response_started{connection_termination}", domain.OutcomeUpstreamCut, 100, 1},
		{"no HTTP", &accesslogdatav3.ResponseFlags{UpstreamProtocolError: true}, "upstream_reset_after_response_started{protocol_error}", domain.OutcomeUpstreamCut, 100, 1},
		{"dropped, and the client left for it", &accesslogdatav3.ResponseFlags{UpstreamConnectionTermination: true, DownstreamRemoteReset: true}, "x", domain.OutcomeCancelled, 100, 0},
		{"nobody's fault", &accesslogdatav3.ResponseFlags{}, "overload", domain.OutcomeUpstreamCut, 100, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			book := &fakeBook{}
			s.evidence.book, s.evidence.learner = book, book
			_, plan := s.begin(spoken(), soundAnswer())
			require.True(t, plan.unread)
			require.False(t, plan.body, "its bytes do not come by here")
			require.False(t, store.has("req-1"))
			require.Equal(t, 1, s.leases.len())

			raw := entryOf(t, spoken(), "up-1", tc.flags)
			raw.Response.ResponseCodeDetails = tc.details
			require.False(t, s.known(raw))
			entry, ok := s.readEntry(raw)
			require.True(t, ok)
			s.ended(entry)
			r := store.get(t, "req-1").Record
			assert.Equal(t, tc.outcome, r.Outcome)
			assert.Equal(t, tc.tokens, r.Usage.OutputAudio)
			assert.Equal(t, tc.tokens, r.Usage.Output)
			assert.Equal(t, int64(1000), r.Usage.Tools[domain.ToolCharacter], "what was sent counts whole")
			assert.Equal(t, 2*tc.tokens+7, r.CostMicros)
			assert.Equal(t, "up-1", r.UpstreamRequestID)
			assert.Equal(t, []domain.Attempt{{Channel: "a", Status: http.StatusOK, At: start.Add(time.Second)}}, r.Attempts)
			assert.Equal(t, start.Add(time.Minute), r.EndedAt)
			assert.Zero(t, s.leases.len())
			require.True(t, s.known(raw), "it is settled once")

			s.evidence.teach(t.Context())
			require.Len(t, book.samples, 1)
			assert.Equal(t, tc.failed, book.samples[0].Failed)
		})
	}
}

// The entry goes to whichever replica: one that never saw the head settles by it.
func TestUnreadAnswersAreSettledByAnyReplica(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	raw := entryOf(t, spoken(), "", nil)
	raw.CommonProperties.AccessLogType = accesslogdatav3.AccessLogType_DownstreamPeriodic
	s.runs(raw)
	require.Equal(t, 1, s.leases.len(), "its holds are kept here from now on")
	require.Zero(t, s.leases.bound(), "but a stop does not wait for it")
	require.Len(t, s.leases.takeDue(time.Now()), 1, "at once: nobody knows since when they were not")

	watched := entryOf(t, decisionOf(domain.APIChat), "", nil)
	watched.CommonProperties.Metadata.FilterMetadata[envoy.WatchNamespace] = nil
	watched.Request.RequestId = "watched"
	s.runs(watched)
	require.Equal(t, 1, s.leases.len(), "an answer that is read has its watch")

	entry, ok := s.readEntry(entryOf(t, spoken(), "", nil))
	require.True(t, ok)
	s.ended(entry)
	require.Equal(t, domain.OutcomeSuccess, store.get(t, "req-1").Record.Outcome)
	s.runs(raw)
	require.Zero(t, s.leases.len(), "an entry that comes late keeps nothing")
}

func TestToldLeasesAreRenewedOnceEachTime(t *testing.T) {
	t.Parallel()
	store := &fakeStore{gone: map[string]bool{}}
	l := newLeases(store, slog.New(slog.DiscardHandler))
	lease := domain.Lease{RequestID: "told", TTL: 30 * time.Second}
	l.keep(lease)
	now := time.Now()
	batch := l.takeDue(now)
	require.Len(t, batch, 1)
	require.Empty(t, l.takeDue(now.Add(9*time.Second)), "renewed until it is told again")
	l.keep(lease)
	require.Len(t, l.takeDue(time.Now()), 1)
	store.fail(domain.ErrStoreDown)
	require.False(t, l.renew(t.Context(), batch))
	require.Len(t, l.takeDue(time.Now()), 1, "what failed is tried again")
	require.Empty(t, l.takeDue(time.Now().Add(11*time.Second)))
	require.Zero(t, l.len(), "it was not told again: somebody else has it, or nobody")

	l.hold(lease, time.Time{})
	l.keep(lease)
	require.Equal(t, 1, l.bound(), "a watch that has it keeps it")
	l.drop("told")
	l.keep(lease)
	l.hold(lease, time.Time{})
	require.Equal(t, 1, l.bound(), "an attempt of ours, or its watch, takes it over")
	require.Empty(t, l.takeDue(time.Now().Add(time.Hour))[1:])
	require.Equal(t, 1, l.len())
}

// Sound in events has no text to count: without a usage it costs what plain sound does.
func TestSoundInEventsIsCounted(t *testing.T) {
	t.Parallel()
	const (
		sound = `data: {"type":"speech.audio.delta","audio":"` + "QUJD"
		done  = `data: {"type":"speech.audio.done"}` + "\n\n"
	)
	event := sound + strings.Repeat("QUJD", 10_000) + `"}` + "\n\n"
	for _, tc := range []struct {
		name, body string
		outcome    domain.Outcome
		tokens     int64
	}{
		{"whole", event + done, domain.OutcomeSuccess, 1400},
		{"left", event, domain.OutcomeCancelled, 60},
		{"with a usage", event + strings.Replace(done, `}`, `,"usage":{"input_tokens":9,"output_tokens":77}}`, 1), domain.OutcomeSuccess, 77},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			w, plan := s.begin(spoken(), answer{
				status: http.StatusOK, fromUpstream: true, attempts: 1, headers: map[string][]string{"content-type": {"text/event-stream"}},
			})
			require.True(t, plan.body)
			w.chunk([]byte(tc.body))
			if tc.outcome == domain.OutcomeSuccess {
				w.finish()
			} else {
				w.left = true
			}
			w.end()
			r := store.get(t, "req-1").Record
			assert.Equal(t, tc.outcome, r.Outcome)
			assert.Equal(t, tc.tokens, r.Usage.OutputAudio)
			assert.Equal(t, tc.tokens, r.Usage.Output)
			assert.Equal(t, int64(1000), r.Usage.Tools[domain.ToolCharacter])
		})
	}
}
