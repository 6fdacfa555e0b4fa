package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	liveStreams   = flag.Int("streams", 4000, "streams that BenchmarkStreams holds at once")
	liveFor       = flag.Duration("for", time.Minute, "how long BenchmarkStreams holds them")
	streamsReport = flag.String("report-streams", "../../docs/benchmarks-streams.md", "file that BenchmarkStreams writes; empty writes none")
)

const (
	// liveEvery is between two chunks of a stream.
	liveEvery = time.Second
	// liveRate is how many streams are begun in a second.
	liveRate = 400
	// liveCalm passes between the last beginning and the first figure.
	liveCalm = 3 * time.Second
	// sampleEvery is between two looks at the memory.
	sampleEvery = time.Second
)

// A way is a path that the streams of one measurement take.
type way struct{ name, model string }

var ways = []way{
	{bareTarget, "bench"},
	{"Keyway", "bench"},
	{"with heartbeats", "beating"},
	{"relay", "thinking"},
	{"relay with heartbeats", "thinking-beating"},
}

// held is what a measurement of live streams showed. Memory is in bytes.
type held struct {
	way string
	// envoy and extproc are the memory of a process for one stream, when all
	// had begun, and what it grew for one until the end; live is what of
	// extproc's a collection leaves.
	envoy, envoyGrowth     float64
	extproc, extprocGrowth float64
	live, liveGrowth       float64
	// cpu is in cores, by process; envoyCPU is that of the way's own Envoy,
	// gatewayCPU of all that stands between client and provider.
	cpu                  map[string]float64
	envoyCPU, gatewayCPU float64

	chunks   int
	beats    float64
	p50, p99 time.Duration
	others   float64
}

// BenchmarkStreams holds many slow streams and writes what they cost. Every way
// has a region of its own, so that none inherits memory of another.
func BenchmarkStreams(b *testing.B) {
	var results []held
	for _, w := range ways {
		b.Run(strings.ReplaceAll(w.name, " ", "_"), func(b *testing.B) {
			h := holdStreams(b, w)
			b.Logf("%+v", h)
			results = append(results, h)
		})
		if b.Failed() {
			return
		}
	}
	text := writeStreams(results)
	b.Log("\n" + text)
	if *streamsReport != "" {
		require.NoError(b, os.WriteFile(*streamsReport, []byte(text), 0o644))
	}
}

// holdStreams begins the streams one after the other, holds them, and sees each
// end whole.
func holdStreams(b *testing.B, w way) held {
	b.Helper()
	r := startRegion(b)
	addr, envoy := r.ready.BaseURL[len("http://"):], "envoy"
	if w.name == bareTarget {
		addr, envoy = r.bare, procBare
	}
	key := r.key(b, "usual", "rates")
	// What a process needs for its first streams is none of theirs.
	_, err := stream(newTarget(w.name, addr, key, w.model), 2*crowd, streamEvery)
	require.NoError(b, err)
	liveBefore := r.live(b)
	envoyBefore, extprocBefore := resident(b, r.pids[envoy]), resident(b, r.pids["extproc"])

	ramp := time.Duration(*liveStreams) * time.Second / liveRate
	begun := time.Now()
	from := begun.Add(ramp + liveCalm)
	until := from.Add(*liveFor)
	var (
		wg    sync.WaitGroup
		parts = make([]slow, *liveStreams)
		errs  = make([]error, *liveStreams)
		count atomic.Int64
	)
	for i := range *liveStreams {
		wg.Go(func() {
			time.Sleep(time.Until(begun.Add(time.Duration(i) * time.Second / liveRate)))
			parts[i], errs[i] = holdOne(addr, key, w.model, from, until, &count)
		})
	}
	time.Sleep(time.Until(from))
	require.Equal(b, int64(*liveStreams), count.Load(), "streams that live: %v", errors.Join(errs...))
	liveFirst := r.live(b)
	others := r.watchOthers(b)
	cpuBefore, err := r.cpu()
	require.NoError(b, err)
	var envoys, extprocs []float64
	for time.Now().Before(until) {
		envoys, extprocs = append(envoys, resident(b, r.pids[envoy])), append(extprocs, resident(b, r.pids["extproc"]))
		time.Sleep(sampleEvery)
	}
	cpuAfter, err := r.cpu()
	require.NoError(b, err)
	h := held{way: w.name, cpu: map[string]float64{}, others: others()}
	h.live, h.liveGrowth = (liveFirst-liveBefore)/float64(*liveStreams), (r.live(b)-liveFirst)/float64(*liveStreams)
	for name := range cpuAfter {
		h.cpu[name] = (cpuAfter[name] - cpuBefore[name]) / liveFor.Seconds()
	}
	h.envoyCPU, h.gatewayCPU = h.cpu[envoy], h.cpu[envoy]
	if envoy != procBare {
		for _, name := range services[1:] {
			h.gatewayCPU += h.cpu[name]
		}
	}
	wg.Wait()
	require.NoError(b, errors.Join(errs...))
	h.envoy, h.envoyGrowth = perStream(envoys, envoyBefore)
	h.extproc, h.extprocGrowth = perStream(extprocs, extprocBefore)
	var delays []time.Duration
	for _, p := range parts {
		delays = append(delays, p.delays...)
		h.beats += float64(p.beats) / liveFor.Seconds()
	}
	h.chunks = len(delays)
	h.p50, h.p99 = quantiles(delays)
	return h
}

