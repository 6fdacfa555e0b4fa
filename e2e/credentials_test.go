package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// carriers are where a client may put a key, the query besides.
func carriers(key string) http.Header {
	return http.Header{
		"Authorization": {"Bearer " + key}, "X-Api-Key": {key}, "Api-Key": {key}, "X-Goog-Api-Key": {key}, "Xi-Api-Key": {key},
		"Cookie": {"session=" + key}, "Proxy-Authorization": {"Bearer " + key},
		// Not ours to know, and not the provider's either.
		"X-Custom-Key": {key}, "Referer": {"https://example.com/?key=" + key}, "Anthropic_Beta": {key},
	}
}

// requireOneCredential: a request reached the provider with the channel's
// credential in its dialect's carrier and with nothing of the client's.
func requireOneCredential(t *testing.T, r fakeprovider.Record, key string) {
	t.Helper()
	var whole bytes.Buffer
	fmt.Fprintf(&whole, "%s %s?%s %s\n", r.Method, r.Path, r.Query, r.Host)
	require.NoError(t, r.Header.Write(&whole))
	assert.NotContains(t, whole.String(), key)
	assert.NotContains(t, whole.String(), domain.KeyPrefix)
	want := http.Header{"Authorization": {"Bearer " + faceKey(r.Face)}}
	if domain.DialectForPath(r.Path) == domain.DialectAnthropic {
		want = http.Header{"X-Api-Key": {faceKey(r.Face)}}
	}
	got := http.Header{}
	for name := range carriers("") {
		if values := r.Header.Values(name); len(values) > 0 {
			got[name] = values
		}
	}
	assert.Equal(t, want, got)
}

// CASES 68: wherever a client carries its key, a provider gets the channel's
// credential, and that one alone.
func TestCase068(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	// An identity without limits: a limit header would be the provider's.
	key, id := s.key(t, "--identity", newNonce())
	rows := 0
	for _, model := range []string{"two", "two-tls"} {
		first := map[string]string{"two": "a", "two-tls": "tlsa"}[model]
		for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses"} {
			for proto, c := range clientsByProto {
				for _, extra := range []string{"", `"stream":true`} {
					what := fmt.Sprintf("%s %s %s %s", model, path, proto, extra)
					nonce := newNonce()
					script := `{"only_face":"` + first + `","status":500}`
					body := messages(model, script)
					query := ""
					if path == "/v1/messages" {
						query = "beta=true" // the one flag that one dialect knows
					}
					if path == "/v1/responses" {
						body = strings.Replace(body, `"messages"`, `"input"`, 1)
					}
					if extra != "" {
						body = strings.TrimSuffix(body, "}") + "," + extra + "}"
					}
					got := s.send(t, sending{path: path + "?beta=true&key=" + key, nonce: nonce, http: c, header: carriers(key), body: []byte(body)})
					require.Equal(t, http.StatusOK, got.StatusCode, "%s: %s", what, got.body)
					requireNoInsides(t, got, key)
					for _, name := range []string{"Set-Cookie", "Openai-Organization", "Anthropic-Organization-Id", "X-Ratelimit-Limit-Requests", "Anthropic-Ratelimit-Requests-Limit"} {
						assert.Empty(t, got.Header.Values(name), "%s: %s tells of the provider's account", what, name)
					}
					seen := s.seen(t, nonce)
					require.Len(t, seen, 2, what)
					require.NotEqual(t, seen[0].Face, seen[1].Face)
					for _, r := range seen {
						requireOneCredential(t, r, key)
						assert.Equal(t, path, r.Path, what)
						assert.Equal(t, query, r.Query, what)
						assert.Equal(t, strings.TrimPrefix(strings.TrimPrefix(s.provider.Face(r.Face).URL(), "http://"), "https://"), r.Host, what)
						assert.Equal(t, []string{"identity"}, r.Header.Values("Accept-Encoding"), what)
					}
					rows++
				}
			}
		}
	}
	s.records(t, id, rows)
}

