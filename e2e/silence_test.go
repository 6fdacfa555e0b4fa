package e2e

import (
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
	"keyway/e2e/fakeprovider"
	"keyway/wire"
)

// silence is a model whose streams are kept alive, and for how long its
// provider is silent. The short ones stand for the long ones, scaled.
type silence struct {
	model string
	// every is the model's heartbeat, bound what a client may have to wait for
	// bytes on a busy machine.
	every, bound, lasts time.Duration
}

// silenceFor is how long providers are silent; the short form is two minutes to
// a heartbeat of 14 s, scaled.
var silenceFor = flag.Duration("silence", 0, "silence of providers in real time, with the default heartbeat; 0 is a short, scaled one")

// quietModel is the model that stands for a face's, with a heartbeat that fits.
func quietModel(face string) silence {
	if *silenceFor > 0 {
		return silence{model: "only-" + face, every: config.DefaultHeartbeat, bound: 15 * time.Second, lasts: *silenceFor}
	}
	return silence{model: "quiet-" + face, every: 200 * time.Millisecond, bound: time.Second, lasts: 1700 * time.Millisecond}
}

// quietScripts are the places in which a provider falls silent on the plain
// path, where a heartbeat can stand only after the first byte.
func quietScripts(s silence) map[string]string {
	ms := s.lasts.Milliseconds()
	return map[string]string{
		"mid-stream": fmt.Sprintf(`{"count":8,"pauses_ms":{"5":%d}}`, ms),
		"twice":      fmt.Sprintf(`{"count":8,"pauses_ms":{"1":%d,"6":%d}}`, ms, ms),
		"in CRLF":    fmt.Sprintf(`{"count":8,"line_ending":"crlf","pauses_ms":{"5":%d}}`, ms),
		"cut":        fmt.Sprintf(`{"count":8,"cut_every":7,"pauses_ms":{"5":%d}}`, ms),
	}
}

// silenceOf reads a stream and returns it with the longest wait for bytes.
func silenceOf(t *testing.T, l *live) (body string, longest time.Duration) {
	t.Helper()
	var out strings.Builder
	last := l.asked
	for {
		line, err := l.reader.ReadString('\n')
		now := time.Now()
		longest = max(longest, now.Sub(last))
		last = now
		out.WriteString(line)
		if err != nil {
			return out.String(), longest
		}
	}
}

// Case 23, and the drill "silent upstream": a stream whose provider is silent
// goes on, with a heartbeat in time, and what the provider sent stays as it was.
func TestCase023SilentStreamsGoOn(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	together(t, func(run func(string, func(*testing.T))) {
		for _, way := range []struct{ proto, face string }{{"HTTP/1.1", "a"}, {"HTTP/2.0", "a"}, {"HTTP/2.0", "tlsa"}} {
			for _, api := range streamAPIs {
				quiet := quietModel(way.face)
				for name, script := range quietScripts(quiet) {
					run(fmt.Sprintf("%s %s %s %s", way.proto, way.face, api, name), func(t *testing.T) {
						a := ask{api: api, model: quiet.model, script: script, stream: true, nonce: newNonce()}
						requireKeptAlive(t, c.over(clientsByProto[way.proto]), a, quiet)
					})
				}
			}
		}
	})
}

// together runs all subtests that fill wants at the same time, however many:
// they mostly wait.
func together(t *testing.T, fill func(run func(name string, test func(*testing.T)))) {
	t.Helper()
	var all sync.WaitGroup
	fill(func(name string, test func(*testing.T)) {
		all.Go(func() { t.Run(name, test) })
	})
	all.Wait()
}

// thinkingModel is one whose streams go through the relay.
func thinkingModel(face string) silence {
	s := quietModel(face)
	s.model = "think-" + face
	if *silenceFor > 0 {
		s.model = "muse-" + face
	}
	return s
}

// Cases 20 and 21, and the same drill: through the relay a client gets heartbeats also
// before the provider's headers and before its first byte.
func TestCase021HeartbeatsBeforeTheHeaders(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	together(t, func(run func(string, func(*testing.T))) {
		for _, way := range []struct{ proto, face string }{{"HTTP/1.1", "a"}, {"HTTP/2.0", "a"}, {"HTTP/2.0", "tlsa"}} {
			for _, api := range streamAPIs {
				quiet := thinkingModel(way.face)
				scripts := quietScripts(quiet)
				scripts["before the headers"] = fmt.Sprintf(`{"delay_headers_ms":%d}`, quiet.lasts.Milliseconds())
				scripts["before the first byte"] = fmt.Sprintf(`{"delay_first_byte_ms":%d}`, quiet.lasts.Milliseconds())
				scripts["case_020 held back until the output"] = fmt.Sprintf(`{"count":8,"interleave":": keep\n\n","pauses_ms":{"1":%d}}`, quiet.lasts.Milliseconds())
				for name, script := range scripts {
					run(fmt.Sprintf("%s %s %s %s", way.proto, way.face, api, name), func(t *testing.T) {
						a := ask{api: api, model: quiet.model, script: script, stream: true, nonce: newNonce()}
						requireKeptAlive(t, c.over(clientsByProto[way.proto]), a, quiet)
					})
				}
			}
		}
	})
	c.requireIdle(t, "think-a", "think-tlsa")
	c.requireBalanced(t, s.recordsNow(t, c.keyID))
}

