package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// faceOf is the face that served the request with a nonce, after all attempts.
func (s *stack) faceOf(t testing.TB, nonce string) string {
	t.Helper()
	seen := s.attempts(nonce)
	require.NotEmpty(t, seen)
	return seen[len(seen)-1].Face
}

// What channels serve is shared by their weights.
func TestSharesFollowWeights(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	const requests, workers = 240, 8
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		served = map[string]int{}
	)
	for range workers {
		wg.Go(func() {
			for range requests / workers {
				a := ask{model: "shares", nonce: newNonce()}
				got := c.ask(t, a)
				if !assert.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body) {
					return
				}
				face := s.faceOf(t, a.nonce)
				mu.Lock()
				served[face]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	// Weights 1 and 3; four standard deviations are 0.112.
	assert.InDelta(t, 0.75, float64(served["b"])/requests, 0.112, "%v", served)
	assert.Equal(t, requests, served["a"]+served["b"])
}

// sticky asks for a model with a cache key of its own.
func (c *caller) sticky(t *testing.T, model, cacheKey, script string) (face string) {
	t.Helper()
	nonce := newNonce()
	got := c.s.send(t, sending{
		path: "/v1/chat/completions", key: c.secret, nonce: nonce,
		body: []byte(chat(model, script, fmt.Sprintf(`"prompt_cache_key":%q`, cacheKey))),
	})
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	return c.s.faceOf(t, nonce)
}

// A session stays on one channel, leaves it while that refuses, and comes back.
func TestSessionsStickAndEscape(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	sessions := map[string]string{} // one of each face
	var home string
	for i := 0; len(sessions) < 2; i++ {
		require.Less(t, i, 20, "sessions spread: all but one in half a million times")
		session := fmt.Sprint("session-", i)
		home = c.sticky(t, "stuck", session, "")
		for range 3 {
			require.Equal(t, home, c.sticky(t, "stuck", session, ""), "a session has one channel")
		}
		sessions[home] = session
	}

	session, other := sessions[home], map[string]string{"b": "c", "c": "b"}[home]
	refuse := fmt.Sprintf(`{"only_face":%q,"status":429,"retry_after":{"seconds":2}}`, home)
	require.Equal(t, other, c.sticky(t, "stuck", session, refuse), "the session is served elsewhere")
	nonce := newNonce()
	got := s.send(t, sending{
		path: "/v1/chat/completions", key: c.secret, nonce: nonce, body: []byte(chat("stuck", "", fmt.Sprintf(`"prompt_cache_key":%q`, session))),
	})
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	require.Len(t, s.attempts(nonce), 1, "while its channel rests, nobody asks there")
	require.Equal(t, other, s.faceOf(t, nonce))
	eventually(t, func() bool { return c.sticky(t, "stuck", session, "") == home }, patience, 50*time.Millisecond, "and comes home")
}

// A channel that is full sends the session on, and no call more goes there.
func TestSessionsEscapeAFullChannel(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	home := c.sticky(t, "home", "session", "")
	other := map[string]string{"b": "c", "c": "b"}[home]
	c.requireIdle(t, "home-b", "home-c")
	nonce := newNonce()
	body := chat("home", `{"hang_after":{"frames":2}}`, `"stream":true`, `"prompt_cache_key":"session"`)
	var wg sync.WaitGroup
	ctx, leave := withCancel(t)
	wg.Go(func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.ready.BaseURL+"/v1/chat/completions", strings.NewReader(body))
		if !assert.NoError(t, err) {
			return
		}
		req.Header.Set("Authorization", "Bearer "+c.secret)
		req.Header.Set("User-Agent", nonce)
		if resp, err := client.Do(req); err == nil {
			<-ctx.Done()
			_ = resp.Body.Close()
		}
	})
	held := s.awaitUpstream(t, nonce, func(r fakeprovider.Record) bool { return r.SentFrames > 0 })
	require.Equal(t, home, held.Face)
	require.Equal(t, other, c.sticky(t, "home", "session", ""))
	leave()
	wg.Wait()
	c.requireIdle(t, "home-b", "home-c")
	require.Equal(t, home, c.sticky(t, "home", "session", ""))
}

// respond asks the model "shares" for a response, which may continue another.
func (c *caller) respond(t *testing.T, previous string) (got received, face, id string) {
	t.Helper()
	return c.respondAt(t, domain.APIResponses, previous)
}

