package e2e

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"keyway/domain"
)

// driftEach is how many requests end in each way.
const driftEach = 1000

// Whatever ends a request, a thousand times over: nothing stays held, and the
// counters of its budgets are what its rows in the ledger add up to.
func TestCase050(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "wide")
	ways := []struct {
		name string
		ask  ask
		quit bool
		want int
	}{
		{"success", ask{model: "m"}, false, http.StatusOK},
		{"the provider refuses", ask{model: "m", script: `{"fail":"bad_request"}`}, false, http.StatusBadRequest},
		{"the provider fails", ask{model: "only-a", script: `{"fail":"server_error"}`}, false, http.StatusInternalServerError},
		{"the client leaves", ask{model: "m", script: holdsOpen, stream: true}, true, http.StatusOK},
		{"the provider is too slow", ask{model: "m-slow", script: `{"delay_headers_ms":5000}`}, false, http.StatusGatewayTimeout},
	}
	jobs := make(chan int)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[string]map[int]int{}
		busy atomic.Int64
	)
	for range 48 {
		wg.Go(func() {
			for i := range jobs {
				way := ways[i%len(ways)]
				l, err := c.open(t.Context(), way.ask)
				for err == nil && l.StatusCode == http.StatusServiceUnavailable {
					// A busy machine refuses some, which must leave no row; clients come again.
					l.quit()
					busy.Add(1)
					time.Sleep(100 * time.Millisecond)
					l, err = c.open(t.Context(), way.ask)
				}
				if !assert.NoError(t, err, way.name) {
					continue
				}
				if way.quit {
					l.quit()
				} else {
					_, err := l.rest()
					assert.NoError(t, err, way.name)
				}
				mu.Lock()
				if seen[way.name] == nil {
					seen[way.name] = map[int]int{}
				}
				seen[way.name][l.StatusCode]++
				mu.Unlock()
			}
		})
	}
	for i := range driftEach * len(ways) {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	t.Logf("%d were refused first", busy.Load())
	for _, way := range ways {
		assert.Equal(t, map[int]int{way.want: driftEach}, seen[way.name], way.name)
	}
	rows := c.requireOneRowEach(t, driftEach*len(ways))
	c.requireIdle(t)
	var cost int64
	for _, r := range rows {
		cost += r.CostMicros
	}
	assert.Positive(t, cost)
	assert.Equal(t, cost, spentOn(t, c, "key"), "drift")
	by := counted(rows)
	assert.Equal(t, driftEach, by[domain.OutcomeCancelled])
	assert.Zero(t, by[domain.OutcomeAbandoned])
}

// Three replicas share a limit: of a hundred requests at once five run, of two
// hundred against a budget those that fit.
func TestCase055(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	all := s.replicas(t, s.ready.RedisURL, []string{"one", "two", "three"})
	for _, tc := range []struct {
		policy      string
		clients     int
		atMost, fit int64
	}{{"flight5", 100, 5, 5}, {"budget1000", 200, 15, 1}} {
		t.Run(tc.policy, func(t *testing.T) {
			secret, _ := s.key(t, "--identity", newNonce(), "--policy", tc.policy)
			warm(t, all, secret)
			var (
				wg       sync.WaitGroup
				admitted atomic.Int64
			)
			begin := make(chan struct{})
			for i := range tc.clients {
				wg.Go(func() {
					<-begin
					answer, err := all[i%len(all)].client.Check(t.Context(), admission(secret), grpc.WaitForReady(true))
					if assert.NoError(t, err) && answer.GetOkResponse() != nil {
						admitted.Add(1)
					}
				})
			}
			close(begin)
			wg.Wait()
			assert.LessOrEqual(t, admitted.Load(), tc.atMost)
			assert.GreaterOrEqual(t, admitted.Load(), tc.fit)
		})
	}
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
	for _, api := range []domain.API{domain.APIChat, domain.APICompletions, domain.APIResponses, domain.APIMessages} {
		a := ask{api: api, model: "m", cap: 5000, nonce: newNonce()}
		got := c.ask(t, a)
		want := http.StatusTooManyRequests
		if api == domain.APIMessages {
			want = http.StatusPaymentRequired
		}
		assert.Equal(t, want, got.StatusCode, "%s: %s", api, got.body)
		assert.Empty(t, s.attempts(a.nonce), "%s reached the provider", api)
	}
}
