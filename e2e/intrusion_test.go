package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// What a client says in headers that Envoy or Keyway themselves use changes
// nothing and reaches nobody.
func TestClientsCannotSteerTheGateway(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	key, id := s.key(t, "--identity", "wide")
	headers := []http.Header{
		{"X-Envoy-Max-Retries": {"0"}},
		{"X-Envoy-Upstream-Rq-Timeout-Ms": {"1"}},
		{"X-Envoy-Upstream-Rq-Per-Try-Timeout-Ms": {"1"}},
		{"X-Envoy-Retry-On": {"5xx"}, "X-Envoy-Retriable-Status-Codes": {"200"}},
		{"X-Envoy-Original-Path": {"/v1/messages"}, "X-Envoy-Decorator-Operation": {"x"}, "X-Envoy-Force-Trace": {"1"}, "X-Envoy-Internal": {"true"}},
		{"X-Envoy-Attempt-Count": {"3"}, "X-Envoy-Expected-Rq-Timeout-Ms": {"1"}, "X-Envoy-Upstream-Alt-Stat-Name": {"x"}},
		{"X-Keyway-Channel": {"second"}, "X-Keyway-Attempt": {"2"}, "X-Keyway-Attempts": {"first=200;"}, "X-Keyway-Side": {"watch"}},
		{"X-Keyway-Decision": {"Cg0="}},
		{"X-Keyway-Relay": {"1"}},
		{"X-Keyway-Retry": {"overload"}},
		{"X-Request-Id": {"00000000-0000-0000-0000-000000000001"}, "X-Forwarded-For": {"10.0.0.1"}, "X-Forwarded-Proto": {"https"}},
		{"X_api_key": {"sk-underscore"}, "X-Http-Method-Override": {"GET"}, "Te": {"trailers"}},
	}
	rows := 0
	for _, h := range headers {
		for proto, c := range clientsByProto {
			nonce := newNonce()
			// The first channel fails late, the second answers late: a bound of
			// one millisecond or no retries would show.
			got := s.send(t, sending{
				path: "/v1/chat/completions", key: key, nonce: nonce, header: h, http: c,
				body: []byte(chat("two", `{"only_face":"a","status":500,"delay_headers_ms":20}`)),
			})
			what := fmt.Sprintf("%v %s", h, proto)
			require.Equal(t, http.StatusOK, got.StatusCode, "%s: %s", what, got.body)
			assert.NotEqual(t, "00000000-0000-0000-0000-000000000001", got.Header.Get("X-Request-Id"), what)
			seen := s.seen(t, nonce)
			require.Len(t, seen, 2, what)
			require.Equal(t, []string{"a", "b"}, []string{seen[0].Face, seen[1].Face}, what)
			for _, r := range seen {
				assert.Equal(t, "/v1/chat/completions", r.Path, what)
				assert.Equal(t, "POST", r.Method, what)
				for name := range r.Header {
					lower := strings.ToLower(name)
					for _, prefix := range []string{"x-envoy-", "x-keyway-", "x-forwarded-", "x_api", "x-http-method"} {
						assert.False(t, strings.HasPrefix(lower, prefix), "%s: %s reached the provider", what, name)
					}
				}
			}
			requireNoInsides(t, got, key)
			rows++
		}
	}
	for _, r := range s.records(t, id, rows) {
		require.Equal(t, []domain.Attempt{{Channel: "first", Status: 500}, {Channel: "second", Status: 200}}, r.Attempts)
	}
}

