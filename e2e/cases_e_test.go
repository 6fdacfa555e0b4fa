package e2e

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"keyway/domain"
)

// Three replicas share a limit: of a hundred requests at once five run, of two
// hundred against a budget those that fit, and of two hundred against a rate those
// of one minute.
func TestCase055(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	all := s.replicas(t, s.ready.RedisURL, []string{"one", "two", "three"})
	fit := budgetFits(t, s, all[0])
	t.Run("in flight", func(t *testing.T) {
		secret, _ := s.key(t, "--identity", newNonce(), "--policy", "flight5")
		warm(t, all, secret)
		got := storm(t, all, secret, 100)
		assert.LessOrEqual(t, got.admitted, int64(5))
		assert.Positive(t, got.admitted)
	})
	t.Run("budget", func(t *testing.T) {
		secret, _ := s.key(t, "--identity", newNonce(), "--policy", "budget1000")
		warm(t, all, secret)
		assert.Equal(t, fit, storm(t, all, secret, 200).admitted, "all of the budget and no more")
	})
	t.Run("rate", func(t *testing.T) {
		const perMinute = 80
		secret, _ := s.key(t, "--identity", newNonce(), "--policy", "open")
		warm(t, all, secret)
		got := storm(t, all, secret, 200)
		assert.GreaterOrEqual(t, got.admitted, int64(perMinute))
		assert.LessOrEqual(t, got.admitted, perMinute+int64(got.took.Minutes()*perMinute)+1)
	})
}

// Two replicas that take turns have one counter between them, not one each.
func TestCase062(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	all := s.replicas(t, s.ready.RedisURL, []string{"one", "two"})
	fit := budgetFits(t, s, all[0])
	secret, _ := s.key(t, "--identity", newNonce(), "--policy", "budget1000")
	warm(t, all, secret)
	for i := range 2 * fit {
		assert.Equal(t, i < fit, all[i%2].admits(t, secret), "request %d of %d that fit", i+1, fit)
	}
}

// budgetFits is how many requests the policy budget1000 admits: one costs what
// the store holds for it.
func budgetFits(t *testing.T, s *stack, r replica) int64 {
	t.Helper()
	c := s.caller(t, newNonce(), "--policy", "budget1000")
	warm(t, []replica{r}, c.secret)
	require.True(t, r.admits(t, c.secret))
	held := spentOn(t, c, "key")
	require.Positive(t, held)
	return 1000 / held
}

// stormed is what came of many requests at once.
type stormed struct {
	admitted int64
	took     time.Duration
}

// storm sends requests of one key to all replicas, at once.
func storm(t *testing.T, all []replica, secret string, requests int) (got stormed) {
	t.Helper()
	var (
		wg       sync.WaitGroup
		admitted atomic.Int64
	)
	begin := make(chan struct{})
	for i := range requests {
		wg.Go(func() {
			<-begin
			if all[i%len(all)].admits(t, secret) {
				admitted.Add(1)
			}
		})
	}
	began := time.Now()
	close(begin)
	wg.Wait()
	return stormed{admitted.Load(), time.Since(began)}
}

// admits sends a request to r; one that is not admitted must be refused for a
// limit, or for money.
func (r replica) admits(t *testing.T, secret string) bool {
	answer, err := r.client.Check(t.Context(), admission(secret), grpc.WaitForReady(true))
	if !assert.NoError(t, err) || answer.GetOkResponse() != nil {
		return err == nil
	}
	assert.Equal(t, typev3.StatusCode_TooManyRequests, answer.GetDeniedResponse().GetStatus().GetCode(), "%s", answer.GetDeniedResponse().GetBody())
	return false
}

// admission is a check request that reserves 64 tokens and its prompt.
func admission(secret string) *authv3.CheckRequest {
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
			Method: "POST", Path: "/v1/chat/completions", RawBody: []byte(chat("m", "", `"max_tokens":64`)),
			Headers: map[string]string{"authorization": "Bearer " + secret, "x-request-id": newNonce()},
		}},
	}}
}

