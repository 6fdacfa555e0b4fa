package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// Of many streams two in five are left at random moments: each provider sees it
// at once, what was held is back within a second while the others run on, the
// sums are right, and no goroutine stays behind.
func drillLeaveMany(t *testing.T, s *stack) {
	n := *drifts / 2
	const window, seen, settled = time.Second, 100 * time.Millisecond, time.Second
	lasts := window + settled + 500*time.Millisecond + time.Duration(n)*10*time.Millisecond
	c := s.caller(t, "wide", "--policy", "wide")
	a := ask{model: "only-a", script: slowly(int(lasts/(250*time.Millisecond)), lasts)}
	// The connections that so many streams need are opened before anything is counted.
	_, broken := startStreams(t, c, n, ask{model: "only-a", script: slowly(2, 200*time.Millisecond)}).ends()
	require.Zero(t, broken)
	c.requireIdle(t)
	before := s.goroutines(t)

	streams := startStreams(t, c, n, a)
	require.Equal(t, int64(n), c.inFlight(t))
	staying, leaving := &liveStreams{c: c, live: streams.live[:n*3/5]}, streams.live[n*3/5:]
	var (
		wg      sync.WaitGroup
		begun   = time.Now()
		planned = make([]time.Time, len(leaving))
		left    = make([]time.Time, len(leaving))
	)
	for i, l := range leaving {
		planned[i] = begun.Add(time.Duration(rand.Int64N(int64(window))))
		wg.Go(func() {
			time.Sleep(time.Until(planned[i]))
			left[i] = time.Now()
			l.quit()
		})
	}
	wg.Go(func() {
		whole, cut := staying.ends()
		assert.Equal(t, len(staying.live), whole)
		assert.Zero(t, cut)
	})
	goneBy := func(at time.Time) (gone int64) {
		for _, p := range planned {
			if p.Before(at) {
				gone++
			}
		}
		return gone
	}
	for at := begun; at.Before(begun.Add(window + settled + 100*time.Millisecond)); at = time.Now() {
		inFlight := c.inFlight(t)
		require.GreaterOrEqual(t, inFlight, int64(n)-goneBy(time.Now()), "a stream that runs counts no more")
		require.LessOrEqual(t, inFlight, int64(n)-goneBy(at.Add(-settled)), "a client that left a second ago is still counted")
		time.Sleep(20 * time.Millisecond)
	}
	require.Equal(t, int64(len(staying.live)), c.inFlight(t))
	wg.Wait()
	requireSeenLeaving(t, s, leaving, left, seen)
	rows := c.requireOneRowEach(t, 2*n)
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: 2*n - len(leaving), domain.OutcomeCancelled: len(leaving)}, counted(rows))
	c.requireIdle(t, "a")
	c.requireBalanced(t, rows)
	var now map[string]float64
	eventually(t, func() bool {
		now = s.goroutines(t)
		return now["authz"] <= before["authz"] && now["extproc"] <= before["extproc"]
	}, patience, 50*time.Millisecond, "goroutines are left: %v before, %v now", before, &now)
}

// requireSeenLeaving: the providers of streams that were left saw it within
// limit, at the 99th percentile.
func requireSeenLeaving(t *testing.T, s *stack, streams []*live, left []time.Time, limit time.Duration) {
	t.Helper()
	saw := map[string]time.Time{}
	for _, r := range s.provider.Records() {
		saw[r.Header.Get("X-Request-Id")] = r.PeerLeftAt
	}
	took := make([]time.Duration, 0, len(streams))
	for i, l := range streams {
		at := saw[l.Header.Get("X-Request-Id")]
		require.False(t, at.IsZero(), "the provider did not see the client leave")
		took = append(took, at.Sub(left[i]))
	}
	slices.Sort(took)
	p99 := took[(len(took)*99-1)/100]
	t.Logf("%d clients left: seen by their providers after p50 %s, p99 %s, longest %s", len(took), took[len(took)/2], p99, took[len(took)-1])
	assert.Less(t, p99, limit)
}

