package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// fallback is a model with two channels: the first fails as the script of a
// request says, the second serves.
type fallback struct {
	model string
	// first and second are channels, face is that of the second.
	first, second string
	face          string
	upstream      string
}

// firstFace is the face of the channel that fails.
func (f fallback) firstFace() string {
	if f.face == "tlsb" {
		return "tlsa"
	}
	return "a"
}

var (
	failH1        = fallback{"fail", "failing", "healthy", "b", "m-healthy-longer"}
	failH2        = fallback{"fail-h2", "failing-h2", "healthy-h2", "tlsb", "m-healthy-longer"}
	failRefuse    = fallback{"m-refused", "refusing", "second", "b", "m-second-longer"}
	failUntrusted = fallback{"m-untrusted", "untrusted", "second", "b", "m-second-longer"}
	failTLS       = fallback{"m-without-tls", "without-tls", "second", "b", "m-second-longer"}
	failSilent    = fallback{"silent", "brisk-a", "brisk-b", "b", "m-healthy-longer"}
)

// failures are the ways in which a first channel fails; status is what the
// attempt's entry in the row says, 0 for no answer.
var failures = []struct {
	name   string
	on     []fallback
	script string
	status int
}{
	{"429", []fallback{failH1, failH2}, `"status":429,"retry_after":{"seconds":30}`, 429},
	{"500", []fallback{failH1, failH2}, `"status":500`, 500},
	{"503", []fallback{failH1, failH2}, `"status":503`, 503},
	{"529", []fallback{failH1, failH2}, `"status":529`, 529},
	{"a status of an edge", []fallback{failH1, failH2}, `"status":524`, 524},
	{"a redirect", []fallback{failH1, failH2}, `"status":307,"headers":{"Location":"https://elsewhere.example/v1"}`, 307},
	{"an answer that tells Envoy not to go on", []fallback{failH1}, `"status":429,"headers":{"X-Envoy-Ratelimited":"true"}`, 429},
	{"401", []fallback{failH1, failH2}, `"status":401`, 401},
	{"an HTML page", []fallback{failH1, failH2}, `"fail":"html"`, 502},
	{"reset before headers", []fallback{failH1, failH2}, `"reset_after":{"before_headers":true}`, 0},
	{"connection closed before headers", []fallback{failH1, failH2}, `"drop_after":{"before_headers":true}`, 0},
	{"out of money with 429", []fallback{failH1}, `"fail":"insufficient_quota"`, 429},
	{"out of money with 400", []fallback{failH1, failH2}, `"fail":"insufficient_quota","status":400`, 400},
	{"out of money with 402", []fallback{failH1, failH2}, `"fail":"billing","status":402`, 402},
	{"refused connection", []fallback{failRefuse}, "", 0},
	{"a certificate that nobody vouches for", []fallback{failUntrusted}, "", 0},
	{"no TLS where it should be", []fallback{failTLS}, "", 0},
	{"silent past its first-byte limit", []fallback{failSilent}, `"delay_headers_ms":60000`, 0},
}

// sent is a request that has its answer; its row may still be on the way.
type sent struct {
	name string
	id   string
	// check looks at the request's row.
	check func(t *testing.T, row domain.UsageRecord)
}

// requireRows waits for the rows of requests that the key sent, one each, and
// checks every one.
func (c *caller) requireRows(t *testing.T, requests []sent) {
	t.Helper()
	byID := map[string]domain.UsageRecord{}
	rows := c.requireOneRowEach(t, len(requests))
	for _, r := range rows {
		byID[r.RequestID] = r
	}
	for _, r := range requests {
		t.Run("row of "+r.name, func(t *testing.T) {
			require.Contains(t, byID, r.id)
			r.check(t, byID[r.id])
		})
	}
	c.requireBalanced(t, rows)
}