// respondAt does so by any operation that makes one.
func (c *caller) respondAt(t *testing.T, api domain.API, previous string) (got received, face, id string) {
	t.Helper()
	body := `{"model":"shares","input":"Say something."`
	if previous != "" {
		body += fmt.Sprintf(`,"previous_response_id":%q`, previous)
	}
	nonce := newNonce()
	got = c.s.send(t, sending{path: api.Path(), key: c.secret, nonce: nonce, body: []byte(body + "}")})
	if got.StatusCode != http.StatusOK {
		return got, "", ""
	}
	require.NoError(t, json.Unmarshal(jsonAt(t, got.body, "id"), &id))
	return got, c.s.faceOf(t, nonce), id
}

// What continues a response follows it to its channel, at once, through any
// replica, and for its own identity only.
func TestStoredResponsesKeepTheirChannel(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	replicas := s.replicas(t, s.ready.RedisURL, []string{"r1", "r2"})
	warm(t, replicas, c.secret)
	_, face, id := c.respond(t, "")
	for range 8 {
		// By chance alone, all of them on one face is one in thirteen for the likelier.
		_, next, nextID := c.respond(t, id)
		require.Equal(t, face, next)
		require.NotEqual(t, id, nextID)
		for _, r := range replicas {
			require.Equal(t, []string{"share-" + face}, r.candidates(t, c.secret, id))
		}
		id = nextID
	}

	for range 4 {
		got, next, nextID := c.respondAt(t, domain.APICompact, id)
		require.Equal(t, face, next, "%s", got.body)
		require.JSONEq(t, `"response.compaction"`, string(jsonAt(t, got.body, "object")))
		id = nextID
	}

	got, _, _ := s.caller(t, "partner", "--policy", "wide").respondAt(t, domain.APICompact, id)
	requireRefusal(t, refusal{status: http.StatusNotFound, kind: "invalid_request_error", hopeless: true, dialect: domain.DialectOpenAI}, got)
	got, _, _ = s.caller(t, "partner", "--policy", "wide").respond(t, id)
	requireRefusal(t, refusal{status: http.StatusNotFound, kind: "invalid_request_error", hopeless: true, dialect: domain.DialectOpenAI}, got)
	assert.Contains(t, string(got.body), "was made by another account")
	got, _, _ = c.respond(t, "resp_nobody")
	requireRefusal(t, refusal{status: http.StatusNotFound, kind: "invalid_request_error", hopeless: true, dialect: domain.DialectOpenAI}, got)
}

// candidates are the channels that r would have a request go to that continues
// a response.
func (r replica) candidates(t *testing.T, secret, previous string) []string {
	t.Helper()
	answer, err := r.client.Check(t.Context(), &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
			Method: "POST", Path: "/v1/responses", RawBody: []byte(fmt.Sprintf(`{"model":"shares","input":"go on","previous_response_id":%q}`, previous)),
			Headers: map[string]string{"authorization": "Bearer " + secret, "x-request-id": newNonce()},
		}},
	}}, grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Nil(t, answer.GetDeniedResponse(), "%s", answer.GetDeniedResponse().GetBody())
	var names []string
	for _, group := range answer.GetDynamicMetadata().GetFields()["priority_groups"].GetListValue().GetValues() {
		names = append(names, group.GetStructValue().GetFields()["name"].GetStringValue())
	}
	return names
}