// inFlight is what counts against the key's limit of requests in flight.
func (c *caller) inFlight(t testing.TB) (n int64) {
	t.Helper()
	for _, held := range c.leases(t) {
		n += held
	}
	return n
}

// goroutines are how many each service of the path has.
func (s *stack) goroutines(t testing.TB) map[string]float64 {
	t.Helper()
	return map[string]float64{
		"authz": s.metric(t, "authz", "go_goroutines"), "extproc": s.metric(t, "extproc", "go_goroutines"),
	}
}

// Authz and extproc are replaced under streams as a deployment does it: the
// successor takes the socket over while the predecessor serves, which then gets
// SIGTERM and lets its streams run. No stream is cut and no request fails, then
// and when the supervisor's own successor takes over in turn.
func drillHandOver(t *testing.T, s *stack, process string) {
	// The region's services stop within 12 s in any case.
	const running, lasts, stopLimit = 100, 3 * time.Second, 11 * time.Second
	c := s.caller(t, "wide", "--policy", "wide")
	var streams []*liveStreams
	for _, model := range []string{"only-a", "muse-a"} {
		streams = append(streams, startStreams(t, c, running/2, ask{model: model, script: slowly(25, lasts)}))
	}
	var (
		load   sync.WaitGroup
		stop   = make(chan struct{})
		served atomic.Int64
	)
	for i := range 2 {
		load.Go(func() {
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				l, err := c.over(eitherClient(n)).open(t.Context(), ask{api: streamAPIs[n/2%3], model: []string{"only-b", "muse-a"}[n/2%2], stream: n%4 < 2})
				if !assert.NoError(t, err) {
					return
				}
				body, err := l.rest()
				if !assert.NoError(t, err) || !assert.Equal(t, http.StatusOK, l.StatusCode, "%s", body) {
					return
				}
				served.Add(1)
			}
		})
	}

	old := s.ready.PIDs[process]
	begun := time.Now()
	stopSuccessor := s.succeed(t, process)
	s.signal(t, process, syscall.SIGTERM)
	s.awaitSuccessor(t, process, old)
	replaced := time.Since(begun)
	assert.Less(t, replaced, stopLimit, "the stop waits for more than its streams")
	stopSuccessor()
	t.Logf("the first was gone after %s, its successor after %s", replaced, time.Since(begun))
	for _, each := range streams {
		whole, cut := each.ends()
		assert.Equal(t, running/2, whole)
		assert.Zero(t, cut)
	}
	close(stop)
	load.Wait()
	t.Logf("%d requests were served beside %d streams", served.Load(), running)
	rows := c.requireOneRowEach(t, running+int(served.Load()))
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: len(rows)}, counted(rows))
	c.requireIdle(t, "a", "b")
	c.requireBalanced(t, rows)
}

// succeed starts a second process like one of the region's, on the same sockets
// and with files of its own, and returns once it serves. The function it returns
// stops it and waits until it has ended.
func (s *stack) succeed(t *testing.T, process string) (stop func()) {
	t.Helper()
	require.NoError(t, s.readReady())
	proc := fmt.Sprintf("/proc/%d/", s.ready.PIDs[process])
	line, err := os.ReadFile(proc + "cmdline")
	require.NoError(t, err)
	environment, err := os.ReadFile(proc + "environ")
	require.NoError(t, err)
	own, port := t.TempDir(), freePort(t)
	args := append(strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")[1:],
		"--node", process+"-successor", "--metrics", fmt.Sprintf("127.0.0.1:%d", port),
		"--journal", filepath.Join(own, "journal"), "--cache", filepath.Join(own, "config"))
	cmd := exec.Command(binary, args...)
	cmd.Env = strings.Split(strings.TrimSuffix(string(environment), "\x00"), "\x00")
	output := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = ownGroup()
	require.NoError(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		assert.NoError(t, cmd.Wait(), "the successor stops well: %s", output)
	})
	t.Cleanup(stop)
	eventually(t, func() bool {
		resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", port))
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, patience, 20*time.Millisecond, "the successor does not serve: %s", output)
	return stop
}

func freePort(t testing.TB) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}
