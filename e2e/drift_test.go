package e2e

import (
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

// Whatever ends a request, over and over: nothing stays held, and the counters of
// its budgets are what its rows in the ledger add up to.
func TestCase050(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "wide")
	ways := []struct {
		name    string
		ask     ask
		quit    bool
		status  int
		outcome domain.Outcome
	}{
		{"success", ask{model: "m"}, false, http.StatusOK, domain.OutcomeSuccess},
		{"the provider refuses", ask{model: "m", script: `{"fail":"bad_request"}`}, false, http.StatusBadRequest, domain.OutcomeFailed},
		{"the provider fails", ask{model: "only-a", script: `{"fail":"server_error"}`}, false, http.StatusInternalServerError, domain.OutcomeFailed},
		{"the client leaves", ask{model: "m", script: holdsOpen, stream: true}, true, http.StatusOK, domain.OutcomeCancelled},
		{"the provider is too slow", ask{model: "m-slow", script: `{"delay_headers_ms":5000}`}, false, http.StatusGatewayTimeout, domain.OutcomeFailed},
	}
	inParallel(48, *drifts*len(ways), func(i int) {
		way := ways[i%len(ways)]
		l, err := c.open(t.Context(), way.ask)
		if !assert.NoError(t, err, way.name) {
			return
		}
		var body string
		if way.quit {
			l.quit()
		} else {
			body, err = l.rest()
			assert.NoError(t, err, way.name)
		}
		assert.Equal(t, way.status, l.StatusCode, "%s: %s", way.name, body)
	})
	outcomes := map[domain.Outcome]int{}
	for _, way := range ways {
		outcomes[way.outcome] += *drifts
	}
	rows := c.requireOneRowEach(t, *drifts*len(ways))
	c.requireIdle(t)
	assert.Equal(t, outcomes, counted(rows))
	c.requireBalanced(t, rows)
	requireNoDrift(t, s, c.keyID)
}

// inParallel runs do for 0 to n-1 on so many goroutines.
func inParallel(workers, n int, do func(i int)) {
	jobs := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range jobs {
				do(i)
			}
		})
	}
	for i := range n {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
}

// killed is what the clients of one key saw while a process was killed.
type killed struct {
	*caller
	process string

	mu sync.Mutex
	// asked counts the requests, silent those that got no answer.
	asked, silent int
	// The others by the gateway's id: whole came to their end, cut did not, and
	// refused were not served.
	whole, cut, refused map[string]bool
}

// drillKillEach kills one process after the other while requests begin, run and
// end. When all is whole again nothing is held, each request has one row, and
// the budgets of each key are what its rows add up to.
func drillKillEach(t *testing.T, s *stack) {
	var all []*killed
	for _, process := range []string{"authz", "extproc", "worker", "xds", "envoy"} {
		k := &killed{
			caller: s.caller(t, newNonce(), "--policy", "wide"), process: process,
			whole: map[string]bool{}, cut: map[string]bool{}, refused: map[string]bool{},
		}
		all = append(all, k)
		old := s.pid(t, process)
		half, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			inParallel(32, *drifts, func(i int) {
				if i == *drifts/2 {
					close(half)
				}
				k.send(t, i)
			})
		}()
		<-half
		require.NoError(t, syscall.Kill(old, syscall.SIGKILL))
		<-done
		s.awaitSuccessor(t, process, old)
		served := len(k.whole)
		require.Eventually(t, func() bool {
			k.send(t, 0)
			return len(k.whole) > served
		}, patience, 20*time.Millisecond, "nothing is served after %s was killed", process)
	}
	s.requireNothingOpen(t)
	for _, k := range all {
		k.check(t)
	}
}

// pid is that of a process which may just have been restarted.
func (s *stack) pid(t *testing.T, process string) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		if err := s.readReady(); err != nil {
			return false
		}
		pid = s.ready.PIDs[process]
		return pid > 0 && running(pid)
	}, patience, 10*time.Millisecond, "%s does not run", process)
	return pid
}

// send sends the ith request and notes how it ended.
func (k *killed) send(t *testing.T, i int) {
	api := streamAPIs[i%len(streamAPIs)]
	l, err := k.over(eitherClient(i)).open(t.Context(), ask{api: api, model: "only-a", stream: true, script: slowly(10, 300*time.Millisecond)})
	var body string
	if err == nil {
		body, err = l.rest()
	}
	if l == nil || l.StatusCode != http.StatusOK {
		defer time.Sleep(20 * time.Millisecond) // so that a gap of service does not take all requests
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	switch {
	case l == nil:
		k.silent++
	case l.StatusCode != http.StatusOK:
		assert.GreaterOrEqual(t, l.StatusCode, 500, "%s", body)
		k.refused[l.Header.Get("X-Request-Id")] = true
	case err == nil && strings.Contains(body, terminalOf(api)):
		k.whole[l.Header.Get("X-Request-Id")] = true
	default:
		k.cut[l.Header.Get("X-Request-Id")] = true
	}
}

func (k *killed) check(t *testing.T) {
	t.Helper()
	require.Equal(t, k.asked, k.silent+len(k.whole)+len(k.cut)+len(k.refused), "a request id came twice")
	rows := k.s.recordsNow(t, k.keyID)
	t.Logf("%s: of %d requests %d were whole, %d cut, %d refused, %d not answered; rows: %v",
		k.process, k.asked, len(k.whole), len(k.cut), len(k.refused), k.silent, counted(rows))
	by := map[string]domain.UsageRecord{}
	unknown := 0
	for _, r := range rows {
		assert.NotContains(t, by, r.RequestID, "a request has two rows")
		by[r.RequestID] = r
		if !k.whole[r.RequestID] && !k.cut[r.RequestID] && !k.refused[r.RequestID] {
			unknown++
		}
	}
	assert.LessOrEqual(t, unknown, k.silent, "rows of requests that nobody sent")
	for _, served := range []map[string]bool{k.whole, k.cut} {
		for id := range served {
			assert.Contains(t, by, id, "%s: a request without a row", k.process)
		}
	}
	switch k.process {
	case "authz", "worker", "xds":
		assert.Empty(t, k.cut, "%s takes no part in running streams", k.process)
		for id := range k.whole {
			assert.Equal(t, domain.OutcomeSuccess, by[id].Outcome)
		}
	}
	if k.process == "worker" || k.process == "xds" {
		assert.Empty(t, k.refused, "%s takes no part in requests", k.process)
	}
	k.requireIdle(t, "a")
	k.requireBalanced(t, rows)
	requireNoDrift(t, k.s, k.keyID)
}
