package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// Section D: framings that a watcher must survive byte for byte, with the usage
// found whatever the frames look like.
func TestFramings(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	const counted = `"usage":{"input_uncached":7,"output":5}`
	for _, tc := range []struct{ name, script string }{
		{"case_035 LF", `"line_ending":"lf"`},
		{"case_035 CRLF", `"line_ending":"crlf"`},
		{"case_035 CR", `"line_ending":"cr"`},
		{"case_035 CRLF cut between CR and LF", `"line_ending":"crlf","cut_every":3,"coalesce":true`},
		{"case_038 one byte at a time", `"count":3,"cut_every":1,"coalesce":true`},
		{"case_038 seven bytes at a time", `"cut_every":7,"coalesce":true`},
		{"case_039 a character cut after one byte", `"answer_text":"中中 🙂","cut_every":1,"coalesce":true`},
		{"case_042 comments between events", `"interleave":": OPENROUTER PROCESSING\n\n"`},
		{"case_043 comments are passed as they are", `"interleave":": OPENROUTER PROCESSING\n: and more\n\n","cut_every":11`},
		{"case_045 without the end marker", `"terminal":"no_done"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, api := range []domain.API{domain.APIChat, domain.APIMessages, domain.APIResponses} {
				if strings.Contains(tc.script, "no_done") && api != domain.APIChat {
					continue // the others have no such marker
				}
				c := s.caller(t, newNonce(), "--policy", "trusted")
				got := c.readAsked(t, ask{api: api, model: "only-a", stream: true, script: `{` + tc.script + `,` + counted + `}`})
				got.requireUntouched(t)
				assert.Equal(t, domain.Usage{InputUncached: 7, Output: 5}, got.row.Usage, api)
				assert.Equal(t, domain.SourceUpstream, got.row.Source, api)
				assert.Equal(t, domain.OutcomeSuccess, got.row.Outcome, api)
			}
		})
	}
}

// case_042: a comment inside an event does not end it.
func TestCase042InsideAnEvent(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "trusted")
	const frames = `["data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n: working\n\n",` +
		`": working\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5,\"total_tokens\":12}}\n\n","data: [DONE]\n\n"]`
	got := c.readAsked(t, ask{model: "only-a", stream: true, script: `{"chunks":` + frames + `}`})
	got.requireUntouched(t)
	assert.Equal(t, domain.Usage{InputUncached: 7, Output: 5}, got.row.Usage)
}

// case_047: a provider that compresses though identity was asked for is not free.
func TestCase047(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, stream := range []bool{true, false} {
		c := s.caller(t, newNonce(), "--policy", "trusted")
		got := c.read(t, ask{model: "only-a", stream: stream, script: `{"gzip":true,"count":40}`})
		got.requireUntouched(t)
		assert.Equal(t, "gzip", got.Header.Get("Content-Encoding"))
		assert.Equal(t, "identity", got.sent.Header.Get("Accept-Encoding"))
		assert.Equal(t, domain.SourceEstimate, got.row.Source)
		assert.Positive(t, got.row.Usage.Input())
		assert.Positive(t, got.row.Usage.Output)
		assert.Positive(t, got.row.CostMicros)
	}
}

// case_077: bodies of every size that is allowed pass, over both protocols.
func TestCase077(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, size := range []int{32_769, 1 << 20, 8 << 20, 31 << 20} {
			c := s.caller(t, newNonce(), "--policy", "wide")
			nonce := newNonce()
			body := bigBody("sized", `{}`, size)
			got := s.send(t, sending{path: "/v1/chat/completions", key: c.secret, nonce: nonce, http: clientsByProto[proto], body: body})
			require.Equal(t, http.StatusOK, got.StatusCode, "%s, %d: %.300s", proto, size, got.body)
			sent := s.seen(t, nonce)[0]
			want := rewritten(t, body, "sized", "m-sized")
			assert.Equal(t, digestOf(want), sent.BodySHA256, "%s, %d", proto, size)
		}
	}
}

// case_085: one strict reader decides, and what is ambiguous is refused.
func TestCase085(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "trusted")
	const rest = `"messages":[{"role":"user","content":"hi"}]}`
	for name, body := range map[string]string{
		"stream as text":      `{"model":"only-a","stream":"true",` + rest,
		"two models":          `{"model":"only-a","model":"only-b",` + rest,
		"two models, escaped": `{"model":"only-a","mod\u0065l":"only-b",` + rest,
		"two streams":         `{"model":"only-a","stream":false,"stream":true,` + rest,
		"NaN":                 `{"model":"only-a","temperature":NaN,` + rest,
		"depth":               `{"model":"only-a","x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `,` + rest,
		"byte order mark":     "\ufeff" + `{"model":"only-a",` + rest,
		"lone surrogate":      `{"model":"only-a","x":"\ud800",` + rest,
		"trailing text":       `{"model":"only-a",` + rest + `x`,
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
			nonce := newNonce()
			got := s.send(t, sending{path: path, key: c.secret, nonce: nonce, body: []byte(body)})
			assert.Equal(t, http.StatusBadRequest, got.StatusCode, "%s: %s", name, got.body)
			assert.Contains(t, string(got.body), "invalid_request_error", name)
			assert.Empty(t, s.attempts(nonce), name)
		}
	}
	assert.Empty(t, c.charges(t))
}
