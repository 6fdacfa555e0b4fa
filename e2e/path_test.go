package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// One request all the way: admitted, sent with the channel's own credential,
// streamed back, settled, in the ledger.
func TestStreamedChatIsSettledInTheLedger(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	key, id := s.key(t, "--identity", "wide", "--policy", "wide")
	resp, body := s.post(t, "/v1/chat/completions", key, chat("two", `{"usage":{"input_uncached":100,"cache_read":20,"output":7}}`, `"stream":true`, `"max_tokens":50`))
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	require.Contains(t, string(body), "data: [DONE]")
	require.NotContains(t, string(body), `"prompt_tokens"`, "the usage chunk was not asked for by the client")
	require.NotEmpty(t, resp.Header.Get("X-Request-Id"))

	r := s.records(t, id, 1)[0]
	require.Equal(t, resp.Header.Get("X-Request-Id"), r.RequestID)
	require.Equal(t, domain.OutcomeSuccess, r.Outcome)
	require.Equal(t, domain.SourceUpstream, r.Source)
	require.Equal(t, domain.Usage{InputUncached: 100, CacheRead: 20, Output: 7}, r.Usage)
	// 100 × 2 + 20 × 0.2 + 7 × 8 micro-units.
	require.Equal(t, int64(260), r.CostMicros)
	require.Equal(t, []domain.Attempt{{Channel: "first", Status: 200}}, r.Attempts)
	require.Equal(t, "wide", r.Identity)
	require.NotEmpty(t, r.UpstreamRequestID)
}

func TestMessagesAndResponsesAreServed(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	key, id := s.key(t, "--identity", "wide")
	for _, tc := range []struct{ path, body, want string }{
		{"/v1/messages", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, `"type":"message"`},
		{"/v1/messages", `{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}`, "event: message_stop"},
		{"/v1/responses", `{"model":"m","input":"hi","stream":true}`, "event: response.completed"},
		{"/v1/responses", `{"model":"m","input":"hi"}`, `"object":"response"`},
		{"/v1/completions", `{"model":"m","prompt":"hi"}`, `"text_completion"`},
		{"/v1/embeddings", `{"model":"m","input":"hi"}`, `"embedding"`},
	} {
		resp, body := s.post(t, tc.path, key, tc.body)
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s: %s", tc.path, body)
		require.Contains(t, strings.ReplaceAll(string(body), `": `, `":`), tc.want, tc.path)
	}
	for _, r := range s.records(t, id, 6) {
		require.Equal(t, domain.OutcomeSuccess, r.Outcome, "%+v", r)
		require.Equal(t, domain.SourceUpstream, r.Source, "%+v", r)
		require.Positive(t, r.Usage.Input(), "%+v", r)
	}
}

func TestUnknownKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	resp, body := s.post(t, "/v1/chat/completions", "kw_nonsense", chat("m", ""))
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	require.JSONEq(t, `"invalid_api_key"`, string(jsonAt(t, body, "error", "code")))
	require.Equal(t, "false", resp.Header.Get("X-Should-Retry"))
	require.NotEmpty(t, resp.Header.Get("X-Request-Id"))
}
