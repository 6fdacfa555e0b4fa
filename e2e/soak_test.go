package e2e

import (
	"bufio"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// soakFor is how long the soak lasts: seconds with every test run, which show
// what grows by the request, and longer by `make soak`, which also judges slopes.
var soakFor = flag.Duration("soak", 5*time.Second, "how long TestCase097Soak runs")

// The ceilings of a soak. A Go heap swings by a third of itself, and Envoy keeps
// what it once took; what leaks a KiB a request is beyond these within minutes.
const (
	// slopesFrom is the shortest soak whose slopes say more than noise.
	slopesFrom = 5 * time.Minute
	// soakGrowth is what a process may have taken more at the end of a soak.
	soakGrowth = 64 << 20
	// The slopes by the hour, over the second half of a soak.
	slopeBytes, slopeGoroutines, slopeFiles = 48 << 20, 60, 60
)

// soakServices are the processes that serve metrics.
var soakServices = []string{"authz", "extproc", "worker", "xds"}

// footprint is what a process holds.
type footprint struct {
	at                time.Time
	bytes, files, gos float64
}

// Whatever clients name that does not exist, keys, models, paths and user agents,
// makes no series, and nothing grows with the requests.
func TestCase097Soak(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	const warm, clients = 600, 8
	var sent, unserved atomic.Int64
	// load sends until it is told to stop; the channel closes when all have their answers.
	load := func(until func() bool) <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			inParallel(clients, clients, func(int) {
				for !until() {
					if !c.soak(t, int(sent.Add(1))) {
						unserved.Add(1)
					}
				}
			})
		}()
		return done
	}
	<-load(func() bool { return sent.Load() >= warm })
	s.requireNothingOpen(t)
	series, before := s.series(t), s.footprints(t)

	began := time.Now()
	taken := map[string][]footprint{}
	done := load(func() bool { return time.Since(began) >= *soakFor })
	defer func() { <-done }() // nothing of a test outlives it
	tick := time.NewTicker(max(*soakFor/100, time.Second))
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-tick.C:
			for name, f := range s.footprints(t) {
				taken[name] = append(taken[name], f)
			}
		case <-done:
			running = false
		}
	}
	s.requireNothingOpen(t)
	requests := sent.Load() - warm
	t.Logf("%d requests in %s", requests, time.Since(began).Round(time.Second))
	require.Greater(t, requests, int64(100))
	assert.Less(t, unserved.Load(), sent.Load()/10, "the store was away too often")

	for name, now := range s.series(t) {
		maps.DeleteFunc(now, func(one string, _ bool) bool { return series[name][one] })
		assert.LessOrEqual(t, len(now), 50, "new series of %s: %q", name, slices.Collect(maps.Keys(now))) // a seldom answer makes its own, a name of the clients would make hundreds
	}
	// What is closed takes a moment to be gone.
	within := func(after footprint, was footprint) bool {
		return after.files <= was.files+20 && after.gos <= was.gos+20
	}
	var after map[string]footprint
	eventually(t, func() bool {
		after = s.footprints(t)
		for name := range after {
			if !within(after[name], before[name]) {
				return false
			}
		}
		return true
	}, patience, 100*time.Millisecond, "goroutines and files, before: %+v, after: %+v", before, &after)
	for name, f := range after {
		t.Logf("%-8s %4.0f -> %4.0f MiB, %3.0f -> %3.0f goroutines, %3.0f -> %3.0f files", name,
			before[name].bytes/(1<<20), f.bytes/(1<<20), before[name].gos, f.gos, before[name].files, f.files)
		assert.Less(t, f.bytes-before[name].bytes, float64(soakGrowth), "%s has grown", name)
		if *soakFor < slopesFrom {
			continue
		}
		tail := taken[name][len(taken[name])/2:]
		bytes := slope(tail, func(f footprint) float64 { return f.bytes })
		gos := slope(tail, func(f footprint) float64 { return f.gos })
		files := slope(tail, func(f footprint) float64 { return f.files })
		t.Logf("%-8s by the hour %+.0f MiB, %+.0f goroutines, %+.0f files", name, bytes/(1<<20), gos, files)
		assert.Less(t, bytes, float64(slopeBytes), "%s grows", name)
		assert.Less(t, gos, float64(slopeGoroutines), "%s keeps goroutines", name)
		assert.Less(t, files, float64(slopeFiles), "%s keeps files open", name)
	}
}

