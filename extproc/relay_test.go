package extproc

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"

	"keyway/domain"
	"keyway/envoy"
	"keyway/wire"
)

// fakeEgress answers the calls of a relay, by the channel's cluster.
type fakeEgress map[string]http.HandlerFunc

func (f fakeEgress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	cluster := r.Header.Get(envoy.HeaderChannel)
	channel, ok := envoy.ChannelOf(cluster)
	d, err := envoy.DecodeDecision(r.Header.Get(envoy.HeaderDecision))
	if !ok || err != nil || len(d.Candidates) != 1 || d.Candidates[0].Channel != channel {
		http.Error(w, "no channel or decision", http.StatusBadRequest)
		return
	}
	f[channel](w, r)
}

func unencrypted() *http.Protocols {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &p
}

// startRelay serves a relay in front of egress and returns how to reach it.
func startRelay(t *testing.T, s *Server, egress http.Handler) *http.Client {
	t.Helper()
	client, _ := startStoppableRelay(t, s, egress)
	return client
}

// startStoppableRelay does so; stop begins its end.
func startStoppableRelay(t *testing.T, s *Server, egress http.Handler) (client *http.Client, stop func()) {
	t.Helper()
	dir := t.TempDir()
	serve := func(name string, h http.Handler) (path string) {
		path = filepath.Join(dir, name)
		ln, err := net.Listen("unix", path)
		require.NoError(t, err)
		server := &httptest.Server{Listener: ln, Config: &http.Server{Handler: h, Protocols: unencrypted()}}
		server.Start()
		t.Cleanup(server.Close)
		return path
	}
	channels, err := newEgressClient("unix:" + serve("egress", egress))
	require.NoError(t, err)
	r := &relay{server: s, egress: channels, bodies: semaphore.NewWeighted(relayBodies)}
	path := filepath.Join(dir, "relay")
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	stopping, ended := make(chan struct{}), make(chan error, 1)
	stop = sync.OnceFunc(func() { close(stopping) })
	go func() { ended <- r.run(ln, stopping, 2*time.Second) }()
	client = &http.Client{Transport: &http.Transport{Protocols: unencrypted(), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		stop()
		require.NoError(t, <-ended)
	})
	return client, stop
}

func relayDecision(api domain.API) domain.Decision {
	d := decisionOf(api)
	d.BodyLen, d.Heartbeat, d.IdleLimit, d.FirstByteLimit = int64(len(relayBody)), 100*time.Millisecond, time.Second, 5*time.Second
	return d
}

const relayBody = `{"model":"m","stream":true}`

// relayAnswer is an answer of the relay; its body is closed with the test.
type relayAnswer struct {
	status int
	body   io.ReadCloser
}

func callRelay(ctx context.Context, t *testing.T, client *http.Client, d domain.Decision) relayAnswer {
	t.Helper()
	encoded, err := envoy.EncodeDecision(d)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://relay/v1"+d.Path, strings.NewReader(relayBody))
	require.NoError(t, err)
	req.Header.Set(envoy.HeaderDecision, encoded)
	resp, err := client.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return relayAnswer{resp.StatusCode, resp.Body}
}

// sends writes frames as a stream of events, a pause before each.
func sends(pause time.Duration, frames ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, f := range frames {
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				return
			}
			_, _ = io.WriteString(w, f)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

const roleFrame = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"

func TestRelayServesWithHeartbeats(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	client := startRelay(t, s, fakeEgress{"a": func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		assert.Equal(t, relayBody, string(body))
		time.Sleep(250 * time.Millisecond)
		sends(150*time.Millisecond, roleFrame, deltaFrame, stopFrame, usageFrame, doneFrame)(w, r)
	}})
	resp := callRelay(t.Context(), t, client, relayDecision(domain.APIChat))
	body, err := io.ReadAll(resp.body)
	require.NoError(t, err)
	beat := string(wire.Heartbeat(domain.APIChat))
	assert.GreaterOrEqual(t, strings.Count(string(body), beat), 4)
	assert.Equal(t, roleFrame+deltaFrame+stopFrame+usageFrame+doneFrame, strings.ReplaceAll(string(body), beat, ""))
	r := store.get(t, "req-1").Record
	assert.Equal(t, domain.OutcomeSuccess, r.Outcome)
	assert.Equal(t, domain.Usage{InputUncached: 40, Output: 9}, r.Usage)
	assert.Zero(t, s.leases.len())
}

func TestRelayTakesTheSlotWithIt(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	client := startRelay(t, s, fakeEgress{
		"a": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(envoy.HeaderRetry, "rate")
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		},
		"b": sends(0, deltaFrame, stopFrame, usageFrame, doneFrame),
	})
	resp := callRelay(t.Context(), t, client, relayDecision(domain.APIChat))
	_, err := io.ReadAll(resp.body)
	require.NoError(t, err)
	settled := store.get(t, "req-1")
	assert.Equal(t, "b", settled.Channel)
	require.Len(t, settled.Record.Attempts, 2)
	first := settled.Record.Attempts[0]
	assert.Equal(t, []any{"a", 429, domain.ReasonRate}, []any{first.Channel, first.Status, first.Reason})
	require.Len(t, store.moves, 1)
	assert.Equal(t, "a", store.moves[0].From.Channel)
}