// perStream is the median of the first tenth of the samples beyond before, and
// how far that of the last tenth is from it, for one stream.
func perStream(samples []float64, before float64) (first, growth float64) {
	tenth := max(len(samples)/10, 1)
	begin := middle(samples[:tenth])
	end := middle(samples[len(samples)-tenth:])
	return (begin - before) / float64(*liveStreams), (end - begin) / float64(*liveStreams)
}

// slow is what one stream showed between the first figure and the last.
type slow struct {
	delays []time.Duration
	beats  int
}

// holdOne runs a stream that ends of itself when until has passed. It counts
// itself in once its first chunk has come.
func holdOne(addr, key, model string, from, until time.Time, count *atomic.Int64) (s slow, err error) {
	c, err := dial(addr)
	if err != nil {
		return s, err
	}
	defer c.conn.Close()
	chunks := int(time.Until(until)/liveEvery) + 2
	begun := false
	err = c.events(rhythmic(addr, key, model, liveEvery, chunks), chunks, func(e event) {
		counts := e.at.After(from) && e.at.Before(until)
		switch {
		case e.beat && counts:
			s.beats++
			return
		case e.sent.IsZero():
			return
		}
		if !begun {
			begun = true
			count.Add(1)
		}
		if counts {
			s.delays = append(s.delays, e.at.Sub(e.sent))
		}
	})
	return s, err
}

// live is what extproc's heap and stacks hold after two collections, in bytes: what
// lies in pools goes with the second.
func (r *region) live(t testing.TB) float64 {
	t.Helper()
	metrics := r.ready.Services["extproc"].MetricsURL
	base, _, _ := strings.Cut(metrics, "/metrics")
	for range 2 {
		get(t, base+"/debug/pprof/heap?gc=1")
	}
	text := get(t, metrics)
	var sum float64
	for _, name := range []string{"go_memstats_heap_alloc_bytes", "go_memstats_stack_inuse_bytes"} {
		_, line, ok := strings.Cut(text, "\n"+name+" ")
		require.True(t, ok, name)
		value, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
		require.NoError(t, err)
		sum += value
	}
	return sum
}

func get(t testing.TB, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, url)
	return string(raw)
}

// resident is what a process holds in memory, in bytes.
func resident(t testing.TB, pid int) float64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, line, ok := strings.Cut(string(raw), "VmRSS:")
	require.True(t, ok, "%s", raw)
	kib, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
	require.NoError(t, err)
	return kib * 1024
}
