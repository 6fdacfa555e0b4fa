package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// badPrompt must not come back in any error.
const badPrompt = "a secret plan nobody may read"

// badWorld is an identity with keys in every state.
type badWorld struct {
	*stack
	identity string
	// key is good and metered: whatever is reserved for it can be seen for seconds.
	key, keyID string
	// narrowed may use the model m alone.
	narrowed, narrowedID string
	disabled, expired    string
	unknown              string
	ids                  []string
}

func newBadWorld(t *testing.T, s *stack) badWorld {
	t.Helper()
	w := badWorld{stack: s, identity: newNonce()}
	w.key, w.keyID = s.key(t, "--identity", w.identity, "--policy", "metered")
	w.narrowed, w.narrowedID = s.key(t, "--identity", w.identity, "--policy", "metered", "--models", "m")
	var disabledID string
	w.disabled, disabledID = s.key(t, "--identity", w.identity, "--policy", "metered")
	s.cli(t, "key", "disable", disabledID, "--store", s.ready.RedisURL)
	var err error
	w.expired, err = domain.NewKeySecret()
	require.NoError(t, err)
	require.NoError(t, s.store.PutKey(t.Context(), domain.VirtualKey{
		ID: "key_expired_" + w.identity, Hash: domain.HashKey(w.expired), Identity: w.identity, Policy: "metered",
		State: domain.KeyActive, CreatedAt: time.Now().Add(-time.Hour), ExpiresAt: time.Now().Add(-time.Second),
	}))
	w.unknown, err = domain.NewKeySecret()
	require.NoError(t, err)
	w.ids = []string{w.keyID, w.narrowedID, disabledID, "key_expired_" + w.identity}
	return w
}

// requireUntouched: nothing is reserved for any key of the world, and the
// provider has seen nothing.
func (w badWorld) requireUntouched(t *testing.T, nonce, what string) {
	t.Helper()
	require.Empty(t, w.held(t, w.identity, w.ids...), what)
	require.Empty(t, w.seen(t, nonce), what)
}

// requireUnwritten: no key of the world has a ledger row, and a good request
// proves that it would have been seen.
func (w badWorld) requireUnwritten(t *testing.T) {
	t.Helper()
	got := w.send(t, sending{path: "/v1/chat/completions", key: w.key, body: []byte(chat("m", ""))})
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	require.NotEmpty(t, w.held(t, w.identity, w.keyID), "the meter of this test does not measure")
	// The outbox keeps the order of its identity: rows of earlier requests would be there by now.
	w.records(t, w.keyID, 1)
	for _, id := range w.ids[1:] {
		require.Empty(t, w.recordsNow(t, id))
	}
}

// badCase is one wrong request; fields left out are those of a good one.
type badCase struct {
	name string
	// key is whose key is sent: "" the good one, "none" none at all.
	key    string
	header http.Header
	// body has %s for the model's name; "" is a good body.
	body string
	// status, code and kind as the OpenAI dialect says them, kindAnthropic the other.
	status        int
	kind, code    string
	kindAnthropic string
}

// unauthorized, invalid and missing fill in what most rows share.
func unauthorized(name, key, code string, header http.Header) badCase {
	return badCase{name: name, key: key, header: header, status: 401, kind: "invalid_request_error", code: code, kindAnthropic: "authentication_error"}
}

func invalid(name, body string) badCase {
	return badCase{name: name, body: body, status: 400, kind: "invalid_request_error", kindAnthropic: "invalid_request_error"}
}

func noModel(name, body string) badCase {
	c := invalid(name, body)
	c.code = "missing_required_parameter"
	return c
}

func notFound(name, key, body string) badCase {
	return badCase{name: name, key: key, body: body, status: 404, kind: "invalid_request_error", code: "model_not_found", kindAnthropic: "not_found_error"}
}