// A key with one place, whose streams are left one after the other, is never
// stuck.
func TestCase054(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "flight1")
	for range 20 {
		l, err := c.open(t.Context(), ask{model: "m", script: holdsOpen, stream: true})
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, l.StatusCode)
		l.quit()
		c.requireIdle(t)
	}
	require.Equal(t, http.StatusOK, c.ask(t, ask{model: "m"}).StatusCode)
	c.requireOneRowEach(t, 21)
}

// A budget that is used up refuses on every path that lends a credential.
func TestCase065(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "budget1000")
	all := costing(t, s, 1000, ask{model: "m", script: holdsOpen, stream: true})
	l, err := c.open(t.Context(), all)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, l.StatusCode)
	require.Equal(t, int64(1000), spentOn(t, c, "key"))
	file, prompt := formPart{"file", "a", "ID3"}, formPart{name: "prompt", value: "a cat"}
	for _, r := range []sending{
		{path: domain.APIChat.Path(), body: []byte(chat("m", ""))},
		{path: domain.APICompletions.Path(), body: []byte(`{"model":"m","prompt":"hi"}`)},
		{path: domain.APIResponses.Path(), body: []byte(`{"model":"m","input":"hi"}`)},
		{path: domain.APIMessages.Path(), body: []byte(chat("m", "", `"max_tokens":1`))},
		{path: domain.APIEmbeddings.Path(), body: []byte(`{"model":"m","input":"hi"}`)},
		{path: domain.APIRerank.Path(), body: []byte(`{"model":"ranked","query":"hi","documents":["a"]}`)},
		{path: domain.APISpeech.Path(), body: []byte(`{"model":"spoken","input":"` + strings.Repeat("hi ", 100) + `"}`)},
		{path: domain.APIImages.Path(), body: []byte(`{"model":"drawn","prompt":"a cat"}`)},
		asForm(t, sending{path: domain.APIImageEdits.Path()}, formPart{name: "model", value: "drawn"}, prompt, formPart{"image", "a.png", "\x89PNG"}),
		asForm(t, sending{path: domain.APITranscriptions.Path()}, formPart{name: "model", value: "heard"}, file),
		asForm(t, sending{path: domain.APITranslations.Path()}, formPart{name: "model", value: "heard"}, file),
		{path: "/v1/files", body: []byte("anything")},
	} {
		r.key, r.nonce = c.secret, newNonce()
		want := refusal{dialect: domain.DialectOpenAI, status: 429, kind: "insufficient_quota", code: "insufficient_quota", hopeless: true}
		if r.path == domain.APIMessages.Path() {
			want = refusal{dialect: domain.DialectAnthropic, status: 402, kind: "billing_error", hopeless: true}
		}
		requireRefusal(t, want, s.send(t, r))
		assert.Empty(t, s.attempts(r.nonce), "%s reached the provider", r.path)
	}
	l.quit()
	c.requireOneRowEach(t, 1)
}

// A store that takes connections and never answers, and one that cannot be
// reached, refuse every request and hang none.
func TestCase053(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, nobody reads
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	secret, _ := s.key(t, "--identity", newNonce())
	for name, url := range map[string]string{"silent": "redis://" + silent.Addr().String(), "unreachable": "redis://127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := s.replicas(t, url, []string{name})[0]
			var denied *authv3.DeniedHttpResponse
			refused := func() {
				answer, err := r.client.Check(t.Context(), admission(secret), grpc.WaitForReady(true))
				require.NoError(t, err)
				denied = answer.GetDeniedResponse()
				require.Equal(t, typev3.StatusCode_ServiceUnavailable, denied.GetStatus().GetCode(), "%s", denied.GetBody())
			}
			eventually(t, func() bool {
				refused()
				return strings.Contains(denied.GetBody(), "cannot check limits")
			}, patience, 20*time.Millisecond, "the configuration does not come")
			for range 50 {
				began := time.Now()
				refused()
				assert.Less(t, time.Since(began), time.Second)
				assert.Contains(t, denied.GetBody(), "cannot check limits")
				told := map[string]string{}
				for _, h := range denied.GetHeaders() {
					told[h.GetHeader().GetKey()] = h.GetHeader().GetValue() + string(h.GetHeader().GetRawValue())
				}
				assert.Equal(t, "1", told["retry-after"])
			}
		})
	}
}
