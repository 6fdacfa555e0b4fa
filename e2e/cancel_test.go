package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// leaving is a place at which a client goes away.
type leaving struct {
	name   string
	script string
	// arrive sends a and returns a function that leaves, once the request is at
	// the place.
	arrive  func(t *testing.T, c *caller, a ask) (leave func())
	outcome domain.Outcome
}

// usage is what the provider reports where it gets to it; the input of a
// message is reported at its start.
const usage = `"usage":{"input_uncached":123,"cache_read":11,"output":40}`

// wordsBeforeLeaving is how many words a client gets before it leaves in the middle.
const wordsBeforeLeaving = 20

var leavings = []leaving{
	{"before headers", `{"delay_headers_ms":60000,` + usage + `}`, leaveUnanswered, domain.OutcomeCancelled},
	{"before the first byte", `{"delay_first_byte_ms":60000,` + usage + `}`, leaveAfterEvents(0), domain.OutcomeCancelled},
	{"mid-stream", `{"count":40,"pauses_ms":{"24":60000},` + usage + `}`, leaveAfterEvents(24), domain.OutcomeCancelled},
	{"after the end mark", `{"hang_after":{"frames":1000},` + usage + `}`, leaveAfterTerminal, domain.OutcomeSuccess},
}

// leaveUnanswered goes once the provider has the whole request.
func leaveUnanswered(t *testing.T, c *caller, a ask) func() {
	type result struct {
		l   *live
		err error
	}
	done := make(chan result, 1)
	ctx, cancel := withCancel(t)
	go func() {
		l, err := c.open(ctx, a)
		done <- result{l, err}
	}()
	c.s.awaitUpstream(t, a.nonce, func(r fakeprovider.Record) bool { return r.Model != "" })
	return func() {
		cancel()
		r := <-done
		assert.ErrorContains(t, r.err, "canceled", "the answer came")
	}
}

// leaveAfterEvents goes after n events of the answer.
func leaveAfterEvents(n int) func(*testing.T, *caller, ask) func() {
	return func(t *testing.T, c *caller, a ask) func() {
		l, err := c.open(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, l.StatusCode)
		l.events(t, n)
		return l.quit
	}
}

// leaveAfterTerminal goes right after the stream's end mark.
func leaveAfterTerminal(t *testing.T, c *caller, a ask) func() {
	l, err := c.open(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, l.StatusCode)
	l.untilTerminal(t, a.api)
	return l.quit
}

// A client that leaves is charged for what it caused, once, and nothing of it
// stays held; over HTTP/1.1 and HTTP/2 on both sides, in every dialect.
func TestLeavingIsSettledOnce(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, way := range []struct{ model, channel string }{{"only-a", "a"}, {"only-tlsa", "tlsa"}, {"think-a", "think-a"}} {
			t.Run(proto+" to "+way.model, func(t *testing.T) {
				t.Parallel()
				c := s.caller(t, "wide", "--policy", "wide").over(clientsByProto[proto])
				checks := map[string]func(*testing.T, domain.UsageRecord){}
				for _, api := range streamAPIs {
					for _, tc := range leavings {
						a := ask{api: api, model: way.model, script: tc.script, stream: true, cap: 64, nonce: newNonce()}
						tc.arrive(t, c, a)()
						rec := s.awaitUpstream(t, a.nonce, func(r fakeprovider.Record) bool { return r.End != fakeprovider.EndRunning })
						assert.Equal(t, fakeprovider.EndPeerLeft, rec.End, tc.name)
						checks[rec.Header.Get("X-Request-Id")] = func(t *testing.T, row domain.UsageRecord) {
							requireLeavingRow(t, tc, row, way.channel)
						}
					}
				}
				require.NotContains(t, checks, "", "the provider is told the request id")
				rows := c.requireOneRowEach(t, len(checks))
				for _, row := range rows {
					require.Contains(t, checks, row.RequestID)
					checks[row.RequestID](t, row)
				}
				c.requireIdle(t)
				c.requireBalanced(t, rows)
			})
		}
	}
}

