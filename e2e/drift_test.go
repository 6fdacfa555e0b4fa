package e2e

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// outages is how often authz has found that the store does not answer. On a
// machine that lets the store wait for longer than the 100 ms in which requests
// must be refused, it is right to refuse some.
func (s *stack) outages(t *testing.T) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.dir, "up", "log", "authz.log"))
	require.NoError(t, err)
	return bytes.Count(raw, []byte("store does not answer"))
}

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
	var (
		mu       sync.Mutex
		refused  int
		outcomes = map[domain.Outcome]int{}
	)
	outages := s.outages(t)
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
		mu.Lock()
		defer mu.Unlock()
		if l.StatusCode == http.StatusServiceUnavailable {
			refused++
			return
		}
		outcomes[way.outcome]++
		assert.Equal(t, way.status, l.StatusCode, "%s: %s", way.name, body)
	})
	if refused > 0 {
		t.Logf("%d requests were refused while the store did not answer", refused)
		assert.Greater(t, s.outages(t), outages, "%d requests were refused without a reason", refused)
	}
	rows := c.requireOneRowEach(t, *drifts*len(ways)-refused)
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
	// outages is how often the store was found away meanwhile.
	outages int
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
		old, outages := s.pid(t, process), s.outages(t)
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
		eventually(t, func() bool {
			k.send(t, 0)
			return len(k.whole) > served
		}, patience, 20*time.Millisecond, "nothing is served after %s was killed", process)
		k.outages = s.outages(t) - outages
	}
	s.requireNothingOpen(t)
	for _, k := range all {
		k.check(t)
	}
}

// pid is that of a process which may just have been restarted.
func (s *stack) pid(t *testing.T, process string) (pid int) {
	t.Helper()
	eventually(t, func() bool {
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
	t.Logf("%s: of %d requests %d were whole, %d cut, %d refused, %d not answered, the store away %d times; rows: %v",
		k.process, k.asked, len(k.whole), len(k.cut), len(k.refused), k.silent, k.outages, counted(rows))
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
	if (k.process == "worker" || k.process == "xds") && k.outages == 0 {
		assert.Empty(t, k.refused, "%s takes no part in requests", k.process)
	}
	k.requireIdle(t, "a")
	k.requireBalanced(t, rows)
	requireNoDrift(t, k.s, k.keyID)
}