// Refusals by a limit tell the SDK how long to wait, in the dialect's own names.
func TestRateRefusalsSayHowLongToWait(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
		identity := newNonce()
		key, id := s.key(t, "--identity", identity, "--policy", "rpm1")
		body := []byte(messages("m", ""))
		first := s.send(t, sending{path: path, key: key, body: body})
		require.Equal(t, http.StatusOK, first.StatusCode, "%s", first.body)
		nonce := newNonce()
		got := s.send(t, sending{path: path, key: key, body: body, nonce: nonce})
		requireRefusal(t, refusal{dialect: domain.DialectForPath(path), status: 429, kind: "rate_limit_error", code: "rate_limit_exceeded", secrets: []string{key}}, got)
		require.Empty(t, s.seen(t, nonce))
		assert.Empty(t, got.Header.Get("X-Should-Retry"))
		seconds, err := strconv.Atoi(got.Header.Get("Retry-After"))
		require.NoError(t, err)
		assert.True(t, seconds > 0 && seconds <= 60, "retry-after %d", seconds)
		millis, err := strconv.Atoi(got.Header.Get("Retry-After-Ms"))
		require.NoError(t, err)
		assert.True(t, millis > 0 && millis <= 60_000, "retry-after-ms %d", millis)
		for _, answer := range []received{first, got} {
			requireLimitHeaders(t, path, answer)
		}
		s.records(t, id, 1)
	}
}

func requireLimitHeaders(t *testing.T, path string, got received) {
	t.Helper()
	names := map[string]string{"limit": "X-Ratelimit-Limit-Requests", "remaining": "X-Ratelimit-Remaining-Requests", "reset": "X-Ratelimit-Reset-Requests"}
	if domain.DialectForPath(path) == domain.DialectAnthropic {
		names = map[string]string{"limit": "Anthropic-Ratelimit-Requests-Limit", "remaining": "Anthropic-Ratelimit-Requests-Remaining", "reset": "Anthropic-Ratelimit-Requests-Reset"}
	}
	assert.Equal(t, []string{"1"}, got.Header.Values(names["limit"]), "%s %d", path, got.StatusCode)
	assert.Equal(t, []string{"0"}, got.Header.Values(names["remaining"]), "%s %d", path, got.StatusCode)
	reset := got.Header.Get(names["reset"])
	if domain.DialectForPath(path) == domain.DialectAnthropic {
		at, err := time.Parse(time.RFC3339, reset)
		require.NoError(t, err, "%s %d", path, got.StatusCode)
		assert.WithinDuration(t, time.Now(), at, 90*time.Second)
		return
	}
	wait, err := time.ParseDuration(reset)
	require.NoError(t, err, "%s %d", path, got.StatusCode)
	assert.LessOrEqual(t, wait, 61*time.Second)
}

// What can never fit, and money that is gone, must not be tried again.
func TestHopelessRefusalsSaySo(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, tc := range []struct {
		policy, path string
		status       int
		kind, code   string
	}{
		{"tpm500", "/v1/chat/completions", 429, "rate_limit_error", "rate_limit_exceeded"},
		{"tpm500", "/v1/messages", 429, "rate_limit_error", ""},
		{"budget1000", "/v1/chat/completions", 429, "insufficient_quota", "insufficient_quota"},
		{"budget1000", "/v1/messages", 402, "billing_error", ""},
	} {
		identity, nonce := newNonce(), newNonce()
		key, id := s.key(t, "--identity", identity, "--policy", tc.policy)
		body := strings.Replace(messages("m", ""), `"max_tokens":64`, `"max_tokens":2000`, 1)
		got := s.send(t, sending{path: tc.path, key: key, nonce: nonce, body: []byte(body)})
		requireRefusal(t, refusal{dialect: domain.DialectForPath(tc.path), status: tc.status, kind: tc.kind, code: tc.code, hopeless: true, secrets: []string{key}}, got)
		require.Empty(t, s.seen(t, nonce))
		require.Empty(t, s.held(t, identity, id))
		// The next request is within the limit, and finds nothing charged.
		got = s.send(t, sending{path: tc.path, key: key, body: []byte(messages("m", ""))})
		require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
		s.records(t, id, 1)
	}
}

// rawConn speaks HTTP/1.1 by hand.
func (s *stack) rawConn(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.ready.BaseURL, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	return c
}

func readRaw(t *testing.T, c io.Reader, trace string) received {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err, trace)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err, trace)
	return received{Response: resp, body: body, trace: trace}
}