// soak sends the ith request of a mixed load; each names a user agent of its own.
// It reports false for one that is refused because the store does not answer, as
// happens on a crowded machine.
func (c *caller) soak(t *testing.T, i int) bool {
	a := ask{api: streamAPIs[i%len(streamAPIs)], model: []string{"only-a", "only-tlsa"}[i/3%2], stream: i%2 == 0, nonce: newNonce()}
	want := http.StatusOK
	leaves := false
	switch i % 10 {
	case 0, 1:
		stranger := *c
		stranger.secret, want = domain.KeyPrefix+strings.ReplaceAll(newNonce(), "-", ""), http.StatusUnauthorized
		c = &stranger
	case 2, 3:
		a.model, want = newNonce(), http.StatusNotFound
	case 4:
		resp, err := c.http.Get(c.s.ready.BaseURL + "/v1/" + newNonce()) //nolint:noctx // the URL is the test's own
		if assert.NoError(t, err) {
			_ = resp.Body.Close()
			assert.GreaterOrEqual(t, resp.StatusCode, http.StatusBadRequest)
		}
		return true
	case 5:
		a.script, want = `{"status":400}`, http.StatusBadRequest
	case 6:
		a.stream, a.script, leaves = true, `{"count":40,"delay_between_ms":20}`, true
	}
	l, err := c.open(t.Context(), a)
	if !assert.NoError(t, err) {
		return true
	}
	if leaves && l.StatusCode == http.StatusOK {
		_, err = l.event()
		assert.NoError(t, err)
		l.quit()
		return true
	}
	body, err := l.rest()
	assert.NoError(t, err)
	if l.StatusCode == http.StatusServiceUnavailable {
		return false
	}
	assert.Equal(t, want, l.StatusCode, "%+v: %s", a, body)
	return true
}

// series are those of the services' and Envoy's metrics.
func (s *stack) series(t testing.TB) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	urls := map[string]string{"envoy": s.ready.EnvoyAdminURL + "/stats/prometheus"}
	for _, name := range soakServices {
		urls[name] = s.ready.Services[name].MetricsURL
	}
	for name, url := range urls {
		all[name] = map[string]bool{}
		answer, err := http.Get(url) //nolint:noctx // the URL is the test's own
		require.NoError(t, err)
		lines := bufio.NewScanner(answer.Body)
		for lines.Scan() {
			metric, _, _ := strings.Cut(lines.Text(), "{")
			if metric == "" || metric[0] == '#' || name == "envoy" && ofHistogram(metric) {
				continue
			}
			one := lines.Text()
			all[name][one[:strings.LastIndexByte(one, ' ')]] = true
		}
		require.NoError(t, lines.Err())
		_ = answer.Body.Close()
	}
	return all
}

// ofHistogram: Envoy makes the series of a histogram when it is first used, such
// as that of a connection's length when the first one ends, minutes after a test began.
func ofHistogram(metric string) bool {
	return strings.HasSuffix(metric, "_bucket") || strings.HasSuffix(metric, "_sum") || strings.HasSuffix(metric, "_count")
}

// footprints is what each process of the region holds.
func (s *stack) footprints(t testing.TB) map[string]footprint {
	t.Helper()
	all := map[string]footprint{}
	for _, name := range append([]string{"envoy"}, soakServices...) {
		pid := s.ready.PIDs[name]
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		require.NoError(t, err)
		u := footprint{at: time.Now(), bytes: float64(residentBytes(t, pid)), files: float64(len(files))}
		if name != "envoy" {
			u.gos = s.metric(t, name, "go_goroutines")
		}
		all[name] = u
	}
	return all
}

// slope is that of the least squares, by the hour; 0 for less than three samples.
func slope(samples []footprint, of func(footprint) float64) float64 {
	if len(samples) < 3 {
		return 0
	}
	var x, y, xx, xy float64
	n := float64(len(samples))
	for _, u := range samples {
		hours := u.at.Sub(samples[0].at).Hours()
		x, y, xx, xy = x+hours, y+of(u), xx+hours*hours, xy+hours*of(u)
	}
	return (n*xy - x*y) / (n*xx - x*x)
}
