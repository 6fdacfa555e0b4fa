package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// inBackground is a body that asks for a response in the background.
func inBackground(model, script string, extra ...string) []byte {
	extra = append(extra, `"background":true`, `"max_output_tokens":64`)
	return []byte(strings.Replace(chat(model, script, extra...), `"messages"`, `"input"`, 1))
}

// A response in the background holds what its request reserved until it has
// ended, and is then settled once, by what the provider tells.
func TestBackgroundResponses(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, tc := range []struct {
		name, model, script, act string
		outcome                  domain.Outcome
		source                   domain.Source
		output                   int64
	}{
		{"completed", "later", `{"pending_polls":1}`, "", domain.OutcomeSuccess, domain.SourceUpstream, 8},
		{"completed over native egress", "native", `{"pending_ms":200}`, "", domain.OutcomeSuccess, domain.SourceUpstream, 8},
		{"completed after questions that failed", "later", `{"fail_polls":2,"retry_after":{"seconds":0.2,"form":"ms"}}`, "", domain.OutcomeSuccess, domain.SourceUpstream, 8},
		{"incomplete", "later", `{"terminal":"incomplete"}`, "", domain.OutcomeSuccess, domain.SourceUpstream, 8},
		{"failed", "later", `{"terminal":"failed","usage_form":"none"}`, "", domain.OutcomeFailed, domain.SourceEstimate, 0},
		{"read by the client", "later", `{"pending_ms":100}`, "GET ", domain.OutcomeSuccess, domain.SourceUpstream, 8},
		{"cancelled by the client", "later", `{"pending_ms":60000}`, "POST /cancel", domain.OutcomeCancelled, domain.SourceUpstream, 8},
		{"forgotten by the provider", "later", `{"forgets":true}`, "", domain.OutcomeUpstreamCut, domain.SourceEstimate, 64},
		{"deleted by the client", "later", `{"pending_ms":60000}`, "DELETE ", domain.OutcomeUpstreamCut, domain.SourceEstimate, 64},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", "metered")
			got := s.send(t, sending{path: "/v1/responses", key: c.secret, body: inBackground(tc.model, tc.script)})
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			require.JSONEq(t, `"queued"`, string(jsonAt(t, got.body, "status")))
			assert.NotEmpty(t, c.leases(t), "in flight while it is made")
			rows := 1
			if tc.act != "" {
				method, action, _ := strings.Cut(tc.act, " ")
				id := strings.Trim(string(jsonAt(t, got.body, "id")), `"`)
				done := s.send(t, sending{method: method, path: "/v1/responses/" + id + action, key: c.secret})
				require.Equal(t, http.StatusOK, done.StatusCode, "%s", done.body)
				rows = 2
			}
			row := s.rowOf(t, got.Header.Get("X-Request-Id"))
			if known := s.cooldown(t, "later", "later"); known != nil {
				assert.NotEqual(t, domain.ReasonRate, known.Reason, "questions are no evidence")
			}
			assert.Equal(t, tc.outcome, row.Outcome)
			assert.Equal(t, tc.source, row.Source)
			assert.Equal(t, tc.output, row.Usage.Output)
			assert.Equal(t, tc.outcome != domain.OutcomeFailed, row.CostMicros > 0)
			c.requireIdle(t)
			all := s.records(t, c.keyID, rows)
			for _, r := range all {
				assert.True(t, r.API == domain.APIResponses || r.CostMicros == 0, "what the client does with it is free")
			}
			c.requireBalanced(t, all)
		})
	}
}

// A client that leaves a stream does not end what is made in the background, and
// one that comes back to the stream is not charged again.
func TestBackgroundStreamsGoOn(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "metered")
	l, err := c.open(t.Context(), ask{
		api: domain.APIResponses, model: "later", stream: true, background: true,
		script: `{"delay_between_ms":20,"count":60,"pending_ms":100}`,
	})
	require.NoError(t, err)
	begun, err := l.event()
	require.NoError(t, err)
	l.quit()
	_, data, _ := strings.Cut(begun, "data: ")
	id := strings.Trim(string(jsonAt(t, []byte(data), "response", "id")), `"`)
	resumed := s.send(t, sending{method: http.MethodGet, path: "/v1/responses/" + id + "?stream=true&starting_after=3", key: c.secret})
	require.Equal(t, http.StatusOK, resumed.StatusCode, "%s", resumed.body)
	assert.NotContains(t, string(resumed.body), `"sequence_number":3,`)
	assert.Contains(t, string(resumed.body), "event: response.completed")
	row := s.rowOf(t, l.Header.Get("X-Request-Id"))
	assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
	assert.Equal(t, domain.SourceUpstream, row.Source)
	assert.Equal(t, int64(60), row.Usage.Output)
	assert.Zero(t, s.rowOf(t, resumed.Header.Get("X-Request-Id")).CostMicros)
	c.requireIdle(t)
	c.requireBalanced(t, s.records(t, c.keyID, 2))
}

func TestBackgroundIsRefusedWhereTheModelSaysNothing(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce())
	nonce := newNonce()
	got := s.send(t, sending{path: "/v1/responses", key: c.secret, nonce: nonce, body: inBackground("m", "")})
	requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 400, kind: "invalid_request_error", hopeless: true}, got)
	require.Empty(t, s.seen(t, nonce))
}