// Whatever the first channel does before its headers, the second serves with
// its own credential, path and model, and the client sees one clean answer.
func TestNextChannelServes(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	var channels []string
	var requests []sent
	for _, tc := range failures {
		for _, f := range tc.on {
			channels = append(channels, f.first, f.second)
			for _, api := range streamAPIs {
				name := tc.name + " on " + f.first + " " + string(api)
				t.Run(name, func(t *testing.T) {
					a := ask{api: api, model: f.model, stream: len(requests)%2 == 0, nonce: newNonce()}
					if tc.script != "" {
						a.script = fmt.Sprintf(`{"only_face":%q,%s}`, f.firstFace(), tc.script)
					}
					got := c.ask(t, a)
					require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
					if a.stream {
						assert.Contains(t, string(got.body), terminalOf(api))
					}
					requireServedBySecond(t, s, f, a)
					requests = append(requests, sent{name, got.Header.Get("X-Request-Id"), func(t *testing.T, row domain.UsageRecord) {
						requireFailoverRow(t, row, f, tc.status)
					}})
				})
			}
		}
	}
	c.requireRows(t, requests)
	c.requireIdle(t, channels...)
}

// requireServedBySecond looks at what the second channel's provider received.
func requireServedBySecond(t *testing.T, s *stack, f fallback, a ask) {
	t.Helper()
	seen := s.attempts(a.nonce)
	require.NotEmpty(t, seen)
	last := seen[len(seen)-1]
	assert.Equal(t, f.face, last.Face)
	assert.Equal(t, "/v1"+strings.TrimPrefix(a.api.Path(), "/v1"), last.Path)
	assert.Equal(t, f.upstream, last.Model)
	assert.Equal(t, s.provider.Face(f.face).Addr(), last.Host)
	carrier, want := "Authorization", "Bearer "+faceKey(f.face)
	if a.api == domain.APIMessages {
		carrier, want = "X-Api-Key", faceKey(f.face)
	}
	assert.Equal(t, []string{want}, last.Header.Values(carrier))
	for _, rec := range seen[:len(seen)-1] {
		assert.Equal(t, f.firstFace(), rec.Face)
		assert.NotEqual(t, f.upstream, rec.Model, "the first channel has its own name for the model")
	}
}

// requireFailoverRow checks the one row of a request that the second channel served.
func requireFailoverRow(t *testing.T, row domain.UsageRecord, f fallback, status int) {
	t.Helper()
	assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
	assert.Equal(t, domain.SourceUpstream, row.Source)
	assert.Equal(t, f.second, row.Channel)
	assert.Equal(t, 2, row.Attempt)
	assert.Equal(t, []domain.Attempt{{Channel: f.first, Status: status}, {Channel: f.second, Status: 200}}, row.Attempts)
	assert.Equal(t, f.upstream, row.ModelServed)
	assert.Equal(t, row.Usage.Total(), row.CostMicros)
	assert.Positive(t, row.Usage.Output)
}

