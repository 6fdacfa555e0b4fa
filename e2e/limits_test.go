package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// holdsOpen lets the provider begin its answer and then wait for the client to go.
const holdsOpen = `{"hang_after":{"frames":1}}`

// costing returns a as a request that reserves exactly tokens, at one
// micro-unit each. What its prompt is estimated at is read from the ledger.
func costing(t *testing.T, s *stack, tokens int64, a ask) ask {
	t.Helper()
	probe := s.caller(t, "wide")
	a.stream = true
	l, err := probe.open(t.Context(), a)
	require.NoError(t, err)
	l.events(t, 1)
	l.quit()
	estimate := s.records(t, probe.keyID, 1)[0].PromptTokensEstimate
	require.Less(t, estimate, tokens)
	a.cap = int(tokens - estimate)
	return a
}

// Fifty requests of 100 at once against a budget of 1000: ten are admitted, on
// the key and on the identity, in either dialect.
func TestCase048(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, tc := range []struct {
		name, identity, scope string
		policy                []string
		api                   domain.API
		refused               refusal
	}{
		{
			"key", "wide", "key",
			[]string{"--policy", "budget1000"},
			domain.APIChat,
			refusal{dialect: domain.DialectOpenAI, status: 429, kind: "insufficient_quota", code: "insufficient_quota", hopeless: true},
		},
		{
			"identity", "purse", "identity", nil, domain.APIMessages,
			refusal{dialect: domain.DialectAnthropic, status: 402, kind: "billing_error", hopeless: true},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := costing(t, s, 100, ask{api: tc.api, model: "m", script: holdsOpen})
			c := s.caller(t, tc.identity, tc.policy...)
			admitted := flood(t, c, a, tc.refused)
			require.Len(t, admitted, 10)
			assert.Equal(t, int64(1000), spentOn(t, c, tc.scope), "all of the budget is held")
			for _, l := range admitted {
				l.quit()
			}
			rows := c.requireOneRowEach(t, 10)
			c.requireIdle(t)
			var cost int64
			for _, r := range rows {
				cost += r.CostMicros
				assert.Equal(t, domain.OutcomeCancelled, r.Outcome)
				assert.Positive(t, r.CostMicros)
			}
			assert.Equal(t, cost, spentOn(t, c, tc.scope), "counter and ledger")
			assert.Less(t, cost, int64(1000), "the difference came back")
		})
	}
}

// spentOn is the day budget of the key or the identity as the store counts it.
func spentOn(t *testing.T, c *caller, scope string) (spent int64) {
	t.Helper()
	owner := map[string]string{"key": c.keyID, "identity": c.identity}[scope]
	for name, value := range c.counters(t) {
		if strings.Contains(name, ":budget:day:"+scope+":"+owner+":") {
			spent += value
		}
	}
	return spent
}

// A request that one limit refuses takes nothing from the others.
func TestRefusalChargesNothing(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	limited := refusal{dialect: domain.DialectOpenAI, status: 429, kind: "rate_limit_error", code: "rate_limit_exceeded"}
	for _, tc := range []struct {
		policy string
		// more is how many requests still fit once the first has ended.
		more int
	}{{"rpm1", 0}, {"rpm2", 1}} {
		t.Run(tc.policy, func(t *testing.T) {
			c := s.caller(t, "wide", "--policy", tc.policy)
			first, err := c.open(t.Context(), ask{model: "m", script: holdsOpen, stream: true})
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, first.StatusCode)
			before := c.charges(t)
			require.Len(t, before, 2, "rpm and in_flight: %v", before)
			for range 5 {
				nonce := newNonce()
				got := c.ask(t, ask{model: "m", nonce: nonce})
				requireRefusal(t, limited, got)
				assert.NotEmpty(t, got.Header.Get("Retry-After"))
				assert.Empty(t, s.attempts(nonce), "a refused request reached the provider")
			}
			assert.Equal(t, before, c.charges(t))
			first.quit()
			s.records(t, c.keyID, 1)
			c.requireIdle(t)
			for range tc.more {
				require.Equal(t, http.StatusOK, c.ask(t, ask{model: "m"}).StatusCode)
			}
			s.records(t, c.keyID, 1+tc.more)
			requireRefusal(t, limited, c.ask(t, ask{model: "m"}))
			assert.Empty(t, c.leases(t), "the minute's limit refused, and in_flight is as it was")
			c.requireOneRowEach(t, 1+tc.more)
		})
	}
}