// An error event before the output is evidence, once, and said in the record.
func TestRelayReportsAnErrorEvent(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	client := startRelay(t, s, fakeEgress{
		"a": sends(0, roleFrame, `data: {"error":{"message":"no","type":"rate_limit_error","code":null}}`+"\n\n"),
		"b": sends(0, deltaFrame, stopFrame, usageFrame, doneFrame),
	})
	body, err := io.ReadAll(callRelay(t.Context(), t, client, relayDecision(domain.APIChat)).body)
	require.NoError(t, err)
	assert.Equal(t, deltaFrame+stopFrame+usageFrame+doneFrame, string(body))
	record := store.get(t, "req-1").Record
	require.Len(t, record.Attempts, 2)
	assert.Equal(t, domain.ReasonRate, record.Attempts[0].Reason)
	s.evidence.mu.Lock()
	defer s.evidence.mu.Unlock()
	assert.Equal(t, domain.ReasonRate, s.evidence.waiting[domain.ChannelClass{Channel: "a"}].Reason)
	assert.EqualValues(t, 1, s.evidence.sums[domain.ChannelClass{Channel: "a"}].Attempts)
}

// The record has the status that the client got, which after a heartbeat is 200,
// and its attempts have what the providers answered.
func TestRelayTellsTheTwoStatusesApart(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name         string
		wait         time.Duration
		answer, gets int
		contentType  string
		says         string
	}{
		{"at once", 0, 400, 400, "application/json", "no"},
		{"after a heartbeat", 250 * time.Millisecond, 400, 200, "application/json", "no"},
		{"our credential", 0, 401, 502, "application/json", "own credential"},
		{"our credential after a heartbeat", 250 * time.Millisecond, 401, 200, "application/json", "own credential"},
		{"a page", 0, 404, 404, "text/html", "does not know"},
		{"no answer to a stream", 250 * time.Millisecond, 200, 200, "application/json", "cannot be streamed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			client := startRelay(t, s, fakeEgress{"a": func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(tc.wait)
				w.Header().Set("Content-Type", tc.contentType)
				w.WriteHeader(tc.answer)
				_, _ = io.WriteString(w, `{"error":{"message":"no"}}`)
			}})
			d := relayDecision(domain.APIChat)
			d.Candidates = d.Candidates[:1]
			answer := callRelay(t.Context(), t, client, d)
			body, err := io.ReadAll(answer.body)
			require.NoError(t, err)
			assert.Equal(t, tc.gets, answer.status)
			assert.Contains(t, string(body), tc.says)
			require.Eventually(t, func() bool { return store.has("req-1") }, 5*time.Second, time.Millisecond)
			r := store.get(t, "req-1").Record
			assert.Equal(t, domain.OutcomeFailed, r.Outcome)
			assert.Equal(t, tc.gets, r.Status, "the client's")
			require.Len(t, r.Attempts, 1)
			assert.Equal(t, tc.answer, r.Attempts[0].Status, "the provider's")
		})
	}
}