func requireKeptAlive(t *testing.T, c *caller, a ask, quiet silence) {
	t.Helper()
	l, err := c.open(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, l.StatusCode)
	body, longest := silenceOf(t, l)
	l.quit()
	beat := string(wire.Heartbeat(a.api))
	beats := strings.Count(body, beat)
	assert.GreaterOrEqual(t, beats, int(quiet.lasts/(2*quiet.every)), "%s", body)
	assert.Less(t, longest, quiet.bound, "a client waited too long for bytes")
	assert.Contains(t, body, terminalOf(a.api))
	sent := c.s.awaitUpstream(t, a.nonce, func(r fakeprovider.Record) bool { return r.End != fakeprovider.EndRunning })
	if a.api != domain.APIChat { // the usage chunk of a chat is taken out
		assert.Equal(t, sent.SentSHA256, digestOf([]byte(strings.ReplaceAll(body, beat, ""))))
	}
	row := c.s.rowOf(t, l.Header.Get("X-Request-Id"))
	assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
	assert.Equal(t, domain.SourceUpstream, row.Source)
}

// A heartbeat never hides an upstream that is dead: at its model's idle limit
// the stream ends by an error, the provider's connection is closed and the
// request is settled.
func TestDeadUpstreamEndsAtTheIdleLimit(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	together(t, func(run func(string, func(*testing.T))) {
		for _, way := range []struct{ proto, model string }{
			{"HTTP/1.1", "dead-a"},
			{"HTTP/2.0", "dead-a"},
			{"HTTP/2.0", "dead-tlsa"},
			{"HTTP/1.1", "dead-tlsa"},
			{"HTTP/1.1", "think-dead"},
			{"HTTP/2.0", "think-dead"},
		} {
			for _, api := range streamAPIs {
				for name, script := range deadScripts {
					run(fmt.Sprintf("%s %s %s %s", way.proto, way.model, api, name), func(t *testing.T) {
						a := ask{api: api, model: way.model, script: script, stream: true, nonce: newNonce()}
						requireIdleEnd(t, c.over(clientsByProto[way.proto]), a, name)
					})
				}
			}
		}
	})
	c.requireIdle(t)
	c.requireBalanced(t, s.recordsNow(t, c.keyID))
}

var deadScripts = map[string]string{
	"mid-stream":            `{"count":40,"pauses_ms":{"12":60000}}`,
	"within a frame":        `{"count":40,"hang_after":{"bytes":2000}}`,
	"before the first byte": `{"delay_first_byte_ms":60000}`,
	"after its end":         `{"hang_after":{"frames":1000}}`,
}

func requireIdleEnd(t *testing.T, c *caller, a ask, where string) {
	t.Helper()
	began := time.Now()
	l, err := c.open(t.Context(), a)
	require.NoError(t, err)
	body, err := l.rest()
	took := time.Since(began)
	assert.GreaterOrEqual(t, took, time.Second)
	assert.Less(t, took, 10*time.Second)
	rec := c.s.awaitUpstream(t, a.nonce, func(r fakeprovider.Record) bool { return r.End != fakeprovider.EndRunning })
	assert.Equal(t, fakeprovider.EndPeerLeft, rec.End)
	row := c.s.rowOf(t, l.Header.Get("X-Request-Id"))
	body = strings.ReplaceAll(body, string(wire.Heartbeat(a.api)), "")
	if where == "before the first byte" && a.model == "think-dead" {
		where = "" // the relay has begun the answer by itself
	}
	switch where {
	case "after its end":
		require.NoError(t, err)
		assert.Contains(t, body, terminalOf(a.api))
		assert.NotContains(t, body, "too long")
		assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
		return
	case "before the first byte":
		assert.True(t, isBroken(err), "%v: %s", err, body)
	default:
		require.NoError(t, err)
		requireErrorEvent(t, a.api, body)
		assert.Contains(t, body, "nothing for too long")
		assert.NotContains(t, body, terminalOf(a.api))
	}
	assert.Equal(t, domain.OutcomeUpstreamCut, row.Outcome)
	assert.Equal(t, domain.SourceEstimate, row.Source)
}