func TestOversizedHeadersAreRefused(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	w := newBadWorld(t, s)
	for name, header := range map[string]string{
		"one long header":   "X-Big: " + strings.Repeat("a", 70<<10) + "\r\n",
		"many headers":      strings.Repeat("X-Many: a\r\n", 200),
		"a long credential": "Authorization: Bearer " + strings.Repeat("b", 70<<10) + "\r\n",
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
			c := s.rawConn(t)
			nonce := newNonce()
			head := "POST " + path + " HTTP/1.1\r\nHost: keyway\r\nUser-Agent: " + nonce + "\r\nX-Api-Key: " + w.key + "\r\n" + header + "Content-Length: 2\r\n\r\n{}"
			// The far end may close before it has read everything.
			_, _ = io.WriteString(c, head)
			got := readRaw(t, c, name+" "+path)
			requireRefusal(t, refusal{dialect: domain.DialectOpenAI, early: true, status: 431, kind: "invalid_request_error", code: "request_headers_too_large", secrets: []string{w.key}}, got)
			w.requireUntouched(t, nonce, name)
		}
	}
	// Over HTTP/2 the stream is reset; others on the connection live.
	nonce := newNonce()
	_, err := s.trySend(t, sending{path: "/v1/chat/completions", key: w.key, nonce: nonce, http: clientHTTP2, header: http.Header{"X-Big": {strings.Repeat("a", 70<<10)}}, body: []byte(chat("m", ""))})
	require.ErrorContains(t, err, "stream error")
	w.requireUntouched(t, nonce, "HTTP/2")
	w.requireUnwritten(t)
}

func TestStallingClientsHoldNothing(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	w := newBadWorld(t, s)
	nonce := newNonce()
	// In the body: nothing is decided before it is whole.
	body := s.rawConn(t)
	_, err := io.WriteString(body, "POST /v1/chat/completions HTTP/1.1\r\nHost: keyway\r\nUser-Agent: "+nonce+"\r\nX-Api-Key: "+w.key+"\r\nContent-Length: 1000\r\n\r\n{\"model\":\"m\",")
	require.NoError(t, err)
	// In the headers: ended by Envoy after ten seconds.
	headers := s.rawConn(t)
	begun := time.Now()
	_, err = io.WriteString(headers, "POST /v1/chat/completions HTTP/1.1\r\nHost: keyway\r\nX-Api-Key: "+w.key+"\r\n")
	require.NoError(t, err)
	got := readRaw(t, headers, "stalled headers")
	t.Logf("stalled headers ended after %s", time.Since(begun))
	requireRefusal(t, refusal{dialect: domain.DialectOpenAI, early: true, status: 408, kind: "invalid_request_error", code: "request_timeout", secrets: []string{w.key}}, got)
	w.requireUntouched(t, nonce, "stalled")
	require.NoError(t, body.Close())
	w.requireUntouched(t, nonce, "left in the body")
	w.requireUnwritten(t)
}

func TestTooLargeBodiesAreRefused(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	w := newBadWorld(t, s)
	for _, size := range []int{32<<20 + 1, 33 << 20} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
			for proto, c := range clientsByProto {
				for _, chunked := range []bool{false, true} {
					what := fmt.Sprintf("%d %s %s chunked %v", size, path, proto, chunked)
					nonce := newNonce()
					got, err := s.trySend(t, sending{path: path, key: w.key, nonce: nonce, http: c, chunked: chunked, body: bigBody("m", "", size)})
					require.NoError(t, err, what)
					requireRefusal(t, refusal{
						dialect: domain.DialectForPath(path), status: 413, kind: map[domain.Dialect]string{
							domain.DialectOpenAI: "invalid_request_error", domain.DialectAnthropic: "request_too_large",
						}[domain.DialectForPath(path)],
						code: "request_too_large", secrets: []string{w.key},
					}, got)
					w.requireUntouched(t, nonce, what)
				}
			}
		}
	}
	w.requireUnwritten(t)
}
