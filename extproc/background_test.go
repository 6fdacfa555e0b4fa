package extproc

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/envoy"
	"keyway/wire"
)

// responseOf is a response object as providers send it.
func responseOf(status, usage string) string {
	return fmt.Sprintf(`{"id":"resp_9","object":"response","status":%q,"error":null,"model":"m-b","output":[],"usage":%s}`, status, usage)
}

const someUsage = `{"input_tokens":11,"output_tokens":7}`

// asked are the questions that a provider got, each answered by the next answer,
// and after them by the last.
type asked struct {
	mu      sync.Mutex
	paths   []string
	answers []http.HandlerFunc
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	answer := a.answers[min(len(a.paths), len(a.answers)-1)]
	a.paths = append(a.paths, r.Method+" "+r.URL.Path+" of "+r.Header.Get("X-Request-Id"))
	a.mu.Unlock()
	answer(w, r)
}

func (a *asked) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.paths)
}

// follows gives s a background whose questions a answers, at short pauses.
func (a *asked) follows(t *testing.T, s *Server) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "egress")
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	server := &httptest.Server{Listener: ln, Config: &http.Server{Handler: fakeEgress{"b": a.ServeHTTP}, Protocols: unencrypted()}}
	server.Start()
	t.Cleanup(server.Close)
	client, err := newEgressClient("unix:" + path)
	require.NoError(t, err)
	s.background = newBackground(s, client, &fakeFollowers{stores: []*fakeStore{s.store.(*fakeStore)}})
	s.background.first, s.background.longest = time.Millisecond, 3*time.Millisecond
	t.Cleanup(func() {
		s.background.handOverAll()
		client.CloseIdleConnections()
	})
}

func backgroundDecision() domain.Decision {
	d := decisionOf(domain.APIResponses)
	d.Background = true
	return d
}

// passes sends an answer of the second channel through a watch.
func passes(s *Server, body string) *watch {
	a := streamed(2)
	a.headers["content-type"] = []string{"application/json"}
	w, _ := s.begin(backgroundDecision(), a)
	w.chunk([]byte(body))
	w.finish()
	w.end()
	return w
}

func TestBackgroundIsSettledByItsEnd(t *testing.T) {
	t.Parallel()
	again := says(http.StatusOK, responseOf("in_progress", "null"))
	read, all := domain.Usage{InputUncached: 11, Output: 7}, domain.Usage{InputUncached: 30, Output: 100}
	for name, tc := range map[string]struct {
		answers []http.HandlerFunc
		outcome domain.Outcome
		source  domain.Source
		usage   domain.Usage
	}{
		"completed":       {[]http.HandlerFunc{again, says(503, `{}`), again, says(200, responseOf("completed", someUsage))}, domain.OutcomeSuccess, domain.SourceUpstream, read},
		"incomplete":      {[]http.HandlerFunc{says(200, responseOf("incomplete", someUsage))}, domain.OutcomeSuccess, domain.SourceUpstream, read},
		"cancelled":       {[]http.HandlerFunc{says(200, responseOf("cancelled", someUsage))}, domain.OutcomeCancelled, domain.SourceUpstream, read},
		"failed":          {[]http.HandlerFunc{says(200, responseOf("failed", "null"))}, domain.OutcomeFailed, domain.SourceEstimate, domain.Usage{}},
		"forgotten":       {[]http.HandlerFunc{again, says(404, `{}`)}, domain.OutcomeUpstreamCut, domain.SourceEstimate, all},
		"gone":            {[]http.HandlerFunc{says(410, `{}`)}, domain.OutcomeUpstreamCut, domain.SourceEstimate, all},
		"never heard of":  {[]http.HandlerFunc{says(500, `{}`)}, domain.OutcomeUpstreamCut, domain.SourceEstimate, all},
		"without an end":  {[]http.HandlerFunc{again}, domain.OutcomeUpstreamCut, domain.SourceEstimate, all},
		"another's":       {[]http.HandlerFunc{says(200, `{"id":"resp_1","status":"completed","usage":`+someUsage+`}`)}, domain.OutcomeUpstreamCut, domain.SourceEstimate, all},
		"cut off":         {[]http.HandlerFunc{says(200, responseOf("completed", someUsage)[:60]), says(200, responseOf("completed", someUsage))}, domain.OutcomeSuccess, domain.SourceUpstream, read},
		"Envoy's own 404": {[]http.HandlerFunc{envoysOwn, says(200, responseOf("completed", someUsage))}, domain.OutcomeSuccess, domain.SourceUpstream, read},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			provider := &asked{answers: tc.answers}
			provider.follows(t, s)
			s.background.limit = time.Second + 300*time.Millisecond // it was admitted a second ago
			passes(s, responseOf("queued", "null"))
			require.Eventually(t, func() bool { return store.has("req-1") }, 10*time.Second, time.Millisecond)
			got := store.get(t, "req-1")
			assert.Equal(t, tc.outcome, got.Record.Outcome)
			assert.Equal(t, tc.source, got.Record.Source)
			assert.Equal(t, tc.usage, got.Record.Usage)
			assert.Equal(t, tc.usage.InputUncached+2*tc.usage.Output, got.Record.CostMicros)
			assert.Equal(t, "b", got.Channel)
			assert.Equal(t, "GET /v1/responses/resp_9 of req-1", provider.paths[0])
			assert.Zero(t, s.leases.len())
		})
	}
}

