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

// A client that leaves a stream does not end what is made in the background.
func TestBackgroundStreamsGoOn(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "metered")
	ctx, leave := withCancel(t)
	body := inBackground("later", `{"delay_between_ms":50,"count":60,"pending_ms":100}`, `"stream":true`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.ready.BaseURL+"/v1/responses", strings.NewReader(string(body)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.secret)
	resp, err := client.Do(req)
	require.NoError(t, err)
	_, err = resp.Body.Read(make([]byte, 100))
	require.NoError(t, err)
	leave()
	require.NoError(t, resp.Body.Close())
	row := s.rowOf(t, resp.Header.Get("X-Request-Id"))
	assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
	assert.Equal(t, domain.SourceUpstream, row.Source)
	assert.Equal(t, int64(60), row.Usage.Output)
	c.requireIdle(t)
	c.requireBalanced(t, s.records(t, c.keyID, 1))
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