func TestRelayEndsOfItsOwn(t *testing.T) {
	t.Parallel()
	reset := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	own := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(envoy.HeaderReply, "cluster_not_found")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	for _, tc := range []struct {
		name    string
		egress  fakeEgress
		status  int
		says    string
		outcome domain.Outcome
	}{
		{"no channel answers", fakeEgress{"a": reset, "b": reset}, 502, "could be reached", domain.OutcomeFailed},
		{"Envoy answers for them", fakeEgress{"a": own, "b": own}, 502, "could be reached", domain.OutcomeFailed},
		{"broken behind the output", fakeEgress{"a": func(w http.ResponseWriter, r *http.Request) {
			sends(0, deltaFrame)(w, r)
			reset(w, r)
		}}, 200, "broke off", domain.OutcomeUpstreamCut},
		{"silent behind the output", fakeEgress{"a": sends(0, deltaFrame), "b": nil}, 200, "ended the stream", domain.OutcomeUpstreamCut},
		{"idle", fakeEgress{"a": func(w http.ResponseWriter, r *http.Request) {
			sends(0, deltaFrame)(w, r)
			<-r.Context().Done()
		}}, 200, "nothing for too long", domain.OutcomeUpstreamCut},
		{"a document that breaks off", fakeEgress{"a": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[`)
			_ = http.NewResponseController(w).Flush()
			reset(w, r)
		}}, 200, "", domain.OutcomeUpstreamCut},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			d := relayDecision(domain.APIChat)
			d.Heartbeat = time.Minute // on a busy machine one would commit the answer to 200
			resp := callRelay(t.Context(), t, startRelay(t, s, tc.egress), d)
			body, err := io.ReadAll(resp.body)
			assert.Equal(t, tc.says == "", err != nil, "an answer that can say nothing breaks: %v", err)
			assert.Equal(t, tc.status, resp.status)
			assert.Contains(t, string(body), tc.says)
			require.Eventually(t, func() bool { return store.has("req-1") }, 5*time.Second, time.Millisecond)
			assert.Equal(t, tc.outcome, store.get(t, "req-1").Record.Outcome)
		})
	}
}

func TestRelaySettlesWhoLeaves(t *testing.T) {
	t.Parallel()
	for _, frames := range []int{0, 2} {
		t.Run(fmt.Sprint(frames), func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			left := make(chan struct{})
			client := startRelay(t, s, fakeEgress{"a": func(w http.ResponseWriter, r *http.Request) {
				if frames > 0 {
					sends(0, deltaFrame, deltaFrame)(w, r)
				}
				<-r.Context().Done()
				close(left)
			}})
			ctx, leave := context.WithCancel(t.Context())
			resp := callRelay(ctx, t, client, relayDecision(domain.APIChat))
			_, err := resp.body.Read(make([]byte, 1))
			require.NoError(t, err)
			leave()
			<-left
			require.Eventually(t, func() bool { return store.has("req-1") }, 5*time.Second, time.Millisecond)
			r := store.get(t, "req-1").Record
			assert.Equal(t, domain.OutcomeCancelled, r.Outcome)
			assert.Equal(t, int64(30), r.Usage.InputUncached)
			assert.Equal(t, frames > 0, r.Usage.Output > 0)
		})
	}
}

// A client that does not read stops the channel, and gets everything when it does.
func TestRelayPassesBackPressureOn(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	const size = 60_000_000
	frame := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("word ", size/5) + `"}}]}` + "\n\n"
	client := startRelay(t, s, fakeEgress{"a": sends(0, deltaFrame, frame, stopFrame, doneFrame)})
	resp := callRelay(t.Context(), t, client, relayDecision(domain.APIChat))
	_, err := io.ReadFull(resp.body, make([]byte, 10))
	require.NoError(t, err)
	time.Sleep(500 * time.Millisecond)
	n, err := io.Copy(io.Discard, resp.body)
	require.NoError(t, err)
	assert.Greater(t, n, int64(size))
	require.Eventually(t, func() bool { return store.has("req-1") }, 5*time.Second, time.Millisecond)
	assert.Equal(t, domain.OutcomeSuccess, store.get(t, "req-1").Record.Outcome)
}

// At a stop running streams go on; one that takes too long is cut and settled.
func TestRelayStopsInOrder(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]time.Duration{"in time": 150 * time.Millisecond, "too late": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			client, stop := startStoppableRelay(t, s, fakeEgress{"a": func(w http.ResponseWriter, r *http.Request) {
				sends(0, deltaFrame)(w, r)
				sends(pause, stopFrame, usageFrame, doneFrame)(w, r)
			}})
			d := relayDecision(domain.APIChat)
			d.IdleLimit = time.Minute
			resp := callRelay(t.Context(), t, client, d)
			_, err := io.ReadFull(resp.body, make([]byte, 10))
			require.NoError(t, err)
			stop()
			_, err = io.Copy(io.Discard, resp.body)
			outcome := domain.OutcomeSuccess
			if name == "too late" {
				require.Error(t, err)
				outcome = domain.OutcomeCancelled
			} else {
				require.NoError(t, err)
			}
			require.Eventually(t, func() bool { return store.has("req-1") }, 5*time.Second, time.Millisecond)
			assert.Equal(t, outcome, store.get(t, "req-1").Record.Outcome)
		})
	}
}

func TestRelayBoundsBodies(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t)
	_, err := newEgressClient("127.0.0.1:1")
	require.ErrorContains(t, err, "unix:/path")
	r := &relay{server: s, bodies: semaphore.NewWeighted(relayBodies)}
	require.True(t, r.bodies.TryAcquire(relayBodies))
	d := relayDecision(domain.APIMessages)
	encoded, err := envoy.EncodeDecision(d)
	require.NoError(t, err)
	req := httptest.NewRequest(http.MethodPost, "/v1/messages", strings.NewReader(relayBody))
	req.Header.Set(envoy.HeaderDecision, encoded)
	answer := httptest.NewRecorder()
	r.ServeHTTP(answer, req)
	assert.Equal(t, 503, answer.Code)
	assert.Contains(t, answer.Body.String(), "overloaded_error")
	assert.Equal(t, "req-1", answer.Header().Get("Request-Id"))
	req.Header.Set(envoy.HeaderDecision, "-")
	answer = httptest.NewRecorder()
	r.ServeHTTP(answer, req)
	assert.Equal(t, 500, answer.Code)
}
