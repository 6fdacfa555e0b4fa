package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// sized is what a request of the model "sized" reserved, in tokens: it costs
// one micro-unit each, and the whole budget of its key is its own.
type sized struct{ prompt, output int64 }

// reserve sends body while the provider holds the answer open, reads what is
// held, and leaves.
func (c *caller) reserve(t *testing.T, path, body string) sized {
	t.Helper()
	body = strings.Replace(body, "SCRIPT", strings.ReplaceAll("[[fake:"+holdsOpen+"]]", `"`, `\"`), 1)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.s.ready.BaseURL+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.secret)
	resp, err := c.http.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%.200s", body)
	held := spentOn(t, c, "key")
	require.NoError(t, resp.Body.Close())
	prompt := c.s.records(t, c.keyID, 1)[0].PromptTokensEstimate
	return sized{prompt: prompt, output: held - prompt}
}

// CASES 57: the larger of all caps, for every answer that is asked for.
func TestCase057(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for caps, want := range map[string]int64{
		`"max_tokens":1,"max_completion_tokens":300`:         300,
		`"max_completion_tokens":1,"max_tokens":300`:         300,
		`"max_tokens":1,"max_completion_tokens":300,"n":4`:   1200,
		`"max_output_tokens":1`:                              500, // not a cap of this API: the model's own
		`"max_tokens":null`:                                  500,
		`"max_tokens":1,"max_output_tokens":900,"n":2`:       1800,
		`"max_completion_tokens":7,"n":3,"max_tokens":null `: 21,
	} {
		c := s.caller(t, "wide", "--policy", "trusted")
		got := c.reserve(t, "/v1/chat/completions", `{"model":"sized","stream":true,"messages":[{"role":"user","content":"Go on. SCRIPT"}],`+caps+`}`)
		assert.Equal(t, want, got.output, caps)
		assert.Positive(t, got.prompt)
	}
}

// CASES 59: nothing is required of a request that no rule needs.
func TestCase059(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "rpm2")
	for _, body := range []string{chat("sized", ""), `{"model":"sized","messages":[]}`} {
		resp, raw := s.post(t, "/v1/chat/completions", c.secret, body)
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", raw)
		assert.Empty(t, resp.Header.Get("X-Keyway-Output-Cap"))
		c.requireIdle(t)
	}
}

// CASES 61: a prompt counts, cap or no cap.
func TestCase061(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	prompt := strings.Repeat("The harbour was quiet in the rain. ", 200_000/35)
	body := `{"model":"sized","stream":true,"messages":[{"role":"user","content":"` + prompt + `SCRIPT"}]}`
	got := s.caller(t, "wide", "--policy", "trusted").reserve(t, "/v1/chat/completions", body)
	assert.InDelta(t, 8*200_000/35, got.prompt, 2*200_000/35, "8 tokens a sentence")
	assert.EqualValues(t, 500, got.output)

	limited := refusal{dialect: domain.DialectOpenAI, status: 429, kind: "rate_limit_error", code: "rate_limit_exceeded", hopeless: true}
	c := s.caller(t, "wide", "--policy", "tpm500")
	requireRefusal(t, limited, s.send(t, sending{path: "/v1/chat/completions", key: c.secret, body: []byte(body)}))
}

// A policy with "cap: inject" lets no answer cost more than was reserved for it.
func TestReservedCapReachesTheProvider(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, tt := range []struct {
		policy, path, body string
		// field is the cap's name at the provider; "" is none.
		field string
		want  int64
	}{
		{"injected", "/v1/chat/completions", chat("sized", "", `"stream":true`), "max_completion_tokens", 500},
		{"injected", "/v1/chat/completions", chat("sized", "", `"n":2`), "max_completion_tokens", 500},
		{"injected", "/v1/completions", `{"model":"sized","prompt":"hi","max_tokens":null}`, "max_tokens", 500},
		{"injected", "/v1/responses", `{"model":"sized","input":"hi"}`, "max_output_tokens", 500},
		{"injected", "/v1/chat/completions", chat("sized", "", `"max_tokens":7`), "", 0},
		{"injected", "/v1/embeddings", `{"model":"sized","input":"hi"}`, "", 0},
		{"trusted", "/v1/chat/completions", chat("sized", ""), "", 0},
	} {
		t.Run(tt.policy+" "+tt.path, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, "wide", "--policy", tt.policy)
			nonce := newNonce()
			got := s.send(t, sending{path: tt.path, key: c.secret, body: []byte(tt.body), nonce: nonce})
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			seen := s.seen(t, nonce)
			require.Len(t, seen, 1)
			var body map[string]any
			require.NoError(t, json.Unmarshal(seen[0].Body, &body))
			if tt.field == "" {
				assert.Empty(t, got.Header.Get("X-Keyway-Output-Cap"))
				assert.NotContains(t, body, "max_completion_tokens")
				return
			}
			assert.Equal(t, fmt.Sprint(tt.want), got.Header.Get("X-Keyway-Output-Cap"))
			assert.EqualValues(t, tt.want, body[tt.field])
			assert.Equal(t, "m-sized", body["model"])
			c.requireOneRowEach(t, 1)
		})
	}
}

func TestHiddenPromptsReserveAFloor(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for body, want := range map[string]bool{
		`{"model":"sized","stream":true,"input":"SCRIPT"}`:                                      false,
		`{"model":"sized","stream":true,"input":"SCRIPT","previous_response_id":"resp_9"}`:      true,
		`{"model":"sized","stream":true,"input":"SCRIPT","conversation":{"id":"conv_9"}}`:       true,
		`{"model":"sized","stream":true,"input":"SCRIPT","max_output_tokens":20,"prompt":null}`: false,
	} {
		c := s.caller(t, "wide", "--policy", "trusted")
		for _, id := range []string{"resp_9", "conv_9"} {
			require.NoError(t, s.store.Remember(t.Context(), domain.StoredID{Identity: "wide", ID: id, Channel: "sized", Model: "sized"}, time.Hour))
		}
		got := c.reserve(t, "/v1/responses", body)
		assert.Equal(t, want, got.prompt == 3000, "%s: %d", body, got.prompt)
	}
}

// What providers count corrects the estimates of the requests that follow, in
// every instance.
func TestEstimatesLearn(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	prompt := strings.Repeat("The harbour was quiet in the rain. ", 20)
	body := func(counted int64) string {
		script, err := json.Marshal(fmt.Sprintf(`%s[[fake:{"usage":{"input_uncached":%d,"output":1}}]]`, prompt, counted))
		require.NoError(t, err)
		return `{"model":"learned","max_tokens":5,"messages":[{"role":"user","content":` + string(script) + `}]}`
	}
	sent := 0
	estimate := func(counted int64) int64 {
		resp, raw := s.post(t, "/v1/chat/completions", c.secret, body(counted))
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", raw)
		sent++
		var last domain.UsageRecord
		for _, r := range s.records(t, c.keyID, sent) {
			if !r.AdmittedAt.Before(last.AdmittedAt) {
				last = r
			}
		}
		return last.PromptTokensEstimate
	}
	first := estimate(200)
	require.Greater(t, first, int64(domain.CalibrationFloor))
	deadline := time.Now().Add(patience)
	for {
		for range 9 {
			estimate(2 * first)
		}
		if now := estimate(2 * first); now > first*5/4 {
			assert.LessOrEqual(t, now, 2*first, "the bound holds")
			return
		}
		require.True(t, time.Now().Before(deadline), "the estimate stays at %d", first)
		time.Sleep(200 * time.Millisecond)
	}
}
