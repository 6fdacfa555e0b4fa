package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
	"keyway/envoy"
	"keyway/wire"
)

// stillFor is how long a provider that is held up sends nothing.
const stillFor = 300 * time.Millisecond

// firstFails are ways in which the first channel of a relayed request fails
// before its first output. "%s" is a pause before it does, so that the client has
// a heartbeat already; the next channel serves all the same.
var firstFails = map[string]struct {
	script string
	status int
}{
	"a status":                         {`"status":500%s`, 500},
	"a rate limit":                     {`"status":429%s`, 429},
	"an error event at once":           {`"error":{"after_frames":0}%s`, 200},
	"an error event behind the start":  {`"error":{"after_frames":1}%s`, 200},
	"a clean end at once":              {`"close_after":{}%s`, 200},
	"a reset before the headers":       {`"reset_after":{"before_headers":true}%s`, 0},
	"a redirect":                       {`"status":308,"headers":{"Location":"https://elsewhere.example/v1"}%s`, 308},
	"a reset before the first output":  {`"delay_first_byte_ms":100,"reset_after":{"frames":1}%s`, 200},
	"an error with the form of others": {`"error":{"after_frames":1,"type":"insufficient_quota","form":"both"}%s`, 200},
}

// Case 18: before its first output another channel takes over, whatever
// the first one did, also inside a 200; the client hears heartbeats meanwhile and
// never a byte of what failed.
func TestCase018RelayFailsOverBeforeTheFirstOutput(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	together(t, func(run func(string, func(*testing.T))) {
		for _, api := range streamAPIs {
			for name, tc := range firstFails {
				for _, pause := range []string{"", `,"delay_headers_ms":700`} {
					if api != domain.APIResponses && strings.Contains(tc.script, "both") {
						continue
					}
					script := `{"only_face":"a",` + fmt.Sprintf(tc.script, pause) + `}`
					run(fmt.Sprintf("%s %s %q", api, name, pause), func(t *testing.T) {
						a := ask{api: api, model: "think-two", script: script, stream: true, nonce: newNonce()}
						l, err := c.over(eitherClient(len(name))).open(t.Context(), a)
						require.NoError(t, err)
						body, err := l.rest()
						require.NoError(t, err)
						require.Equal(t, http.StatusOK, l.StatusCode, "%s", body)
						if pause != "" {
							assert.Contains(t, body, string(wire.Heartbeat(api)))
						}
						assert.Contains(t, body, terminalOf(api))
						assert.NotContains(t, body, `"error":{`)
						attempts := s.attempts(a.nonce)
						require.Len(t, attempts, 2)
						assert.Equal(t, []string{"m-think-first", "m-think-second-longer"}, []string{attempts[0].Model, attempts[1].Model})
						if api != domain.APIChat {
							assert.Equal(t, attempts[1].SentSHA256, digestOf([]byte(strings.ReplaceAll(body, string(wire.Heartbeat(api)), ""))))
						}
						row := s.rowOf(t, l.Header.Get("X-Request-Id"))
						assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
						assert.Equal(t, []domain.Attempt{{Channel: "think-a", Status: tc.status}, {Channel: "think-b", Status: 200}}, row.Attempts)
						assert.Equal(t, "think-b", row.Channel)
					})
				}
			}
		}
	})
	c.requireIdle(t, "think-a", "think-b")
	c.requireBalanced(t, s.recordsNow(t, c.keyID))
}

// What no channel makes good has its true status before the first heartbeat,
// and is an error event in the dialect after it.
func TestRelayTellsTheLastError(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	together(t, func(run func(string, func(*testing.T))) {
		for _, api := range streamAPIs {
			for _, tc := range []struct {
				name, model, script string
				status              int
				says                string
			}{
				{"fault of the client", "think-a", `{"fail":"bad_request"%s}`, 400, "The request is not valid."},
				{"long fault of the client", "think-a", `{"status":400,"body":{"pattern":"[1,2,3]      ","size":300000}%s}`, 400, ""},
				{"overload", "think-a", `{"status":503%s}`, 503, "overloaded"},
				{"our credential", "think-a", `{"status":401%s}`, 502, "the gateway's own credential"},
				{"a redirect", "think-a", `{"status":302,"headers":{"Location":"/v2"}%s}`, 502, "does not follow"},
				{"a page of HTML", "think-a", `{"fail":"html"%s}`, 502, "status 502"},
				{"reset before the headers", "think-a", `{"reset_after":{"before_headers":true}%s}`, 502, "could be reached"},
				{"no headers in time", "think-hasty", `{"delay_headers_ms":60000,"only_face":"a"}`, 200, ""},
			} {
				for _, pause := range []string{"", `,"delay_headers_ms":700`} {
					script := tc.script
					if strings.Contains(script, "%s") {
						script = fmt.Sprintf(script, pause)
					}
					run(fmt.Sprintf("%s %s %q", api, tc.name, pause), func(t *testing.T) {
						a := ask{api: api, model: tc.model, script: script, stream: true, nonce: newNonce()}
						l, err := c.open(t.Context(), a)
						require.NoError(t, err)
						body, err := l.rest()
						require.NoError(t, err)
						row := s.rowOf(t, l.Header.Get("X-Request-Id"))
						switch {
						case tc.status == 200:
							assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
							assert.Contains(t, body, terminalOf(api))
							return
						case pause == "":
							status := map[int]int{502: 500, 503: 529}[tc.status]
							if api != domain.APIMessages || status == 0 || tc.says == "overloaded" {
								status = tc.status
							}
							assert.Equal(t, status, l.StatusCode, "%s", body)
							assert.Equal(t, "application/json", l.Header.Get("Content-Type"))
						default:
							assert.Equal(t, http.StatusOK, l.StatusCode)
							beat := string(wire.Heartbeat(api))
							assert.True(t, strings.HasPrefix(body, beat), "%s", body)
							requireErrorEvent(t, api, strings.ReplaceAll(body, beat, ""))
							assert.NotContains(t, body, terminalOf(api))
						}
						assert.Contains(t, body, tc.says)
						assert.Equal(t, domain.OutcomeFailed, row.Outcome)
						assert.Equal(t, l.StatusCode, row.Status, "what the client got")
						assert.Zero(t, row.CostMicros)
					})
				}
			}
		}
	})
	c.requireIdle(t, "think-a")
	c.requireBalanced(t, s.recordsNow(t, c.keyID))
}

