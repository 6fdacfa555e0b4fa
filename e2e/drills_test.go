package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// Drills break one part of a region under load and look at what is left when
// it is whole again. They share a region of their own, one after the other.
func TestDrills(t *testing.T) {
	s := ownStack(t)
	for _, drill := range []struct {
		name string
		run  func(*testing.T, *stack)
	}{
		{"case_051 extproc is killed", drillKillExtproc},
		{"case_051 authz is killed", drillKillAuthz},
		{"case_051 each process is killed", drillKillEach},
		{"case_053 the store stops for less than a lease", func(t *testing.T, s *stack) { drillStopStore(t, s, lease*3/4) }},
		{"case_053 the store stops for more than a lease", func(t *testing.T, s *stack) { drillStopStore(t, s, lease*3/2) }},
		{"the store forgets its scripts", drillFlushScripts},
		{"configurations come under streams", drillConfig},
		{"the region has a ceiling", drillCeiling},
		{"two in five of many streams are left", drillLeaveMany},
		{"authz is replaced under streams", func(t *testing.T, s *stack) { drillHandOver(t, s, "authz") }},
		{"extproc is replaced under streams", func(t *testing.T, s *stack) { drillHandOver(t, s, "extproc") }},
	} {
		t.Run(drill.name, func(t *testing.T) {
			drill.run(t, s)
			s.requireNothingOpen(t)
			// Every budget there is, by the command that an operator has for it.
			s.cli(t, "reconcile", "--ledger", s.ready.Ledger, "--store", s.ready.RedisURL)
		})
	}
}

// requireNothingOpen waits until no reservation is open and the provider and
// Envoy have nothing to do.
func (s *stack) requireNothingOpen(t *testing.T) {
	t.Helper()
	var stats domain.StoreStats
	eventually(t, func() bool {
		var err error
		stats, err = s.store.Stats(t.Context())
		return err == nil && stats.OpenReservations == 0 && stats.OutboxLen == 0 && s.provider.Open() == 0
	}, 3*lease, 50*time.Millisecond, "something is left: %+v", &stats)
}

// liveStreams are streams that run until the test lets them end, or leave.
type liveStreams struct {
	c    *caller
	live []*live
}

// slowly makes an answer of n events last about d.
func slowly(n int, d time.Duration) string {
	return fmt.Sprintf(`{"count":%d,"delay_between_ms":%d}`, n, int(d/time.Millisecond)/n)
}

// startStreams opens n streams and waits until each has sent its first event.
func startStreams(t *testing.T, c *caller, n int, a ask) *liveStreams {
	t.Helper()
	a.stream = true
	out := &liveStreams{c: c, live: make([]*live, n)}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			each := a
			each.api = streamAPIs[i%len(streamAPIs)]
			l, err := c.over(eitherClient(i)).open(t.Context(), each)
			if !assert.NoError(t, err) || !assert.Equal(t, http.StatusOK, l.StatusCode) {
				return
			}
			_, err = l.event()
			assert.NoError(t, err)
			out.live[i] = l
		})
	}
	wg.Wait()
	require.False(t, t.Failed(), "not every stream began")
	return out
}

// eitherClient spreads requests over both protocols.
func eitherClient(i int) *http.Client {
	if i%2 == 0 {
		return client
	}
	return clientHTTP2
}

// ends reads all streams to their ends and returns how many were whole.
func (l *liveStreams) ends() (whole, broken int) {
	var wg sync.WaitGroup
	var good atomic.Int64
	for i, each := range l.live {
		wg.Go(func() {
			body, err := each.rest()
			if err == nil && strings.Contains(body, terminalOf(streamAPIs[i%len(streamAPIs)])) {
				good.Add(1)
			}
		})
	}
	wg.Wait()
	return int(good.Load()), len(l.live) - int(good.Load())
}

// signal sends a signal to one of the region's processes.
func (s *stack) signal(t *testing.T, process string, sig syscall.Signal) {
	t.Helper()
	require.NoError(t, s.readReady())
	pid := s.ready.PIDs[process]
	require.NotZero(t, pid, "%s has no process id in ready.json: %v", process, s.ready.PIDs)
	require.NoError(t, syscall.Kill(pid, sig))
}