// Each of the four inbound carriers alone is enough.
func TestAnyCarrierCarriesTheKey(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	key, id := s.key(t, "--identity", "wide")
	headers := []http.Header{
		{"Authorization": {"Bearer " + key}},
		{"Authorization": {"bearer " + key}},
		{"X-Api-Key": {key}},
		{"Api-Key": {key}},
		{"X-Goog-Api-Key": {key}},
		// An SDK may send a placeholder beside the key.
		{"Authorization": {"Bearer placeholder"}, "X-Api-Key": {key}},
		{"Authorization": {"Bearer " + key}, "X-Api-Key": {key}},
	}
	for _, h := range headers {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
			nonce := newNonce()
			got := s.send(t, sending{path: path, nonce: nonce, header: h, body: []byte(messages("only-b", ""))})
			require.Equal(t, http.StatusOK, got.StatusCode, "%v: %s", h, got.body)
			seen := s.seen(t, nonce)
			require.Len(t, seen, 1)
			requireOneCredential(t, seen[0], key)
		}
	}
	s.records(t, id, 2*len(headers))
}

func TestAccountHeadersAreTheChannels(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	key, _ := s.key(t, "--identity", "wide")
	for _, tc := range []struct {
		model         string
		organizations []string
		projects      []string
	}{
		{"m-scoped", []string{"org-of-the-channel"}, []string{"project-of-the-channel"}},
		{"only-c", nil, nil},
	} {
		for _, header := range []http.Header{{}, {"Openai-Organization": {"org-of-the-client"}, "Openai-Project": {"project-of-the-client"}}} {
			nonce := newNonce()
			got := s.send(t, sending{path: "/v1/chat/completions", key: key, nonce: nonce, header: header, body: []byte(chat(tc.model, ""))})
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			seen := s.seen(t, nonce)
			require.Len(t, seen, 1)
			assert.Equal(t, tc.organizations, seen[0].Header.Values("Openai-Organization"), tc.model)
			assert.Equal(t, tc.projects, seen[0].Header.Values("Openai-Project"), tc.model)
		}
	}
}

// CASES 71: betas pass, several as one; a version passes, two are refused.
func TestCase071(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	key, _ := s.key(t, "--identity", "wide")
	for proto, c := range clientsByProto {
		nonce := newNonce()
		got := s.send(t, sending{
			path: "/v1/messages", key: key, nonce: nonce, http: c, body: []byte(messages("two", "")),
			header: http.Header{"Anthropic-Version": {"2023-06-01", "2026-10-21"}, "Anthropic-Beta": {"a-2025-01-01", "b-2025-02-02"}},
		})
		requireRefusal(t, refusal{dialect: domain.DialectAnthropic, status: 400, kind: "invalid_request_error", hopeless: true}, got)
		assert.Contains(t, string(got.body), "anthropic-version")
		assert.Empty(t, s.seen(t, nonce), proto)
	}
	for _, tc := range []struct {
		name          string
		header        http.Header
		version, beta string
		absent        bool
	}{
		{name: "nothing", version: "2023-06-01", absent: true},
		{name: "own version", header: http.Header{"Anthropic-Version": {"2026-10-21"}}, version: "2026-10-21", absent: true},
		{name: "one beta", header: http.Header{"Anthropic-Beta": {"a-2025-01-01"}}, version: "2023-06-01", beta: "a-2025-01-01"},
		{name: "several betas", header: http.Header{"Anthropic-Beta": {"a-2025-01-01", "b-2025-02-02,c-2025-03-03"}}, version: "2023-06-01", beta: "a-2025-01-01,b-2025-02-02,c-2025-03-03"},
	} {
		for proto, c := range clientsByProto {
			for _, model := range []string{"two", "two-tls"} {
				nonce := newNonce()
				first := map[string]string{"two": "a", "two-tls": "tlsa"}[model]
				got := s.send(t, sending{
					path: "/v1/messages", key: key, nonce: nonce, header: tc.header, http: c,
					body: []byte(messages(model, `{"only_face":"`+first+`","fail":"overloaded"}`)),
				})
				require.Equal(t, http.StatusOK, got.StatusCode, "%s: %s", tc.name, got.body)
				seen := s.seen(t, nonce)
				require.Len(t, seen, 2, tc.name)
				for _, r := range seen {
					assert.Equal(t, []string{tc.version}, r.Header.Values("Anthropic-Version"), "%s %s", tc.name, proto)
					betas := []string{tc.beta}
					if tc.absent {
						betas = nil
					}
					assert.Equal(t, betas, r.Header.Values("Anthropic-Beta"), "%s %s", tc.name, proto)
				}
			}
		}
	}
}

