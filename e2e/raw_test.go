package e2e

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// A path that a model of the configuration names passes unread, with its
// method, under the channel's credential, and costs by the call.
func TestRawPathsPassAndAreMetered(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "wide", "--models", "files")
	calls := 0
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		for proto, by := range clientsByProto {
			r := sending{
				method: method, path: "/v1/files/file-1/content?purpose=batch&limit=2&key=" + c.secret + "&model=other", key: c.secret,
				nonce: newNonce(), http: by, header: http.Header{"Content-Type": {"application/octet-stream"}, "X-Api-Key": {c.secret}},
			}
			if method != "GET" && method != "DELETE" {
				r.body = []byte("\x00\xff not JSON \r\n")
			}
			got := s.send(t, r)
			require.Equal(t, http.StatusOK, got.StatusCode, "%s %s: %s", method, proto, got.body)
			require.JSONEq(t, fmt.Sprintf(`{"object":"file","method":%q,"path":"/v1/files/file-1/content","bytes":%d}`, method, len(r.body)), string(got.body))
			seen := s.seen(t, r.nonce)
			require.Len(t, seen, 1)
			assert.Equal(t, "purpose=batch&limit=2&model=other", seen[0].Query)
			assert.Equal(t, digestOf(r.body), cmp.Or(seen[0].BodySHA256, digestOf(nil)))
			assert.Equal(t, []string{"Bearer " + faceKey("c")}, seen[0].Header.Values("Authorization"))
			assert.Empty(t, seen[0].Header.Values("X-Api-Key"))
			calls++
		}
	}
	anthropic := sending{method: "GET", path: "/v1/files", key: c.secret, nonce: newNonce(), header: http.Header{"Anthropic-Version": {"2023-06-01"}}}
	got := s.send(t, anthropic)
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	require.Equal(t, got.Header.Get("X-Request-Id"), got.Header.Get("Request-Id"))
	require.Equal(t, []string{faceKey("c")}, s.seen(t, anthropic.nonce)[0].Header.Values("X-Api-Key"))
	calls++
	rows := s.records(t, c.keyID, calls)
	for _, r := range rows {
		assert.Equal(t, "files", r.Model)
		assert.Equal(t, r.RequestID == got.Header.Get("X-Request-Id"), r.API == domain.APIRawAnthropic)
		assert.Equal(t, domain.OutcomeSuccess, r.Outcome)
		assert.Equal(t, domain.Usage{Tools: tools(map[domain.Tool]int64{domain.ToolCall: 1})}, r.Usage)
		assert.Equal(t, int64(500), r.CostMicros)
	}
	c.requireBalanced(t, rows)
	c.requireIdle(t, "media", "media-spare")
}

func TestRawPathsFailOver(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	secret, id := s.key(t, "--identity", "raw")
	s.provider.Face("c").Enqueue(fakeprovider.Script{Status: 503})
	got := s.send(t, sending{method: "PUT", path: "/v1/files", key: secret, body: []byte("abc")})
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	require.JSONEq(t, `{"object":"file","method":"PUT","path":"/v1/files","bytes":3}`, string(got.body))
	r := s.records(t, id, 1)[0]
	require.Equal(t, []domain.Attempt{{Channel: "media", Status: 503}, {Channel: "media-spare", Status: 200}}, r.Attempts)
}

// Everything else is refused in its dialect, and no spelling of a path reaches
// what Keyway reads itself, or leaves the provider's base path.
func TestNoOtherPathPassesRaw(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "metered")
	narrowed := s.caller(t, c.identity, "--policy", "metered", "--models", "m")
	requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 404, kind: "invalid_request_error", hopeless: true},
		s.send(t, sending{method: "GET", path: "/v1/files", key: narrowed.secret}))
	for _, target := range []string{
		"/v1/filesystem", "/v1/file", "/files", "/v1/FILES", "/v1/vector_stores", "/v2/files", "/admin/files",
		"/v1/files/..%2fchat/completions", "/v1/files/%2e%2e/chat/completions", "/v1/files/%2E%2E%2Fadmin", "/v1/files/..;/chat/completions",
		"/v1/files/a%2fb", "/v1/files/a%5c..%5cb", "/v1/files/%00", "/v1/files/a%20b", "/v1/files/a;b", "/v1/files/.%2e/x",
		"/v1/files/../../admin", "/v1/files/../responses/x", "/v1/files/./../organization/users", "/v1/files/../../../_records",
		"http://evil.example/v1/vector_stores", "http://evil.example/admin/../v1/organization",
		"/v1/chat/completions/", "/v1/Chat/Completions", "/v1/chat/completions/../completions/x", "/v1/responses/a/b/c", "/v1/models/../organization",
	} {
		nonce := newNonce()
		status, body := s.rawRequest(t, "GET "+target, c.secret, nonce)
		assert.Contains(t, []int{400, 404, 405}, status, "%s: %s", target, body)
		assert.Contains(t, body, `"error"`, target)
		assert.Empty(t, s.seen(t, nonce), target)
	}
	require.Empty(t, s.held(t, c.identity, c.keyID, narrowed.keyID))
	// Slashes and dots that lead to a good path are that path.
	for _, target := range []string{"/v1//files", "/v1/./files", "/v1/x/../files", "/v1\\files", "http://evil.example/v1/files", "/v1/files"} {
		nonce := newNonce()
		status, body := s.rawRequest(t, "GET "+target, c.secret, nonce)
		require.Equal(t, 200, status, "%s: %s", target, body)
		seen := s.seen(t, nonce)
		require.Len(t, seen, 1, target)
		assert.Equal(t, "/v1/files", seen[0].Path, target)
		assert.NotContains(t, seen[0].Host, "evil", target)
	}
	s.records(t, c.keyID, 6)
}

// rawRequest sends a request line as it is.
func (s *stack) rawRequest(t testing.TB, line, secret, nonce string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.ready.BaseURL, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: keyway\r\nAuthorization: Bearer %s\r\nUser-Agent: %s\r\nConnection: close\r\n\r\n", line, secret, nonce)
	require.NoError(t, err)
	raw, err := io.ReadAll(conn)
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(raw), "HTTP/1.1 %d", &status)
	require.NoError(t, err, "%s", raw)
	_, body, _ = strings.Cut(string(raw), "\r\n\r\n")
	return status, body
}