// kill ends a process as a crash does and waits until its successor serves.
func (s *stack) kill(t *testing.T, process string) (backAfter time.Duration) {
	t.Helper()
	s.signal(t, process, syscall.SIGKILL)
	killed := time.Now()
	s.awaitSuccessor(t, process, s.ready.PIDs[process])
	return time.Since(killed)
}

// awaitSuccessor waits until another process than old serves as process. Envoy
// has no page that tells; whether it serves, requests show.
func (s *stack) awaitSuccessor(t *testing.T, process string, old int) {
	t.Helper()
	eventually(t, func() bool {
		return s.readReady() == nil && s.ready.PIDs[process] != 0 && s.ready.PIDs[process] != old &&
			(process == "envoy" || s.isReady(process))
	}, patience, 10*time.Millisecond, "%s did not come back", process)
}

// isReady asks a process whether it wants work.
func (s *stack) isReady(process string) bool {
	resp, err := client.Get(s.ready.Services[process].ReadyURL)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK
}

// untilServed sends requests until one is served; every other one must be
// refused with 503 in its dialect. It returns how many were refused.
func untilServed(t *testing.T, c *caller) (refused int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		a := ask{api: []domain.API{domain.APIChat, domain.APIMessages}[refused%2], model: "m"}
		got := c.ask(t, a)
		if got.StatusCode == http.StatusOK {
			return refused
		}
		requireAway(t, a.api, got)
		refused++
	}
	require.FailNow(t, "the region does not serve again")
	return refused
}

// requireAway: the answer says that the gateway cannot admit anything now.
func requireAway(t *testing.T, api domain.API, got received) {
	t.Helper()
	kind := "service_unavailable_error"
	if api == domain.APIMessages {
		kind = "overloaded_error"
	}
	require.Equal(t, http.StatusServiceUnavailable, got.StatusCode, "%s", got.body)
	require.Equal(t, kind, errorTypeOf(t, got.body), "%s", got.body)
	wait, err := strconv.Atoi(got.Header.Get("Retry-After"))
	require.NoError(t, err, "Retry-After of %v", got.Header)
	require.Positive(t, wait)
}

// A killed extproc takes its streams with it; what they held comes back within
// the lease, and each has one row.
func drillKillExtproc(t *testing.T, s *stack) {
	c := s.caller(t, "wide", "--policy", "wide")
	streams := startStreams(t, c, *drifts, ask{model: "only-a", script: `{"count":40,"hang_after":{"frames":20}}`})
	require.Len(t, c.leases(t), 1, "the key has streams in flight")
	killed := time.Now()
	back := s.kill(t, "extproc")
	whole, broken := streams.ends()
	assert.Zero(t, whole)
	assert.Equal(t, *drifts, broken)
	refused := untilServed(t, c)
	c.requireIdle(t)
	idle := time.Since(killed)
	t.Logf("extproc was back after %s (%d requests refused meanwhile), nothing was held after %s; the lease is %s", back, refused, idle, lease)
	assert.Less(t, idle, 2*lease, "held beyond the lease and the sweep")
	rows := c.requireOneRowEach(t, *drifts+1)
	c.requireBalanced(t, rows)
	outcomes := counted(rows)
	t.Logf("outcomes: %v", outcomes)
	assert.Equal(t, 1, outcomes[domain.OutcomeSuccess])
	assert.Zero(t, outcomes[domain.OutcomeFailed])
}

// A killed authz cuts nothing that runs.
func drillKillAuthz(t *testing.T, s *stack) {
	c := s.caller(t, "wide", "--policy", "wide")
	streams := startStreams(t, c, *drifts, ask{model: "only-a", script: slowly(30, 4*time.Second)})
	s.signal(t, "authz", syscall.SIGKILL)
	killed := time.Now()
	refused := untilServed(t, c)
	t.Logf("a request was served %s after authz was killed, %d were refused meanwhile", time.Since(killed), refused)
	whole, broken := streams.ends()
	assert.Equal(t, *drifts, whole)
	assert.Zero(t, broken)
	rows := c.requireOneRowEach(t, *drifts+1)
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: *drifts + 1}, counted(rows))
	c.requireIdle(t)
	c.requireBalanced(t, rows)
}