// badCases are wrong on every metered path alike. Rest of a body is the prompt.
func badCases(w badWorld) []badCase {
	const rest = `"max_tokens":9,"messages":[{"role":"user","content":"` + badPrompt + `"}]}`
	const model = `{"model":"m",`
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	bearer := func(v string) http.Header { return http.Header{"Authorization": {v}} }
	return []badCase{
		unauthorized("unknown key", w.unknown, "invalid_api_key", nil),
		unauthorized("disabled key", w.disabled, "key_disabled", nil),
		unauthorized("expired key", w.expired, "key_expired", nil),
		unauthorized("malformed key", "kw_nonsense", "invalid_api_key", nil),
		unauthorized("key with a wrong checksum", w.key[:len(w.key)-1]+"_", "invalid_api_key", nil),
		unauthorized("a provider's own key", faceKey("a"), "invalid_api_key", nil),
		unauthorized("no key", "none", "invalid_api_key", nil),
		unauthorized("empty bearer", "none", "invalid_api_key", bearer("Bearer ")),
		unauthorized("basic credentials", "none", "invalid_api_key", bearer("Basic a2V5OnNlY3JldA==")),
		unauthorized("two different keys in two carriers", "", "invalid_api_key", http.Header{"X-Api-Key": {w.narrowed}}),
		unauthorized("two different keys in one carrier", "none", "invalid_api_key", http.Header{"Authorization": {"Bearer " + w.key, "Bearer " + w.narrowed}}),
		unauthorized("a key in the query alone", "none", "invalid_api_key", nil),

		noModel("no model", `{`+rest),
		noModel("model null", `{"model":null,`+rest),
		noModel("model empty", `{"model":"",`+rest),
		invalid("model a number", `{"model":7,`+rest),
		invalid("model of 300 bytes", `{"model":"`+strings.Repeat("x", 300)+`",`+rest),
		notFound("unknown model", "", `{"model":"nobody",`+rest),
		notFound("disallowed model", w.narrowed, `{"model":"two",`+rest),

		invalid("empty body", " "),
		invalid("truncated", model+`"messages":[{"role":"user","content":"`+badPrompt),
		invalid("byte order mark", "\xef\xbb\xbf"+model+rest),
		invalid("NaN", model+`"temperature":NaN,`+rest),
		invalid("infinity", model+`"temperature":-Infinity,`+rest),
		invalid("depth 10 000", model+`"metadata":`+deep+`,`+rest),
		invalid("lone surrogate", model+`"user":"\ud83d",`+rest),
		invalid("not UTF-8", model+"\"user\":\"\xff\","+rest),
		invalid("duplicate model", model+`"model":"two",`+rest),
		invalid("duplicate model by an escape", model+`"mod\u0065l":"two",`+rest),
		invalid("stream a string", model+`"stream":"true",`+rest),
		invalid("trailing garbage", model+rest+`{}`),
		invalid("an array", "["+model+rest+"]"),
		invalid("a string", `"hello"`),
		invalid("negative cap", model+`"max_tokens":-1,`+strings.Replace(rest, `"max_tokens":9,`, "", 1)),
		invalid("duplicate cap", model+`"max_tokens":5,`+rest),

		{
			name: "compressed body", header: http.Header{"Content-Encoding": {"gzip"}}, status: 415,
			kind: "invalid_request_error", code: "unsupported_media_type", kindAnthropic: "invalid_request_error",
		},
		{
			name: "two versions", header: http.Header{"Anthropic-Version": {"2023-06-01", "2026-10-21"}}, status: 400,
			kind: "invalid_request_error", kindAnthropic: "invalid_request_error",
		},
	}
}

func TestBadInputIsRefusedInTheClientsDialect(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	w := newBadWorld(t, s)
	for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/messages"} {
		for _, tc := range badCases(w) {
			for proto, c := range clientsByProto {
				if path == "/v1/responses" && proto == "HTTP/2.0" {
					continue // the same code as chat; one way in is enough
				}
				what := fmt.Sprintf("%s %s %s", path, tc.name, proto)
				nonce := newNonce()
				got := s.send(t, w.sendingOf(tc, sending{path: path, nonce: nonce, http: c}))
				requireRefusal(t, refusal{
					dialect: domain.DialectForPath(path), status: tc.status, kind: kindOf(tc, path), code: tc.code,
					hopeless: tc.status != 400,
					secrets:  []string{w.key, w.narrowed, w.disabled, w.expired, w.unknown, badPrompt, faceKey("a")},
				}, got)
				w.requireUntouched(t, nonce, what)
				if t.Failed() {
					t.Fatal(what)
				}
			}
		}
	}
	w.requireUnwritten(t)
}

func kindOf(tc badCase, path string) string {
	if domain.DialectForPath(path) == domain.DialectAnthropic {
		return tc.kindAnthropic
	}
	return tc.kind
}

// sendingOf completes base to the request of tc.
func (w badWorld) sendingOf(tc badCase, base sending) sending {
	base.header, base.body = tc.header, []byte(tc.body)
	if tc.body == "" {
		base.body = []byte(messages("m", "", `"user":"`+badPrompt+`"`))
	}
	if tc.name == "empty body" {
		base.body = nil
	}
	if strings.Contains(tc.name, "in the query") {
		base.path += "?key=" + w.key
	}
	switch tc.key {
	case "none":
	case "":
		base.key = w.key
	default:
		base.key = tc.key
	}
	return base
}

func TestWrongMethodAndPathAreRefused(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	w := newBadWorld(t, s)
	type row struct {
		method, path string
		status       int
		kind, code   string
	}
	var rows []row
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/completions"} {
		for _, method := range []string{"GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"} {
			rows = append(rows, row{method, path, 405, "invalid_request_error", "method_not_allowed"})
		}
	}
	for _, path := range []string{"/", "/v1", "/v1/", "/v1/nothing", "/v2/chat/completions", "/v1/chat/completions/", "/V1/chat/completions", "/v1/chat%2Fcompletions", "/v1/audio", "/v1/responses/"} {
		rows = append(rows, row{"POST", path, 404, "invalid_request_error", ""})
	}
	for _, path := range []string{"/v1/messages/", "/v1/messages/nothing", "/v1/messages/batches"} {
		rows = append(rows, row{"POST", path, 404, "not_found_error", ""})
	}
	for _, r := range rows {
		for proto, c := range clientsByProto {
			what := r.method + " " + r.path + " " + proto
			nonce := newNonce()
			got := s.send(t, sending{method: r.method, path: r.path, key: w.key, nonce: nonce, http: c, body: []byte(messages("m", ""))})
			if r.method == "HEAD" {
				require.Equal(t, r.status, got.StatusCode, what)
				assert.Empty(t, got.body, what)
				requireNoInsides(t, got, w.key)
			} else {
				requireRefusal(t, refusal{
					dialect: domain.DialectForPath(r.path), status: r.status, kind: r.kind, code: r.code, hopeless: true, secrets: []string{w.key},
				}, got)
			}
			w.requireUntouched(t, nonce, what)
			if t.Failed() {
				t.Fatal(what)
			}
		}
	}
	w.requireUnwritten(t)
}
