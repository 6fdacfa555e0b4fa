package extproc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// learned keeps what it was taught.
type learned struct{ samples []domain.ChannelSample }

func (l *learned) LearnChannels(_ context.Context, samples []domain.ChannelSample) error {
	l.samples = append(l.samples, samples...)
	return nil
}

// The rate limits that an answer tells of go to the region with the attempt.
func TestQuotasAreTaught(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t)
	l := &learned{}
	s.evidence.learner = l
	a := streamed(1)
	a.headers["x-ratelimit-limit-requests"] = []string{"100"}
	a.headers["x-ratelimit-remaining-requests"] = []string{"80"}
	a.headers["x-ratelimit-reset-requests"] = []string{"20s"}
	w, plan := s.begin(decisionOf(domain.APIResponses), a)
	require.Contains(t, plan.remove, "x-ratelimit-limit-requests", "the client does not see them")
	s.evidence.teach(t.Context())
	require.Empty(t, l.samples, "no attempt has shown anything yet")
	w.chunk([]byte("event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n"))
	w.finish()
	w.end()
	s.evidence.teach(t.Context())
	require.Len(t, l.samples, 1)
	require.Equal(t, 0.8, l.samples[0].QuotaLeft)
	require.Equal(t, 20*time.Second, l.samples[0].QuotaEnds)
	w.settle(domain.OutcomeSuccess)
	s.evidence.worked(w.slotHolder(), 0)
	s.evidence.teach(t.Context())
	require.Zero(t, l.samples[1].QuotaEnds, "it is told once")
}
