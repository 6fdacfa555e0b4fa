package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

const (
	stalledReaders = 200
	// stalledAnswer is what each of them does not read, or reads slowly.
	stalledAnswer = 16 << 20
	stalledFrame  = 64 << 10
	// slowFrame is what a provider sends every slowPauseMs, far more than slowRead,
	// which a slow reader takes each slowEvery: 1 KB/s.
	slowFrame   = 2 << 10
	slowPauseMs = 50
	slowRead    = 100
	slowEvery   = 100 * time.Millisecond
)

// stalledLimits are for one reader, in bytes.
type stalledLimits struct {
	// buffered is what of the answer may be in Envoy and extproc.
	buffered int64
	// envoy is what Envoy's memory may grow by, heap what extproc may keep alive.
	envoy, heap int64
}

// Readers that stop, or nearly, cost little memory, their providers are held
// up, and others do not notice them.
func TestStalledReadersAreBounded(t *testing.T) {
	s := ownStack(t)
	full := fakeprovider.Script{Chunks: wordFrames(stalledFrame)}
	slow := fakeprovider.Script{Chunks: wordFrames(slowFrame), DelayBetweenMs: slowPauseMs}
	// A provider that sends as fast as the loopback takes it fills all windows on
	// the way, of which HTTP/2 has none below 64 KiB, before anyone knows that the
	// reader does not read; the busier the machine, the fuller.
	burst := stalledLimits{buffered: 1 << 20, envoy: 2 << 20, heap: 512 << 10}
	// At the pace of a model the promise of SPEC §4 holds with room to spare.
	paced := stalledLimits{buffered: 128 << 10, envoy: 384 << 10, heap: 128 << 10}
	// The relay has two windows of HTTP/2 that fill at any pace.
	relayed := stalledLimits{buffered: 256 << 10, envoy: 384 << 10, heap: 128 << 10}
	// The paced ones come first: Envoy keeps memory that it once had.
	for _, w := range []stalledWay{
		{name: "at 1 KB/s, of a provider at 40 KB/s", channel: "a", model: "only-a", script: slow, read: readSlowly, limits: paced},
		{name: "at 1 KB/s, over the relay", channel: "think-a", model: "think-a", script: slow, read: readSlowly, limits: relayed},
		{name: "that stopped, of a provider at full speed", channel: "a", model: "only-a", script: full, read: readNothing, limits: burst},
		{name: "that stopped, over the relay", channel: "think-a", model: "think-a", script: full, read: readNothing, limits: burst},
	} {
		t.Run(w.name, func(t *testing.T) { s.testStalled(t, w) })
	}
}

// stalledWay is an answer, its way, and who reads it how.
type stalledWay struct {
	name           string
	channel, model string
	script         fakeprovider.Script
	read           func(net.Conn)
	limits         stalledLimits
}

func (s *stack) testStalled(t *testing.T, w stalledWay) {
	c := s.caller(t, "wide", "--policy", "wide")
	s.provider.Face("a").Script(w.script)
	for range 20 {
		require.Equal(t, http.StatusOK, c.ask(t, ask{model: "only-b", stream: true}).StatusCode)
	}
	before := s.stalledUse(t, w.channel)
	nonce := newNonce()
	conns := make([]net.Conn, stalledReaders)
	for i := range conns {
		conns[i] = c.stalled(t, ask{model: w.model, stream: true, nonce: nonce})
		go w.read(conns[i])
	}
	s.awaitStall(t, w.channel, nonce)
	use := s.stalledUse(t, w.channel).less(before)
	t.Logf("a reader costs %d KiB of buffers, %d KiB of Envoy's memory and %d KiB alive in extproc, which has %d MiB in all",
		use.buffered>>10, use.envoy>>10, use.heap>>10, residentBytes(t, s.ready.PIDs["extproc"])>>20)
	assert.Less(t, use.buffered, w.limits.buffered)
	assert.Less(t, use.envoy, w.limits.envoy)
	assert.Less(t, use.heap, w.limits.heap)
	assert.Less(t, use.received, int64(2<<20), "the kernel takes what nobody reads")

	s.requireOthersServed(t, c)
	after := s.stalledUse(t, w.channel).less(before)
	t.Logf("and %d, %d and %d KiB after others were served", after.buffered>>10, after.envoy>>10, after.heap>>10)
	assert.Less(t, after.buffered, w.limits.buffered)
	assert.Less(t, after.envoy, w.limits.envoy)

	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	rows := c.requireOneRowEach(t, 20+stalledReaders+40)
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: 60, domain.OutcomeCancelled: stalledReaders}, counted(rows))
	c.requireIdle(t, w.channel, "b")
	c.requireBalanced(t, rows)
	s.requireNothingOpen(t)
}