// A model that cannot serve is replaced by the one that it lists: the answer
// says so, its price is paid, and explain tells why.
func TestFallbackModelServesNamedAndPriced(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, asked := range []string{"fall", "fall-latest"} {
		t.Run(asked, func(t *testing.T) {
			c := s.caller(t, "wide", "--policy", "wide")
			got := c.ask(t, ask{model: asked, script: `{"only_face":"a","status":500}`, stream: true})
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			assert.Equal(t, "fallen", got.Header.Get("X-Keyway-Model"))
			assert.Equal(t, "Use fallen.", got.Header.Get("X-Keyway-Notice"))
			assert.Equal(t, "Wed, 31 Mar 2027 00:00:00 GMT", got.Header.Get("Sunset"))

			row := c.requireOneRowEach(t, 1)[0]
			assert.Equal(t, []string{asked, "fallen", "m-fallen", "fall-b", "v7"}, []string{row.Model, row.ModelDispatched, row.ModelServed, row.Channel, row.PriceVersion})
			assert.Equal(t, row.Usage.Input()*3+row.Usage.Output*5, row.CostMicros)
			requireNoDrift(t, s, c.keyID)
			c.requireIdle(t, "fall-a", "fall-b")

			e := s.explain(t, row.RequestID)
			assert.Equal(t, []string{"success", asked, "fallen", "fall-b"}, []string{e.State, e.AskedModel, e.Model, e.Channel})
			var stood []string
			for _, candidate := range e.Candidates {
				stood = append(stood, candidate.Channel+" as "+candidate.Model)
			}
			assert.Equal(t, []string{"fall-a as fall", "fall-b as fallen"}, stood)
			if len(e.Attempts) == 1 {
				// The channel was still cooling from the first request.
				assert.Contains(t, e.Candidates[0].LeftOut+e.Candidates[1].LeftOut, "cooling")
				return
			}
			require.Len(t, e.Attempts, 2)
			assert.Equal(t, 500, e.Attempts[0].Status)
			assert.Equal(t, 200, e.Attempts[1].Status)
			assert.Equal(t, []string{"server", ""}, []string{e.Attempts[0].Reason, e.Attempts[1].Reason})
			assert.GreaterOrEqual(t, e.Attempts[0].AtMs, row.AdmittedAt.UnixMilli())
			assert.LessOrEqual(t, e.Attempts[0].AtMs, e.Attempts[1].AtMs)
			assert.LessOrEqual(t, e.Attempts[1].AtMs, row.EndedAt.UnixMilli())
			assert.Positive(t, e.Candidates[0].Score)
		})
	}

	c := s.caller(t, "wide", "--policy", "wide", "--models", "fall")
	eventually(t, func() bool {
		got := c.ask(t, ask{model: "fall"})
		return got.StatusCode == http.StatusOK && got.Header.Get("X-Keyway-Model") == ""
	}, patience, 50*time.Millisecond, "the channel recovers, and a key that may not use the fallback waits for it")
	got := c.ask(t, ask{model: "fallen"})
	require.Equal(t, http.StatusNotFound, got.StatusCode)
}

// The fallback model may be on the very channel that failed: each attempt has
// the name of its own model, however odd, and the one that served is paid for.
func TestFallbackOnTheSameChannel(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, form := range []string{"", "-native"} {
		for _, stream := range []bool{false, true} {
			c := s.caller(t, "wide", "--policy", "wide")
			a := ask{model: "fell" + form, stream: stream, nonce: newNonce()}
			got := c.ask(t, a)
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			assert.Equal(t, "fell-small"+form, got.Header.Get("X-Keyway-Model"))
			seen := s.attempts(a.nonce)
			require.Len(t, seen, 2)
			assert.Equal(t, []string{"m-fell", "m-small"}, []string{seen[0].Model, seen[1].Model})
			row := c.requireOneRowEach(t, 1)[0]
			assert.Equal(t, []domain.Attempt{{Channel: "both" + form, Status: 500}, {Channel: "both" + form, Status: 200}}, row.Attempts)
			assert.Equal(t, []string{"fell" + form, "fell-small" + form, "v2"}, []string{row.Model, row.ModelDispatched, row.PriceVersion})
			assert.Equal(t, row.Usage.Input()*3+row.Usage.Output*5, row.CostMicros)
		}
	}
}

// explanation is what `keyway explain -o json` prints, as far as tests look.
type explanation struct {
	State      string `json:"state"`
	AskedModel string `json:"asked_model"`
	Model      string `json:"model"`
	Channel    string `json:"channel"`
	Candidates []struct {
		Channel string  `json:"channel"`
		Model   string  `json:"model"`
		Score   float64 `json:"score"`
		LeftOut string  `json:"left_out"`
	} `json:"candidates"`
	Attempts []struct {
		Channel string `json:"channel"`
		Status  int    `json:"status"`
		Reason  string `json:"reason"`
		AtMs    int64  `json:"at_ms"`
	} `json:"attempts"`
}

func (s *stack) explain(t *testing.T, requestID string) (e explanation) {
	t.Helper()
	out := s.cli(t, "explain", requestID, "-o", "json", "--store", s.ready.RedisURL)
	require.NoError(t, json.Unmarshal(out, &e), "%s", out)
	return e
}