// A provider that refuses our credential may quote it: the client must learn
// neither the quote nor whose fault it would seem to be.
func TestARefusedCredentialIsTheGatewaysOwnFault(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	key, id := s.key(t, "--identity", "wide")
	rows := 0
	for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
		for _, status := range []int{401, 403} {
			for _, model := range []string{"only-a", "only-tlsa"} {
				nonce := newNonce()
				script := fmt.Sprintf(`{"status":%d,"body":"{\"error\":{\"message\":\"Incorrect API key provided: %s.\"}}"}`, status, faceKey("a"))
				got := s.send(t, sending{path: path, key: key, nonce: nonce, body: []byte(messages(model, script))})
				want := refusal{dialect: domain.DialectOpenAI, status: 502, kind: "server_error", code: "upstream_error", secrets: []string{key, faceKey("a")}}
				if path == "/v1/messages" {
					want.dialect, want.status, want.kind = domain.DialectAnthropic, 500, "api_error"
				}
				requireRefusal(t, want, got)
				assert.Contains(t, string(got.body), "gateway's own credential")
				require.Len(t, s.seen(t, nonce), 1)
				rows++
			}
		}
	}
	for _, r := range s.records(t, id, rows) {
		assert.Equal(t, domain.OutcomeFailed, r.Outcome)
		assert.Zero(t, r.CostMicros)
	}
}

// What a provider says of its account, its edge or its origin, and what only the
// gateway may say, ends here, on every way and in good and bad answers; the time
// to wait comes in the form that every SDK can take.
func TestProvidersHeadersEndHere(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	headers := map[string]string{"Retry-After": time.Now().Add(24 * time.Hour).UTC().Format(http.TimeFormat), "Retry-After-Ms": "86400000"}
	for _, name := range []string{
		"Openai-Organization", "Anthropic-Organization-Id", "Set-Cookie", "X-Ratelimit-Limit-Requests", "RateLimit-Remaining", "X-Rate-Limit-Reset",
		"Www-Authenticate", "Strict-Transport-Security", "Access-Control-Allow-Origin", "Cf-Ray", "Via", "X-Litellm-Key-Spend",
		"X-Keyway-Model", "X-Keyway-Notice", "X-Keyway-Retry", "X-Envoy-Upstream-Service-Time", "X-Request-Id", "Request-Id",
	} {
		headers[name] = "theirs"
	}
	raw, err := json.Marshal(headers)
	require.NoError(t, err)
	for _, model := range []string{"fail", "think-two"} {
		for _, api := range []domain.API{domain.APIChat, domain.APIMessages} {
			for _, status := range []int{200, 400, 429} {
				got := c.ask(t, ask{api: api, model: model, stream: true, script: fmt.Sprintf(`{"status":%d,"headers":%s}`, status, raw)})
				what := fmt.Sprintf("%s %s %d", model, api, status)
				require.Equal(t, status, got.StatusCode, "%s: %s", what, got.body)
				for name := range headers {
					for _, value := range got.Header.Values(name) {
						assert.NotContains(t, value, "theirs", "%s: %s", what, name)
					}
				}
				assert.Equal(t, "theirs", got.Header.Get("X-Keyway-Upstream-Request-Id"), what)
				assert.Equal(t, []string{"60"}, got.Header.Values("Retry-After"), what)
				assert.Equal(t, []string{"60000"}, got.Header.Values("Retry-After-Ms"), what)
			}
		}
	}
}