// starved is for how long threads that take part in a refusal, the test's own
// included, were ready to run and the machine ran others. A promise of
// milliseconds is one about a machine that has them. Where the kernel does not
// tell, it is 0.
func (s *stack) starved() (sum time.Duration) {
	for _, pid := range []int{os.Getpid(), s.ready.PIDs["envoy"], s.ready.PIDs["authz"]} {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, file := range files {
			raw, _ := os.ReadFile(file) // a thread may have ended
			var ran, waited int64
			if n, _ := fmt.Sscan(string(raw), &ran, &waited); n == 2 {
				sum += time.Duration(waited)
			}
		}
	}
	return sum
}

// crowded reports whether more than two threads compete for each CPU just now:
// then the store's guard takes longer for its verdict, by design, because a store
// that waits for its turn is as silent as one that stands still.
func crowded() bool {
	raw, _ := os.ReadFile("/proc/loadavg")
	var load [3]float64
	var threads int
	_, err := fmt.Sscanf(string(raw), "%g %g %g %d/", &load[0], &load[1], &load[2], &threads)
	return err == nil && threads > 2*runtime.NumCPU()
}

// While the store stands still, new requests are refused fast and running
// streams go on; when it goes on, their settlements land.
func drillStopStore(t *testing.T, s *stack, away time.Duration) {
	// A machine that lets the region wait for longer than busy within one
	// request has not the milliseconds that the limit counts.
	const running, limit, busy = 20, 100 * time.Millisecond, 5 * time.Millisecond
	c := s.caller(t, "wide", "--policy", "wide")
	unseen := s.caller(t, "wide", "--policy", "wide") // its key is in no cache
	streams := startStreams(t, c, running, ask{model: "only-a", script: slowly(20, 2500*time.Millisecond)})
	require.Equal(t, http.StatusOK, c.ask(t, ask{model: "m"}).StatusCode)

	s.signal(t, "store", syscall.SIGSTOP)
	stopped := time.Now()
	resume := sync.OnceFunc(func() { s.signal(t, "store", syscall.SIGCONT) })
	t.Cleanup(resume)
	var took []time.Duration
	var slow []string
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := 0; time.Since(stopped) < away; i++ {
		a := ask{api: []domain.API{domain.APIChat, domain.APIMessages}[i%2], model: "m", nonce: newNonce()}
		who := c
		if i%3 == 2 {
			who = unseen
		}
		before, crowd := s.starved(), crowded()
		began := time.Now()
		got := who.ask(t, a)
		took = append(took, time.Since(began))
		starved := s.starved() - before
		if took[i] > limit && (starved > busy || crowd || crowded()) {
			t.Logf("request %d was refused after %s; not judged: the machine was busy elsewhere for %s, or with others", i, took[i], starved)
		} else if took[i] > limit {
			slow = append(slow, fmt.Sprintf("request %d took %s", i, took[i]))
		}
		requireAway(t, a.api, got)
		require.Empty(t, s.attempts(a.nonce), "a refused request reached the provider")
		<-tick.C
	}
	for _, process := range []string{"authz", "extproc"} {
		assert.False(t, s.isReady(process), "%s still asks for work", process)
	}
	whole, broken := streams.ends()
	assert.Equal(t, running, whole)
	assert.Zero(t, broken)

	resume()
	resumed := time.Now()
	rows := c.requireOneRowEach(t, running+1)
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: running + 1}, counted(rows))
	c.requireIdle(t)
	c.requireBalanced(t, rows)
	s.requireNothingOpen(t)
	assert.Empty(t, unseen.charges(t), "a refused request is charged")
	refused := untilServed(t, unseen)
	slices.Sort(took)
	t.Logf("store away for %s: refused in p50 %s, p99 %s, longest %s (%d); all settled %s after its return, %d more refused",
		away, took[len(took)/2], took[len(took)*99/100], took[len(took)-1], len(took), time.Since(resumed), refused)
	assert.Empty(t, slow, "refused later than %s", limit)
	unseen.requireOneRowEach(t, 1)
}