func envoysOwn(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set(envoy.HeaderReply, "route_not_found")
	w.WriteHeader(http.StatusNotFound)
}

// A stream that is left or cut goes on at the provider; one that came to its end
// has told what it cost.
func TestBackgroundStreams(t *testing.T) {
	t.Parallel()
	const begun = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_9\",\"status\":\"queued\",\"usage\":null}}\n\n"
	const ended = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_9\",\"status\":\"completed\",\"usage\":" + someUsage + "}}\n\n"
	for name, tc := range map[string]struct {
		body      string
		end       func(*watch)
		questions int
	}{
		"left":     {begun, func(w *watch) { w.left = true }, 1},
		"cut":      {begun, func(w *watch) { w.finish() }, 1},
		"too idle": {begun, func(w *watch) { w.abort(errIdle) }, 1},
		"ended":    {begun + ended, func(w *watch) { w.finish() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			provider := &asked{answers: []http.HandlerFunc{says(200, responseOf("completed", someUsage))}}
			provider.follows(t, s)
			w, _ := s.begin(backgroundDecision(), streamed(2))
			w.chunk([]byte(tc.body))
			tc.end(w)
			w.end()
			w.end() // as the stream's handler does at its exit
			require.Eventually(t, func() bool { return store.has("req-1") }, 10*time.Second, time.Millisecond)
			got := store.get(t, "req-1").Record
			assert.Equal(t, domain.OutcomeSuccess, got.Outcome)
			assert.Equal(t, domain.Usage{InputUncached: 11, Output: 7}, got.Usage)
			assert.Equal(t, tc.questions, provider.count())
		})
	}
}

// While a response is followed its holds are kept, and nothing else settles it.
func TestBackgroundKeepsItsHolds(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	provider := &asked{answers: []http.HandlerFunc{says(200, responseOf("queued", "null"))}}
	provider.follows(t, s)
	passes(s, responseOf("queued", "null"))
	require.Eventually(t, func() bool { return provider.count() > 5 }, 10*time.Second, time.Millisecond)
	assert.True(t, s.leases.owned("req-1"))
	assert.True(t, s.recent.has("req-1"), "the access log has no say")
	// A replica that sees the access log's entry alone leaves it, too.
	other, elsewhere := newServer(t)
	other.ended(logEntry{decision: backgroundDecision(), status: http.StatusOK, attempts: 2, byClient: true})
	// The stop leaves it to another one.
	s.background.handOverAll()
	time.Sleep(unwatchedDelay + 100*time.Millisecond)
	assert.False(t, store.has("req-1"))
	assert.False(t, elsewhere.has("req-1"))
}

// What cannot be followed is settled at once, by what was reserved.
func TestBackgroundIsBounded(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	provider := &asked{answers: []http.HandlerFunc{says(200, responseOf("queued", "null"))}}
	provider.follows(t, s)
	s.background.most = 1
	passes(s, responseOf("queued", "null"))
	require.False(t, store.has("req-1"))
	a := streamed(2)
	a.headers["content-type"] = []string{"application/json"}
	d := backgroundDecision()
	d.RequestID = "req-2"
	w, _ := s.begin(d, a)
	w.chunk([]byte(responseOf("queued", "null")))
	w.finish()
	w.end()
	got := store.get(t, "req-2").Record
	assert.Equal(t, domain.OutcomeUpstreamCut, got.Outcome)
	assert.Equal(t, domain.Usage{InputUncached: 30, Output: 100}, got.Usage)
}

// Without the egress listener nobody could follow it, so it does not go out.
func TestBackgroundNeedsTheEgressListener(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	a := attempt{decision: backgroundDecision(), number: 1, channel: "a"}
	_, err := s.plan(t.Context(), a)
	require.ErrorIs(t, err, errNoBackground)
	require.Equal(t, 400, wire.Status(domain.DialectOpenAI, domain.AsError(err).Code))
	// Native egress asks nobody: what it let through is settled by what was reserved.
	passes(s, responseOf("queued", "null"))
	require.Equal(t, domain.Usage{InputUncached: 30, Output: 100}, store.get(t, "req-1").Record.Usage)
}