// Case 17 on the relay: a stream that the upstream breaks ends with an error
// event, also where it was reset, with every byte that came before.
func TestCase017RelayEndsBrokenStreams(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	together(t, func(run func(string, func(*testing.T))) {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			// Of tlsb nothing else is asked: a lost connection takes all its streams along.
			for _, face := range []string{"a", "tlsb"} {
				for _, api := range streamAPIs {
					for _, tc := range breakings {
						run(fmt.Sprintf("%s %s %s %s", proto, face, api, tc.name), func(t *testing.T) {
							tc.resets = false
							tc.says = map[bool]string{true: "", false: "the answer was complete"}[tc.outcome == domain.OutcomeFailed]
							a := ask{api: api, model: "muse-" + face, script: tc.script, stream: true}
							id := requireBreak(t, c.over(clientsByProto[proto]), a, tc)
							requireBreakRow(t, tc, s.rowOf(t, id))
						})
					}
				}
			}
		}
	})
	c.requireIdle(t, "think-a", "think-tlsa")
	c.requireBalanced(t, s.recordsNow(t, c.keyID))
}

// The egress listener is a socket for Envoy's own user. It leads to channels and
// nowhere else, and takes no attempt that was not decided.
func TestEgressListenerIsNoWayIn(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	sockets, err := filepath.Glob(filepath.Join(s.dir, "up", "run", "egress.sock"))
	require.NoError(t, err)
	require.Len(t, sockets, 1)
	info, err := os.Stat(sockets[0])
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	egress := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sockets[0])
	}}}
	t.Cleanup(egress.CloseIdleConnections)
	decision, err := envoy.EncodeDecision(domain.Decision{
		RequestID: "forged", API: domain.APIChat, Path: "/chat/completions", BodyLen: 2, Candidates: []domain.Candidate{{Channel: "b"}},
	})
	require.NoError(t, err)
	for _, tc := range []struct {
		name, cluster, decision string
		status                  int
	}{
		{"neither", "", "", 400},
		{"no decision", envoy.ClusterOf("a"), "", 400},
		{"no channel", "", decision, 400},
		{"a cluster that is no channel", envoy.ClusterAuthz, decision, 400},
		{"an unknown channel", envoy.ClusterOf("nobody"), decision, 503},
		{"a decision for another channel", envoy.ClusterOf("a"), decision, 500},
		{"a decision that is none", envoy.ClusterOf("a"), "garbage", 500},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nonce := newNonce()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://egress/v1/chat/completions", strings.NewReader("{}"))
			require.NoError(t, err)
			req.Header.Set("User-Agent", nonce)
			for name, value := range map[string]string{envoy.HeaderChannel: tc.cluster, envoy.HeaderDecision: tc.decision} {
				if value != "" {
					req.Header.Set(name, value)
				}
			}
			resp, err := egress.Do(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			if tc.decision != "" && tc.status == http.StatusInternalServerError {
				// The channel's own chain refuses, each form of egress in its way.
				assert.Contains(t, []int{500, 503}, resp.StatusCode, "%s", body)
			} else {
				assert.Equal(t, tc.status, resp.StatusCode, "%s", body)
			}
			assert.NotEmpty(t, resp.Header.Get(envoy.HeaderReply), "Envoy's own answer is marked")
			assert.Empty(t, s.attempts(nonce), "a provider was called")
		})
	}
}

// A slow client slows the relay down, and the provider with it.
func TestRelayPassesBackPressureOn(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide").over(clientHTTP2)
	a := ask{model: "muse-a", script: `{"delta_bytes":60000000,"cut_every":65536}`, stream: true, nonce: newNonce()}
	l, err := c.open(t.Context(), a)
	require.NoError(t, err)
	defer l.quit()
	_, err = l.event()
	require.NoError(t, err)
	running := func() fakeprovider.Record { return s.attempts(a.nonce)[0] }
	var sent int64
	eventually(t, func() bool {
		before := sent
		sent = running().SentBytes
		return sent > 0 && sent == before
	}, patience, stillFor)
	assert.Less(t, sent, int64(16<<20), "the provider goes on though nobody reads")
	body, err := l.rest()
	require.NoError(t, err)
	assert.Contains(t, body[max(0, len(body)-100):], "[DONE]")
	assert.Equal(t, domain.OutcomeSuccess, s.rowOf(t, l.Header.Get("X-Request-Id")).Outcome)
}