func requireLeavingRow(t *testing.T, tc leaving, row domain.UsageRecord, channel string) {
	t.Helper()
	what := tc.name + " " + string(row.API)
	assert.Equal(t, tc.outcome, row.Outcome, what)
	assert.Equal(t, channel, row.Channel, what)
	assert.Len(t, row.Attempts, 1, what)
	assert.Equal(t, row.Usage.Total(), row.CostMicros, what)
	reported := domain.Usage{InputUncached: 123, CacheRead: 11, Output: 40}
	if tc.outcome == domain.OutcomeSuccess {
		assert.Equal(t, domain.SourceUpstream, row.Source, what)
		assert.Equal(t, reported, row.Usage, what)
		return
	}
	assert.Equal(t, domain.SourceEstimate, row.Source, what)
	assert.Positive(t, row.PromptTokensEstimate, what)
	midway := tc.name == "mid-stream"
	if midway && row.API == domain.APIMessages {
		assert.Equal(t, reported.Input(), row.Usage.Input(), "%s: message_start told the input", what)
		assert.Equal(t, reported.CacheRead, row.Usage.CacheRead, what)
	} else {
		assert.Equal(t, domain.Usage{InputUncached: row.PromptTokensEstimate, Output: row.Usage.Output}, row.Usage, what)
	}
	if !midway {
		assert.Zero(t, row.Usage.Output, what)
		return
	}
	// A word is a token. Up to four events of each dialect carry none.
	assert.InDelta(t, wordsBeforeLeaving+2, row.Usage.Output, wordsBeforeLeaving/3, what)
}

// The provider sees the client's leaving within 100 ms at the 99th percentile
// over 100 tries, whichever protocol the client speaks and wherever it is.
// Not parallel: the figure is that of a machine with nothing else to do.
func TestProviderSeesTheClientLeave(t *testing.T) {
	s := sharedStack(t)
	const tries, limit = 100, 100 * time.Millisecond
	for _, way := range []struct {
		name, proto string
		models      []string
	}{
		{"HTTP/1.1", "HTTP/1.1", []string{"only-a", "only-tlsa"}},
		{"HTTP/2.0", "HTTP/2.0", []string{"only-a", "only-tlsa"}},
		{"relay", "HTTP/2.0", []string{"think-a", "think-tlsa"}},
	} {
		t.Run(way.name, func(t *testing.T) {
			c := s.caller(t, "wide", "--policy", "wide").over(clientsByProto[way.proto])
			var took []time.Duration
			for i := range tries {
				tc := leavings[i%len(leavings)]
				a := ask{api: streamAPIs[i%len(streamAPIs)], model: way.models[i/2%2], script: tc.script, stream: true, nonce: newNonce()}
				leave := tc.arrive(t, c, a)
				left := time.Now()
				leave()
				rec := s.awaitUpstream(t, a.nonce, func(r fakeprovider.Record) bool { return r.End != fakeprovider.EndRunning })
				require.Equal(t, fakeprovider.EndPeerLeft, rec.End, tc.name)
				took = append(took, rec.PeerLeftAt.Sub(left))
			}
			slices.Sort(took)
			t.Logf("seen by the provider after: p50 %s, p99 %s, longest %s", took[tries/2], took[tries*99/100-1], took[tries-1])
			assert.Less(t, took[tries*99/100-1], limit)
			rows := c.requireOneRowEach(t, tries)
			assert.Equal(t, map[domain.Outcome]int{domain.OutcomeCancelled: tries * 3 / 4, domain.OutcomeSuccess: tries / 4}, counted(rows))
			c.requireIdle(t)
			c.requireBalanced(t, rows)
		})
	}
}

// breaking is a way in which an upstream ends a stream that is not its end.
type breaking struct {
	name, script string
	// resets: the client's stream breaks as well; else it ends by an error event.
	resets  bool
	outcome domain.Outcome
	// says is a part of that event where it is Keyway's; "" is what follows a clean end.
	says string
}

