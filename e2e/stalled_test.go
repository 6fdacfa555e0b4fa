package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
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
	stalledFrame   = 64 << 10
	// stalledAnswer is what each of them does not read.
	stalledAnswer = 16 << 20
	// stalledEnvoy is what one may cost Envoy, stalledHeap what it may keep
	// alive in extproc, in bytes.
	stalledEnvoy = 1 << 20
	stalledHeap  = 1536 << 10
)

// Readers that stop cost little memory, their providers are held up, and others
// do not notice them.
func TestStalledReadersAreBounded(t *testing.T) {
	s := ownStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	const head, tail = `data: {"choices":[{"index":0,"delta":{"content":"`, `"},"finish_reason":null}]}` + "\n\n"
	frame := fakeprovider.Bytes(head + strings.Repeat("x", stalledFrame-len(head)-len(tail)) + tail)
	chunks := make([]fakeprovider.Bytes, stalledAnswer/stalledFrame)
	for i := range chunks {
		chunks[i] = frame
	}
	s.provider.Face("a").Script(fakeprovider.Script{Chunks: chunks})
	for range 20 {
		require.Equal(t, http.StatusOK, c.ask(t, ask{model: "only-b", stream: true}).StatusCode)
	}
	envoyBefore, heapBefore := residentBytes(t, s.ready.PIDs["envoy"]), s.liveHeap(t)

	nonce := newNonce()
	conns := make([]net.Conn, stalledReaders)
	for i := range conns {
		conns[i] = c.stalled(t, ask{model: "only-a", stream: true, nonce: nonce})
	}
	sent := s.awaitStall(t, nonce)
	envoy := (residentBytes(t, s.ready.PIDs["envoy"]) - envoyBefore) / stalledReaders
	heap := (s.liveHeap(t) - heapBefore) / stalledReaders
	t.Logf("a stalled reader costs Envoy %d KiB and extproc %d KiB, of %d MiB in all; its provider was held up after %d KiB of %d",
		envoy>>10, heap>>10, residentBytes(t, s.ready.PIDs["extproc"])>>20, sent>>10/stalledReaders, stalledAnswer>>10)
	assert.Less(t, envoy, int64(stalledEnvoy))
	assert.Less(t, heap, int64(stalledHeap))
	assert.Less(t, sent, int64(stalledReaders)*stalledAnswer, "the providers went on sending")

	// Others are served meanwhile, over connections of both kinds.
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

	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	rows := c.requireOneRowEach(t, 20+stalledReaders+40)
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: 60, domain.OutcomeCancelled: stalledReaders}, counted(rows))
	c.requireIdle(t, "a", "b")
	c.requireBalanced(t, rows)
	s.requireNothingOpen(t)
}

// liveHeap is what extproc had alive at its last collection: it collects when
// its heap is five times as large.
func (s *stack) liveHeap(t testing.TB) int64 {
	t.Helper()
	answer, err := http.Get(s.ready.Services["extproc"].MetricsURL) //nolint:noctx // the URL is the test's own
	require.NoError(t, err)
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	_, line, ok := strings.Cut(string(raw), "\ngo_memstats_next_gc_bytes ")
	require.True(t, ok, "%s", raw)
	next, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
	require.NoError(t, err)
	return int64(next) / 5
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

// awaitStall waits until no provider of the requests with a nonce sends any
// more, and returns what they have sent.
func (s *stack) awaitStall(t testing.TB, nonce string) int64 {
	t.Helper()
	var last int64
	still := 0
	eventually(t, func() bool {
		var sent int64
		begun := s.attempts(nonce)
		for _, r := range begun {
			sent += r.SentBytes
		}
		if sent != last || len(begun) < stalledReaders {
			still = 0
		}
		last = sent
		still++
		return still > 20
	}, 60*time.Second, 50*time.Millisecond, "the providers still send")
	return last
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