// Of the limits that refuse, a client is told when the soonest frees, a minute at
// the most; who comes back then finds that limit free.
func TestRetryAfterIsTheSoonest(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	limited := refusal{dialect: domain.DialectOpenAI, status: 429, kind: "rate_limit_error", code: "rate_limit_exceeded"}
	for _, tc := range []struct {
		policy, names string
		// above and upTo bound retry-after-ms.
		above, upTo int
	}{
		{"soonrpm", "requests per minute", 0, 5000}, // its tokens are free in most of a minute
		{"soontpm", "tokens per minute", 0, 12_000}, // its request is in a minute
		{"rpm1", "requests in flight", 999, 1000},
		{"latetpm", "tokens per minute", 59_999, 60_000}, // minutes
	} {
		t.Run(tc.policy, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", tc.policy)
			first, err := c.open(t.Context(), ask{model: "m", script: holdsOpen, stream: true})
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, first.StatusCode)
			got := c.ask(t, ask{model: "m"})
			requireRefusal(t, limited, got)
			assert.Contains(t, string(got.body), tc.names)
			millis, err := strconv.Atoi(got.Header.Get("Retry-After-Ms"))
			require.NoError(t, err)
			assert.Greater(t, millis, tc.above)
			assert.LessOrEqual(t, millis, tc.upTo)
			assert.Equal(t, strconv.Itoa((millis+999)/1000), got.Header.Get("Retry-After"))
			first.quit()
			c.requireOneRowEach(t, 1)
		})
	}
	t.Run("who comes back is served", func(t *testing.T) {
		t.Parallel()
		c := s.caller(t, newNonce(), "--policy", "quick")
		require.Equal(t, http.StatusOK, c.ask(t, ask{model: "m"}).StatusCode)
		got := c.ask(t, ask{model: "m"})
		requireRefusal(t, limited, got)
		millis, err := strconv.Atoi(got.Header.Get("Retry-After-Ms"))
		require.NoError(t, err)
		time.Sleep(time.Duration(millis) * time.Millisecond)
		require.Equal(t, http.StatusOK, c.ask(t, ask{model: "m"}).StatusCode, "after %d ms", millis)
	})
}

func TestTokensPerMinute(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "tpm500")
	limited := refusal{dialect: domain.DialectOpenAI, status: 429, kind: "rate_limit_error", code: "rate_limit_exceeded"}

	hopeless := limited
	hopeless.hopeless = true
	got := c.ask(t, ask{model: "m", cap: 1000})
	requireRefusal(t, hopeless, got)
	assert.Contains(t, string(got.body), "500")
	assert.Empty(t, c.charges(t))

	held, err := c.open(t.Context(), ask{model: "m", cap: 400, script: holdsOpen, stream: true})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, held.StatusCode)
	got = c.ask(t, ask{model: "m", cap: 300})
	requireRefusal(t, limited, got)
	assert.NotEmpty(t, got.Header.Get("Retry-After"))
	assert.Equal(t, "500", got.Header.Get("X-Ratelimit-Limit-Tokens"))

	held.quit()
	s.records(t, c.keyID, 1)
	require.Equal(t, http.StatusOK, c.ask(t, ask{model: "m", cap: 300}).StatusCode, "what was not used came back")
	c.requireOneRowEach(t, 2)
}

func TestSlots(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, tc := range []struct {
		name  string
		model string
		// channels are those whose slots are full one after the other.
		channels []string
		api      domain.API
		want     refusal
	}{
		{
			"of the only channel", "narrow",
			[]string{"narrow", "narrow"},
			domain.APIChat,
			refusal{dialect: domain.DialectOpenAI, status: 429, kind: "rate_limit_error", code: "rate_limit_exceeded"},
		},
		{
			"full ones are skipped", "spill",
			[]string{"tight", "spare"},
			domain.APIMessages,
			refusal{dialect: domain.DialectAnthropic, status: 429, kind: "rate_limit_error"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := s.caller(t, "wide", "--policy", "wide")
			a := ask{api: tc.api, model: tc.model, script: holdsOpen, stream: true}
			var running []*live
			for range tc.channels {
				l, err := c.open(t.Context(), a)
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, l.StatusCode)
				running = append(running, l)
			}
			before := c.charges(t)
			got := c.ask(t, a)
			requireRefusal(t, tc.want, got)
			assert.NotEmpty(t, got.Header.Get("Retry-After"))
			assert.Equal(t, before, c.charges(t), "what was reserved for the refused one came back")
			for _, l := range running {
				l.quit()
			}
			var served []string
			for _, r := range c.requireOneRowEach(t, 2) {
				served = append(served, r.Channel)
				assert.Len(t, r.Attempts, 1, "a full channel is no attempt")
			}
			assert.ElementsMatch(t, tc.channels, served)
			c.requireIdle(t, tc.channels...)
			a.script = ""
			require.Equal(t, http.StatusOK, c.ask(t, a).StatusCode)
		})
	}
}