// Each pauses before it breaks: a reset overtakes what is still on its way.
var breakings = []breaking{
	{name: "reset", script: `{"count":40,"pauses_ms":{"11":200},"reset_after":{"frames":12}}`, resets: true, outcome: domain.OutcomeUpstreamCut},
	{name: "connection lost", script: `{"count":40,"pauses_ms":{"11":200},"drop_after":{"frames":12}}`, resets: true, outcome: domain.OutcomeUpstreamCut},
	{name: "clean end without the end mark", script: `{"count":40,"close_after":{"frames":12}}`, resets: false, outcome: domain.OutcomeUpstreamCut},
	{name: "error event", script: `{"count":40,"error":{"after_frames":12}}`, resets: false, outcome: domain.OutcomeFailed},
	{name: "error event, then a reset", script: `{"count":40,"pauses_ms":{"13":200},"error":{"after_frames":12,"continue":true},"reset_after":{"frames":14}}`, resets: true, outcome: domain.OutcomeFailed},
}

// Cases 8 and 17: a stream that the upstream breaks, or in which it reports an
// error, never looks to the client like a whole one.
func TestCase017UpstreamEndsBadly(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for i, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, face := range []string{"a", "tlsa"} {
			t.Run(proto+" from "+face, func(t *testing.T) {
				t.Parallel()
				c := s.caller(t, "wide", "--policy", "wide").over(clientsByProto[proto])
				checks := map[string]func(*testing.T, domain.UsageRecord){}
				// A channel of its own: a lost connection takes all its streams along.
				model := fmt.Sprintf("brittle-%d-%s", i+1, face)
				for _, api := range streamAPIs {
					for _, tc := range breakings {
						id := requireBreak(t, c, ask{api: api, model: model, script: tc.script, stream: true}, tc)
						checks[id] = func(t *testing.T, row domain.UsageRecord) {
							requireBreakRow(t, tc, row)
						}
					}
				}
				rows := c.requireOneRowEach(t, len(checks))
				for _, row := range rows {
					require.Contains(t, checks, row.RequestID)
					checks[row.RequestID](t, row)
				}
				c.requireIdle(t)
				c.requireBalanced(t, rows)
			})
		}
	}
}

// requireBreak sends a and looks at what the client got; it returns the request id.
func requireBreak(t *testing.T, c *caller, a ask, tc breaking) string {
	t.Helper()
	what := tc.name + " " + string(a.api)
	l, err := c.open(t.Context(), a)
	require.NoError(t, err, what)
	require.Equal(t, http.StatusOK, l.StatusCode, what)
	body, err := l.rest()
	assert.NotContains(t, body, terminalOf(a.api), what)
	if tc.resets {
		assert.True(t, isBroken(err), "%s: the stream seems whole: %v", what, err)
		return l.Header.Get("X-Request-Id")
	}
	require.NoError(t, err, what)
	if !strings.Contains(tc.script, `"continue":true`) {
		requireErrorEvent(t, a.api, body)
	}
	assert.Contains(t, body, `"error"`, what)
	if tc.outcome == domain.OutcomeFailed {
		assert.NotContains(t, body, "ended the stream before", "%s: the provider's own error is enough", what)
	} else {
		assert.Contains(t, body, cmp.Or(tc.says, "ended the stream before"), what)
	}
	return l.Header.Get("X-Request-Id")
}

func requireBreakRow(t *testing.T, tc breaking, row domain.UsageRecord) {
	t.Helper()
	what := tc.name + " " + string(row.API)
	assert.Equal(t, tc.outcome, row.Outcome, what)
	assert.Equal(t, domain.SourceEstimate, row.Source, what)
	assert.Equal(t, http.StatusOK, row.Status, what)
	if tc.outcome == domain.OutcomeFailed {
		assert.Zero(t, row.CostMicros, what)
		assert.Zero(t, row.Usage, what)
		return
	}
	assert.Positive(t, row.Usage.Input(), what)
	// 7 to 11 words came in the first eleven or twelve events, by dialect.
	assert.InDelta(t, 9, row.Usage.Output, 3, what)
	assert.Equal(t, row.Usage.Total(), row.CostMicros, what)
}
