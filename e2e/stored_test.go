package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// made creates a response and returns its id.
func (c *caller) made(t testing.TB, a ask) string {
	t.Helper()
	a.api = domain.APIResponses
	got := c.ask(t, a)
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	var id string
	require.NoError(t, json.Unmarshal(jsonAt(t, got.body, "id"), &id))
	return id
}

// What is done with a stored response goes to the channel that made it, with its
// credential, and costs nothing again.
func TestStoredResponsesGoToTheirChannel(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "wide")
	// Made by the second channel, because the first one failed.
	id := c.made(t, ask{model: "fail", script: `{"only_face":"a","status":500}`})
	cost := s.records(t, c.keyID, 1)[0].CostMicros
	require.Positive(t, cost)
	get := func(method, path string) (received, string) {
		nonce := newNonce()
		r := sending{method: method, path: path, key: c.secret, nonce: nonce}
		return s.send(t, r), nonce
	}
	for _, tc := range []struct{ method, target, query, want string }{
		{"GET", "", "", `"status":"completed"`},
		{"GET", "?include[]=reasoning.encrypted_content&key=" + c.secret + "&model=m", "include[]=reasoning.encrypted_content", `"object":"response"`},
		{"GET", "?stream=true", "stream=true", "event: response.completed"},
		{"GET", "?stream=true&starting_after=4", "stream=true&starting_after=4", "event: response.completed"},
		{"GET", "/input_items?limit=5&order=asc", "limit=5&order=asc", `"object":"list"`},
		{"POST", "/cancel", "", `"status":"cancelled"`},
	} {
		what := tc.method + " " + tc.target
		got, nonce := get(tc.method, "/v1/responses/"+id+tc.target)
		require.Equal(t, http.StatusOK, got.StatusCode, "%s: %s", what, got.body)
		require.Contains(t, string(got.body), tc.want, what)
		seen := s.seen(t, nonce)
		require.Len(t, seen, 1, what)
		assert.Equal(t, "b", seen[0].Face, what)
		assert.Equal(t, tc.method, seen[0].Method, what)
		assert.Equal(t, tc.query, seen[0].Query, what)
		assert.Equal(t, seen[0].SentSHA256, got.digest(), what)
		assert.Equal(t, []string{"Bearer " + faceKey("b")}, seen[0].Header.Values("Authorization"), what)
	}
	got, _ := get("DELETE", "/v1/responses/"+id)
	require.JSONEq(t, `{"id":"`+id+`","object":"response.deleted","deleted":true}`, string(got.body))
	got, _ = get("GET", "/v1/responses/"+id)
	require.Equal(t, http.StatusNotFound, got.StatusCode, "the provider's own word: %s", got.body)

	rows := s.records(t, c.keyID, 9)
	var sum int64
	for _, r := range rows {
		sum += r.CostMicros
		if r.API == domain.APIResponses {
			continue
		}
		assert.Equal(t, domain.APIStored, r.API)
		assert.Equal(t, "fail", r.Model)
		assert.Equal(t, "healthy", r.Channel)
		assert.Equal(t, domain.Usage{}, r.Usage)
	}
	assert.Equal(t, cost, sum)
	c.requireBalanced(t, rows)
	c.requireIdle(t, "failing", "healthy")
}

// A key that may make six requests a minute may not ask for more of what it has made.
func TestStoredResponsesCountAsRequests(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "rpm2")
	id := c.made(t, ask{model: "m"})
	c.requireIdle(t) // one at a time, too
	r := sending{method: "GET", path: "/v1/responses/" + id, key: c.secret}
	require.Equal(t, http.StatusOK, s.send(t, r).StatusCode)
	c.requireIdle(t)
	requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 429, kind: "rate_limit_error", code: "rate_limit_exceeded"}, s.send(t, r))
}

func TestUnknownResponsesReachNoProvider(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	owner, other := s.caller(t, newNonce(), "--policy", "metered"), s.caller(t, newNonce(), "--policy", "metered")
	id := owner.made(t, ask{model: "m"})
	s.records(t, owner.keyID, 1)
	narrowed := s.caller(t, owner.identity, "--policy", "metered", "--models", "two")
	for name, r := range map[string]sending{
		"another identity's":     {method: "GET", path: "/v1/responses/" + id, key: other.secret},
		"of a model not allowed": {method: "DELETE", path: "/v1/responses/" + id, key: narrowed.secret},
		"unknown":                {method: "GET", path: "/v1/responses/resp_nobody_made", key: owner.secret},
		"unknown, to be counted": {path: "/v1/responses/input_tokens", key: owner.secret, body: []byte(`{"model":"m","input":"x","previous_response_id":"resp_nobody_made"}`)},
		"another part of it":     {method: "GET", path: "/v1/responses/" + id + "/secrets", key: owner.secret},
		"an escaped id":          {method: "GET", path: "/v1/responses/" + strings.Replace(id, "_", "%5c", 1), key: owner.secret},
		"an id with a path":      {method: "GET", path: "/v1/responses/" + id + "%2f..%2fx", key: owner.secret},
	} {
		r.nonce = newNonce()
		got := s.send(t, r)
		requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 404, kind: "invalid_request_error", hopeless: true}, got)
		require.Empty(t, s.seen(t, r.nonce), name)
	}
	for _, r := range []sending{{path: "/v1/responses/" + id}, {method: "GET", path: "/v1/responses/" + id + "/cancel"}, {method: "PUT", path: "/v1/responses/" + id}} {
		r.key, r.nonce = owner.secret, newNonce()
		requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 405, kind: "invalid_request_error", code: "method_not_allowed", hopeless: true}, s.send(t, r))
		require.Empty(t, s.seen(t, r.nonce))
	}
	require.Empty(t, s.recordsNow(t, other.keyID))
	require.Empty(t, s.recordsNow(t, narrowed.keyID))
}

// A stored response that is streamed again is cut and cancelled as any stream.
func TestStoredStreamsEndWell(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce())
	id := c.made(t, ask{model: "m", script: `{"delay_between_ms":20,"count":300}`, cap: 400})
	ctx, leave := withCancel(t)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.ready.BaseURL+"/v1/responses/"+id+"?stream=true", nil)
	require.NoError(t, err)
	nonce := newNonce()
	req.Header.Set("Authorization", "Bearer "+c.secret)
	req.Header.Set("User-Agent", nonce)
	resp, err := client.Do(req)
	require.NoError(t, err)
	_, err = resp.Body.Read(make([]byte, 100))
	require.NoError(t, err)
	leave()
	require.NoError(t, resp.Body.Close())
	for _, r := range s.records(t, c.keyID, 2) {
		if r.API == domain.APIStored {
			require.Equal(t, domain.OutcomeCancelled, r.Outcome)
			require.Zero(t, r.CostMicros)
			require.Equal(t, domain.Usage{}, r.Usage)
		}
	}
	c.requireIdle(t, faceNames...)
}