// wordFrames is an answer in frames of one size.
func wordFrames(size int) []fakeprovider.Bytes {
	const head, tail = `data: {"choices":[{"index":0,"delta":{"content":"`, `"},"finish_reason":null}]}` + "\n\n"
	frame := fakeprovider.Bytes(head + strings.Repeat("x", size-len(head)-len(tail)) + tail)
	return slices.Repeat([]fakeprovider.Bytes{frame}, stalledAnswer/size)
}

func readNothing(net.Conn) {}

// readSlowly reads until its connection is closed.
func readSlowly(conn net.Conn) {
	var p [slowRead]byte
	for {
		if _, err := conn.Read(p[:]); err != nil {
			return
		}
		time.Sleep(slowEvery)
	}
}

// requireOthersServed asks over connections of both kinds.
func (s *stack) requireOthersServed(t *testing.T, c *caller) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var slowest time.Duration
	for i := range 40 {
		wg.Go(func() {
			begun := time.Now()
			got := c.over(eitherClient(i)).ask(t, ask{model: "only-b", stream: true})
			assert.Equal(t, http.StatusOK, got.StatusCode)
			mu.Lock()
			defer mu.Unlock()
			slowest = max(slowest, time.Since(begun))
		})
	}
	wg.Wait()
	t.Logf("the slowest of 40 others took %s", slowest.Round(time.Millisecond))
	assert.Less(t, slowest, 5*time.Second)
}

// stalledUse is what the readers of a channel use, for each of them, in bytes.
// received is what came of its answer; the rest is as in stalledLimits.
type stalledUse struct{ received, buffered, envoy, heap int64 }

func (s *stack) stalledUse(t testing.TB, channel string) stalledUse {
	t.Helper()
	heap := s.liveHeap(t)
	received := s.envoyCounter(t, bytesFrom(channel))
	passed := s.envoyCounter(t, bytesToClients)
	return stalledUse{
		received: received / stalledReaders,
		buffered: (received - passed) / stalledReaders,
		envoy:    residentBytes(t, s.ready.PIDs["envoy"]) / stalledReaders,
		heap:     heap / stalledReaders,
	}
}

func (u stalledUse) less(before stalledUse) stalledUse {
	return stalledUse{u.received - before.received, u.buffered - before.buffered, u.envoy - before.envoy, u.heap - before.heap}
}

const bytesToClients = "http.keyway_ingress.downstream_cx_tx_bytes_total"

func bytesFrom(channel string) string { return "cluster.ch_" + channel + ".upstream_cx_rx_bytes_total" }

func (s *stack) envoyCounter(t testing.TB, name string) int64 {
	t.Helper()
	stat := s.envoyStats(t, "^"+name+"$")
	value, err := strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(stat, name+": ")), 10, 64)
	require.NoError(t, err, "%s", stat)
	return value
}

// liveHeap is what collections leave of extproc's heap; a pool's buffers go with the second.
func (s *stack) liveHeap(t testing.TB) int64 {
	t.Helper()
	base, _, _ := strings.Cut(s.ready.Services["extproc"].MetricsURL, "/metrics")
	for range 2 {
		answer, err := http.Get(base + "/debug/pprof/heap?gc=1") //nolint:noctx // the URL is the test's own
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode)
	}
	return int64(s.metric(t, "extproc", "go_memstats_heap_alloc_bytes"))
}

// stalled sends a and reads nothing.
func (c *caller) stalled(t testing.TB, a ask) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.s.ready.BaseURL, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the test may have closed it
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
	a = a.withDefaults()
	body := a.body()
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: keyway\r\nAuthorization: Bearer %s\r\nUser-Agent: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		a.api.Path(), c.secret, a.nonce, len(body), body)
	require.NoError(t, err)
	return conn
}

// awaitStall waits until Envoy has begun all requests with a nonce, and for a
// while has taken and passed on next to nothing.
func (s *stack) awaitStall(t testing.TB, channel, nonce string) {
	t.Helper()
	const look, calmFor = 250 * time.Millisecond, 4
	var last int64
	calm := 0
	eventually(t, func() bool {
		moved := s.envoyCounter(t, bytesToClients) + s.envoyCounter(t, bytesFrom(channel))
		if moved-last < stalledReaders*slowFrame {
			calm++
		} else {
			calm = 0
		}
		last = moved
		return calm >= calmFor && len(s.attempts(nonce)) == stalledReaders
	}, 60*time.Second, look, "the readers are still being served")
}

// residentBytes is what a process holds in memory.
func residentBytes(t testing.TB, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, line, ok := strings.Cut(string(raw), "VmRSS:")
	require.True(t, ok, "%s", raw)
	kib, err := strconv.ParseInt(strings.Fields(line)[0], 10, 64)
	require.NoError(t, err)
	return kib << 10
}