// Every channel fails: one clean error, one failed row, nothing to pay.
func TestAllChannelsFail(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	cases := []struct {
		name, script string
		api          domain.API
		status       int
		kind         string
		upstream     int // status of each attempt
		ownWords     bool
	}{
		{"500 chat", `{"status":500}`, domain.APIChat, 500, "server_error", 500, false},
		{"529 messages", `{"status":529}`, domain.APIMessages, 529, "overloaded_error", 529, false},
		{"429 responses", `{"status":429,"retry_after":{"seconds":600}}`, domain.APIResponses, 429, "rate_limit_error", 429, false},
		{"401 chat", `{"status":401}`, domain.APIChat, 502, "server_error", 401, true},
		{"401 messages", `{"status":401}`, domain.APIMessages, 500, "api_error", 401, true},
		{"402 chat", `{"status":402,"body":"{\"error\":{\"code\":402,\"message\":\"Insufficient credits\"}}"}`, domain.APIChat, 502, "server_error", 402, true},
		{"money chat", `{"fail":"insufficient_quota"}`, domain.APIChat, 502, "server_error", 429, true},
		{"money messages", `{"fail":"insufficient_quota"}`, domain.APIMessages, 500, "api_error", 429, true},
		{"redirect chat", `{"status":308,"headers":{"Location":"/v2"}}`, domain.APIChat, 502, "server_error", 308, true},
		{"redirect messages", `{"status":302,"headers":{"Location":"https://elsewhere.example/v1"}}`, domain.APIMessages, 500, "api_error", 302, true},
		{"HTML chat", `{"fail":"html"}`, domain.APIChat, 502, "server_error", 502, true},
		{"reset chat", `{"reset_after":{"before_headers":true}}`, domain.APIChat, 502, "server_error", 0, true},
		{"reset messages", `{"reset_after":{"before_headers":true}}`, domain.APIMessages, 500, "api_error", 0, true},
	}
	var requests []sent
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got := c.ask(t, ask{api: tc.api, model: "fail", script: tc.script, stream: true})
			require.Equal(t, tc.status, got.StatusCode, "%s", got.body)
			assert.Equal(t, "application/json", got.Header.Get("Content-Type"))
			assert.Equal(t, tc.kind, errorTypeOf(t, got.body))
			if tc.ownWords {
				assert.Empty(t, got.Header.Get("Location"))
				requireNoInsides(t, got, "Incorrect API key", "billing", "credits", "upstream edge", faceKey("a"), faceKey("b"))
			}
			if wait := got.Header.Get("Retry-After"); wait != "" {
				assert.LessOrEqual(t, len(wait), 2, "Retry-After %q is more than a minute", wait)
			}
			requests = append(requests, sent{tc.name, got.Header.Get("X-Request-Id"), func(t *testing.T, row domain.UsageRecord) {
				assert.Equal(t, domain.OutcomeFailed, row.Outcome)
				assert.Zero(t, row.CostMicros)
				assert.Equal(t, []domain.Attempt{{Channel: "failing", Status: tc.upstream}, {Channel: "healthy", Status: tc.upstream}}, row.Attempts)
			}})
		})
	}
	c.requireRows(t, requests)
	c.requireIdle(t, "failing", "healthy")
}

// What the client did wrong, and what the provider asks not to repeat, goes
// to no second channel.
func TestNoRetryWhereItCannotHelp(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	cases := []struct {
		name, script string
		status       int
	}{
		{"400", `{"status":400}`, 400},
		{"too long a prompt", `{"fail":"context_length_exceeded"}`, 400},
		{"404", `{"status":404}`, 404},
		{"422", `{"status":422}`, 422},
		{"429 that says so", `{"status":429,"headers":{"x-should-retry":"false"}}`, 429},
		{"500 that says so", `{"status":500,"headers":{"x-should-retry":"false"}}`, 500},
	}
	var requests []sent
	for _, tc := range cases {
		for _, api := range []domain.API{domain.APIChat, domain.APIMessages} {
			name := tc.name + " " + string(api)
			t.Run(name, func(t *testing.T) {
				a := ask{api: api, model: "fail", script: tc.script, nonce: newNonce()}
				got := c.ask(t, a)
				require.Equal(t, tc.status, got.StatusCode, "%s", got.body)
				assert.NotEmpty(t, errorTypeOf(t, got.body))
				seen := s.attempts(a.nonce)
				require.Len(t, seen, 1)
				assert.Equal(t, "a", seen[0].Face)
				requests = append(requests, sent{name, got.Header.Get("X-Request-Id"), func(t *testing.T, row domain.UsageRecord) {
					assert.Equal(t, domain.OutcomeFailed, row.Outcome)
					assert.Zero(t, row.CostMicros)
					assert.Equal(t, []domain.Attempt{{Channel: "failing", Status: tc.status}}, row.Attempts)
				}})
			})
		}
	}
	c.requireRows(t, requests)
	c.requireIdle(t, "failing", "healthy")
}
