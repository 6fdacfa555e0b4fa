package extproc

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
	"keyway/envoy"
)

// fakeProbes lets one probe in each time, unless others have it.
type fakeProbes struct {
	mu     sync.Mutex
	others bool
	ended  []domain.CooldownReason
}

func (f *fakeProbes) ClaimProbe(context.Context, string, time.Duration) (bool, error) {
	return !f.others, nil
}

func (f *fakeProbes) EndOut(_ context.Context, _ string, reason domain.CooldownReason) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, reason)
	return true, nil
}

// egressAnswer is what the egress listener answers.
type egressAnswer func(*http.Request) (*http.Response, error)

func (f egressAnswer) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestProbeVerdicts(t *testing.T) {
	t.Parallel()
	answer := func(status int, header, body string) egressAnswer {
		return func(*http.Request) (*http.Response, error) {
			h := http.Header{}
			if name, value, ok := strings.Cut(header, ": "); ok {
				h.Set(name, value)
			}
			return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	every := domain.EveryClass
	for _, tc := range []struct {
		name   string
		answer egressAnswer
		others bool
		// up is nil where nothing is shown.
		up    any
		ended bool
		// want are the reasons by class after two probes.
		want map[string]domain.CooldownReason
	}{
		{"a good answer", answer(200, "", "{}"), false, true, true, nil},
		{"a path that is not there", answer(404, "", ""), false, true, false, nil},
		{"a limit of its own", answer(429, "Retry-After: 60", ""), false, true, false, nil},
		{"a bad credential", answer(401, "", ""), false, false, false, map[string]domain.CooldownReason{every: domain.ReasonAuth}},
		{"no money", answer(402, "", ""), false, false, false, map[string]domain.CooldownReason{every: domain.ReasonQuota}},
		{"a failure", answer(500, "", ""), false, false, false, map[string]domain.CooldownReason{"large": domain.ReasonServer, "small": domain.ReasonServer}},
		{"a failure with a time", answer(503, "Retry-After: 7", ""), false, false, false, map[string]domain.CooldownReason{"large": domain.ReasonOverload, "small": domain.ReasonOverload}},
		{"no connection", answer(503, envoy.HeaderReply+": upstream_reset_before_response_started{connection_failure}", ""), false, false, false, map[string]domain.CooldownReason{"large": domain.ReasonUnanswered, "small": domain.ReasonUnanswered}},
		{"silence", func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }, false, false, false, map[string]domain.CooldownReason{"large": domain.ReasonUnanswered, "small": domain.ReasonUnanswered}},
		{"a cluster that Envoy does not know", answer(503, envoy.HeaderReply+": cluster_not_found", ""), false, nil, false, nil},
		{"a listener that is away", func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, false, nil, false, nil},
		{"another replica's turn", answer(500, "", ""), true, nil, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e, book, _ := newTestEvidence()
			channel := domain.Channel{
				Name: "a", Account: "a1", Models: map[string]string{"m": "m", "l": "l", "s": "s"},
				Provider: domain.Provider{Dialects: []domain.Dialect{domain.DialectAnthropic}},
				Probe:    domain.Probe{Path: "/models", Every: 50 * time.Millisecond},
			}
			holder := &config.Holder{}
			holder.Set(&config.Snapshot{
				Channels: map[string]domain.Channel{"a": channel},
				Models:   map[string]domain.Model{"m": {Class: "large"}, "l": {Class: "large"}, "s": {Class: "small"}},
			})
			var asked *http.Request
			probes := &fakeProbes{others: tc.others}
			p := &prober{
				store: probes, config: holder, evidence: e, metrics: e.metrics, logger: slog.New(slog.DiscardHandler), up: map[string]bool{},
				egress: &http.Client{Transport: egressAnswer(func(r *http.Request) (*http.Response, error) { asked = r; return tc.answer(r) })},
			}
			for range 2 {
				p.probe(t.Context(), channel)
			}
			e.report(t.Context())
			got := map[string]domain.CooldownReason{}
			for _, found := range book.cooled {
				got[found.Class] = found.Reason
			}
			if tc.want == nil {
				tc.want = map[string]domain.CooldownReason{}
			}
			assert.Equal(t, tc.want, got)
			assert.Equal(t, tc.ended, len(probes.ended) > 0)
			up, shown := p.up["a"]
			assert.Equal(t, tc.up != nil, shown)
			if shown {
				assert.Equal(t, tc.up, up)
			}
			if tc.others {
				require.Nil(t, asked)
				return
			}
			require.NotNil(t, asked)
			assert.Equal(t, "/v1/models", asked.URL.Path)
			assert.Equal(t, envoy.ClusterOf("a"), asked.Header.Get(envoy.HeaderChannel))
			d, err := envoy.DecodeDecision(asked.Header.Get(envoy.HeaderDecision))
			require.NoError(t, err)
			assert.Equal(t, domain.DialectAnthropic, d.API.Dialect())
			assert.Equal(t, "/models", d.Path)
		})
	}
}

// Probes begin at different moments and then keep their pause; a channel that
// is not probed any more is forgotten.
func TestProbesAreSpread(t *testing.T) {
	t.Parallel()
	e, _, _ := newTestEvidence()
	holder := &config.Holder{}
	probed := domain.Channel{Name: "a", Probe: domain.Probe{Path: "/models", Every: time.Minute}}
	holder.Set(&config.Snapshot{Channels: map[string]domain.Channel{"a": probed, "b": {Name: "b"}}})
	p := &prober{config: holder, metrics: e.metrics, due: map[string]time.Time{}, up: map[string]bool{"a": true}}
	require.Empty(t, p.dueAt(start))
	first := p.due["a"]
	assert.False(t, first.Before(start) || first.After(start.Add(time.Minute)))
	assert.Len(t, p.dueAt(first), 1)
	assert.Empty(t, p.dueAt(first.Add(59*time.Second)))
	assert.Len(t, p.dueAt(first.Add(time.Minute)), 1)
	holder.Set(&config.Snapshot{})
	assert.Empty(t, p.dueAt(first.Add(time.Hour)))
	assert.Empty(t, p.due)
	assert.Empty(t, p.up)
}
