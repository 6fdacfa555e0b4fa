package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// Whatever becomes of the extproc that admitted responses in the background,
// another one or its successor follows them to their ends: each is settled once,
// by what the provider tells, and nothing stays held.
func TestBackgroundResponsesOutliveTheirExtproc(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	// ended ends the extproc that follows, and waits for the one that the supervisor starts.
	ended := func(t *testing.T, sig syscall.Signal) {
		old := s.ready.PIDs["extproc"]
		s.signal(t, "extproc", sig)
		s.awaitSuccessor(t, "extproc", old)
	}
	const killed, stopped = syscall.SIGKILL, syscall.SIGTERM
	for _, drill := range []struct {
		name string
		do   func(t *testing.T)
		// beside: another one may have taken over; same: one lives through it all.
		beside, same bool
	}{
		{"killed, alone", func(t *testing.T) { ended(t, killed) }, false, false},
		{"stopped, alone", func(t *testing.T) { ended(t, stopped) }, false, false},
		{"killed, beside another that stops then", func(t *testing.T) {
			stop := s.succeed(t, "extproc")
			ended(t, killed)
			stop()
		}, true, false},
		{"stopped, beside another that stops as well", func(t *testing.T) {
			stop := s.succeed(t, "extproc")
			ended(t, stopped)
			stop()
		}, true, false},
		{"the store is away for longer than a lease", func(t *testing.T) {
			s.signal(t, "store", syscall.SIGSTOP)
			resume := sync.OnceFunc(func() { s.signal(t, "store", syscall.SIGCONT) })
			t.Cleanup(resume)
			time.Sleep(lease * 3 / 2)
			resume()
		}, false, true},
	} {
		t.Run(drill.name, func(t *testing.T) {
			before := s.goroutines(t)
			c := s.caller(t, newNonce(), "--policy", "wide")
			const responses = 50
			made := makeInBackground(t, c, responses)
			drill.do(t)
			began := time.Now()
			made.finish(t)
			c.requireIdle(t, "later")
			took := s.metric(t, "extproc", "keyway_extproc_background_taken_over_total")
			t.Logf("nothing was held %s after the drill; extproc has taken over %v", time.Since(began), took)
			if !drill.same {
				// Beside another one it may be that one; the rows show that somebody did.
				assert.True(t, drill.beside || took > 0, "the restarted one has to have taken over")
				return
			}
			var now map[string]float64
			eventually(t, func() bool {
				now = s.goroutines(t)
				// Connections come and go, with some goroutines each.
				return now["extproc"] < before["extproc"]+responses/4 && s.metric(t, "extproc", "keyway_extproc_background_responses") == 0
			}, patience, 50*time.Millisecond, "goroutines are left: %v before, %v now", before, &now)
		})
	}
	s.requireNothingOpen(t)
	s.cli(t, "reconcile", "--ledger", s.ready.Ledger, "--store", s.ready.RedisURL)
}

// inTheMaking are responses in the background; of every five one is streamed and
// one is cancelled.
type inTheMaking struct {
	c        *caller
	requests []*received
	streams  []*live
}

// The ith is of kind i%makings; the others are plain.
const (
	streamedMaking  = 0
	cancelledMaking = 1
	makings         = 5
)

// makeInBackground asks for n responses whose making takes longer than what a
// drill does; the ith has i+1 tokens.
func makeInBackground(t *testing.T, c *caller, n int) *inTheMaking {
	t.Helper()
	m := &inTheMaking{c: c, requests: make([]*received, n), streams: make([]*live, n)}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			script := fmt.Sprintf(`{"count":%d,"pending_ms":4000,"delay_between_ms":%d}`, i+1, 4000/(i+10))
			if i%makings == streamedMaking {
				l, err := c.over(eitherClient(i)).open(t.Context(), ask{api: domain.APIResponses, model: "later", stream: true, script: script, background: true})
				if assert.NoError(t, err) && assert.Equal(t, http.StatusOK, l.StatusCode) {
					_, err = l.event()
					assert.NoError(t, err)
					m.streams[i] = l
				}
				return
			}
			got, err := c.s.trySend(t, sending{path: "/v1/responses", key: c.secret, body: inBackground("later", script)})
			if assert.NoError(t, err) && assert.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body) {
				m.requests[i] = &got
			}
		})
	}
	wg.Wait()
	require.False(t, t.Failed(), "not every response was begun")
	return m
}

// finish has clients do what they want, and looks at what the ledger has of it.
func (m *inTheMaking) finish(t *testing.T) {
	t.Helper()
	for i, got := range m.requests {
		if i%makings != cancelledMaking {
			continue
		}
		id := strings.Trim(string(jsonAt(t, got.body, "id")), `"`)
		eventually(t, func() bool {
			done, err := m.c.s.trySend(t, sending{path: "/v1/responses/" + id + "/cancel", key: m.c.secret})
			return err == nil && done.StatusCode == http.StatusOK
		}, patience, 100*time.Millisecond, "response %d is not cancelled", i)
	}
	for _, l := range m.streams {
		if l != nil {
			_, _ = l.rest() // whole or broken: its provider goes on
		}
	}
	for i, got := range m.requests {
		var header http.Header
		if got != nil {
			header = got.Header
		} else {
			header = m.streams[i].Header
		}
		row := m.c.s.rowOf(t, header.Get("X-Request-Id"))
		assert.Equal(t, domain.SourceUpstream, row.Source, "response %d", i)
		assert.Equal(t, int64(i+1), row.Usage.Output, "response %d", i)
		assert.Equal(t, "later", row.Channel, "response %d", i)
		if i%makings != cancelledMaking {
			assert.Equal(t, domain.OutcomeSuccess, row.Outcome, "response %d", i)
		}
	}
	rows := 0
	all := m.c.s.recordsNow(t, m.c.keyID)
	for _, r := range all {
		if r.API == domain.APIResponses {
			rows++
		} else {
			assert.Zero(t, r.CostMicros, "what the client does with it is free")
		}
	}
	assert.Len(t, m.requests, rows, "one row each")
	m.c.requireBalanced(t, all)
}