// A store that forgets its scripts over and over costs no client anything.
func drillFlushScripts(t *testing.T, s *stack) {
	const lasts, every, loaders = 5 * time.Second, 100 * time.Millisecond, 4
	options, err := redis.ParseURL(s.ready.RedisURL)
	require.NoError(t, err)
	direct := redis.NewClient(options)
	defer direct.Close()
	c := s.caller(t, "wide", "--policy", "wide")
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var (
		wg     sync.WaitGroup
		served atomic.Int64
	)
	for i := range loaders {
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				a := ask{api: streamAPIs[n%len(streamAPIs)], model: "fail", stream: n%2 == 0}
				if n%5 == 0 {
					a.script = `{"only_face":"a","status":500}`
				}
				l, err := c.over(eitherClient(n)).open(t.Context(), a)
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
	flushes := 0
	for ; ctx.Err() == nil; flushes++ {
		require.NoError(t, direct.ScriptFlush(t.Context()).Err())
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
	wg.Wait()
	t.Logf("%d requests served over %d flushes", served.Load(), flushes)
	rows := c.requireOneRowEach(t, int(served.Load()))
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: len(rows)}, counted(rows))
	c.requireIdle(t, "failing", "healthy")
	c.requireBalanced(t, rows)
}

// planeStatus is what the control plane says of itself.
type planeStatus struct {
	Version      int64    `json:"version"`
	Waiting      bool     `json:"waiting"`
	ConfigErrors []string `json:"config_errors"`
}

func (s *stack) planeStatus(t *testing.T) (st planeStatus) {
	t.Helper()
	resp, err := client.Get(s.ready.AdminURL + "/status")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&st))
	return st
}

// A bad file is refused with the reason while the last good one serves; a
// channel that comes or goes cuts no stream.
func drillConfig(t *testing.T, s *stack) {
	const running = 20
	c := s.caller(t, "wide", "--policy", "wide")
	streams := startStreams(t, c, running, ask{model: "only-a", script: slowly(30, 5*time.Second)})
	before := s.planeStatus(t)
	require.Empty(t, before.ConfigErrors)

	good, err := os.ReadFile(s.config)
	require.NoError(t, err)
	for _, tc := range []struct{ name, content, says string }{
		{"not YAML", "region: [", "yaml"},
		{"unknown field", string(good) + "\nmodles: []\n", "modles"},
		{"unknown provider", strings.Replace(string(good), "provider: c,", "provider: nobody,", 1), "nobody"},
	} {
		require.NoError(t, os.WriteFile(s.config+".next", []byte(tc.content), 0o600))
		require.NoError(t, os.Rename(s.config+".next", s.config))
		var st planeStatus
		eventually(t, func() bool {
			st = s.planeStatus(t)
			return strings.Contains(strings.ToLower(strings.Join(st.ConfigErrors, "\n")), tc.says)
		}, patience, 20*time.Millisecond, "%s: the reason is not told: %v", tc.name, &st)
		assert.Equal(t, before.Version, st.Version, tc.name)
		require.Equal(t, http.StatusOK, c.ask(t, ask{model: "only-a"}).StatusCode, tc.name)
	}

	extra := fmt.Sprintf("  - {name: extra, provider: b, secret: \"file:%s\", priority: 0, models: [{name: only-a, upstream: m-extra}]}",
		filepath.Join(s.dir, "b.sk"))
	require.NoError(t, s.writeConfig(configValues{ExtraChannels: extra}))
	pushed := time.Now()
	asked := 3 + requireServedBy(t, c, "b")
	t.Logf("a new channel served %s after the file changed", time.Since(pushed))
	more := startStreams(t, c, running, ask{model: "only-a", script: slowly(30, 4*time.Second)})
	require.NoError(t, s.writeConfig(configValues{}))
	asked += requireServedBy(t, c, "a")

	for _, each := range []*liveStreams{streams, more} {
		whole, broken := each.ends()
		assert.Equal(t, running, whole)
		assert.Zero(t, broken)
	}
	rows := c.requireOneRowEach(t, 2*running+asked)
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: len(rows)}, counted(rows))
	c.requireIdle(t)
	c.requireBalanced(t, rows)
}

// requireServedBy sends good requests until a face serves one, and returns how many.
func requireServedBy(t *testing.T, c *caller, face string) (asked int) {
	t.Helper()
	eventually(t, func() bool {
		asked++
		nonce := newNonce()
		got := c.ask(t, ask{model: "only-a", nonce: nonce})
		require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
		seen := c.s.attempts(nonce)
		return len(seen) == 1 && seen[0].Face == face
	}, patience, 20*time.Millisecond, "face %s does not serve", face)
	return asked
}
