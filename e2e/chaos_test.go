package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/ledger"
)

// chaosSeed repeats the choices of an earlier run. The machine's timing is
// part of a run too, so it repeats what was tried, not to the microsecond when.
var chaosSeed = flag.Uint64("chaos-seed", 0, "seed of TestChaos; 0 takes one from the clock")

// chaosClients is how many requests run at once: enough to keep two cores busy
// while one of the services stands still.
const chaosClients = 28

// chaos is one run: clients of every temper, services that stop and die, and a
// judge that looks at every answer.
type chaos struct {
	stack *stack
	seed  uint64
	key   string
	keyID string
	// envoyPID is that of the start; the run is lost when it changes.
	envoyPID int
	// faults are what the test did, slow is what the machine did to the store.
	faults  *faultLog
	slow    *faultLog
	judge   *judge
	clients *clients
	// heavy rations what costs the machine tens of milliseconds each.
	heavy *ration
}

// TestChaos: whatever clients, providers and services do, Envoy lives, no
// answer is wrong, nothing hangs, nothing is left, and the books are right.
// It guards the two rules of ARCHITECTURE §1.
func TestChaos(t *testing.T) {
	c := newChaos(t)
	t.Logf("seed %d, %s, %d clients", c.seed, *chaosFor, chaosClients)
	ctx, cancel := context.WithTimeout(t.Context(), *chaosFor)
	defer cancel()
	c.run(ctx, cancel)
	c.faults.report(t)
	t.Logf("the store was slow by itself %d times", len(c.slow.windows))
	c.judge.report(t)
	require.NoError(t, c.envoyAlive())
	t.Logf("access log: %s", strings.ReplaceAll(c.stack.envoyStats(t, "logs_(dropped|written)"), "\n", " "))
	ended := time.Now()
	c.requireNothingRuns(t)
	t.Logf("streams at rest after %s", time.Since(ended).Round(time.Millisecond))
	c.requireNothingHeld(t)
	t.Logf("store at rest after %s", time.Since(ended).Round(time.Millisecond))
	c.requireBooksRight(t)
}

func newChaos(t *testing.T) *chaos {
	c := &chaos{stack: ownStack(t), seed: *chaosSeed, faults: &faultLog{}, slow: &faultLog{}, heavy: &ration{every: 500 * time.Millisecond}}
	if c.seed == 0 {
		c.seed = uint64(time.Now().UnixNano())
	}
	c.key, c.keyID = c.stack.key(t, "--identity", "wide", "--policy", "wide")
	c.envoyPID = c.stack.ready.PIDs["envoy"]
	require.NotZero(t, c.envoyPID)
	c.judge = newJudge(c)
	c.clients = newClients()
	t.Cleanup(c.clients.close)
	return c
}

// run lets everything loose until ctx ends, then waits for what still runs.
func (c *chaos) run(ctx context.Context, cancel context.CancelFunc) {
	var players, judging sync.WaitGroup
	judged := make(chan struct{})
	judging.Go(func() { c.judge.run(judged) })
	for n := range chaosClients {
		players.Go(func() { c.play(ctx, rand.New(rand.NewPCG(c.seed, uint64(n)))) })
	}
	players.Go(func() { c.breakServices(ctx, rand.New(rand.NewPCG(c.seed, 1000))) })
	players.Go(func() { c.vary(ctx, rand.New(rand.NewPCG(c.seed, 1001))) })
	players.Go(func() { c.watchStore(ctx) })
	players.Go(func() { // Watches over Envoy.
		ticker := time.NewTicker(500 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := c.envoyAlive(); err != nil {
				c.judge.fail("%v", err)
				cancel() // What follows would be another Envoy's doing.
				return
			}
		}
	})
	players.Wait()
	close(judged)
	judging.Wait()
}

// envoyAlive fails when Envoy is not the process that it was at the start:
// `keyway up` starts a dead one again.
func (c *chaos) envoyAlive() error {
	r, err := c.readyNow()
	if err != nil {
		return err
	}
	state, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(c.envoyPID), "stat"))
	if r.PIDs["envoy"] != c.envoyPID || err != nil || strings.Contains(string(state), ") Z ") {
		return fmt.Errorf("Envoy died: its process was %d, now it is %d (%w)", c.envoyPID, r.PIDs["envoy"], err)
	}
	return nil
}

// readyNow reads ready.json; it changes when a service was started again.
func (c *chaos) readyNow() (ready, error) {
	fresh := &stack{dir: c.stack.dir}
	err := fresh.readReady()
	return fresh.ready, err
}

// settleLimit is how long after the last request everything must be back at rest.
const settleLimit = 10 * lease

// requireNothingRuns: no stream is left in Envoy, none at the provider.
func (c *chaos) requireNothingRuns(t *testing.T) {
	t.Helper()
	c.clients.close()
	var busy []string
	if !poll(settleLimit, func() bool { busy = c.activeStreams(t); return len(busy) == 0 && c.stack.provider.Open() == 0 }) {
		t.Errorf("still running: in Envoy %q, at the provider %d", busy, c.stack.provider.Open())
	}
}

// activeStreams lists the gauges of running requests that are not zero,
// without those of the control plane and the access log, whose streams stay.
func (c *chaos) activeStreams(t *testing.T) []string {
	t.Helper()
	raw := c.stack.envoyStats(t, "(downstream|upstream)_rq_(active|pending_active)$")
	require.Contains(t, raw, "http.keyway_ingress.downstream_rq_active: ")
	require.Contains(t, raw, "cluster.ch_tlsa.upstream_rq_active: ")
	var busy []string
	for line := range strings.Lines(raw) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "http.admin.") || strings.HasPrefix(line, "cluster.keyway_xds.") || strings.HasPrefix(line, "cluster.keyway_als.") {
			continue
		}
		if !strings.HasSuffix(line, ": 0") {
			busy = append(busy, line)
		}
	}
	return busy
}

// envoyStats are Envoy's stats whose names match a pattern, a line each.
func (s *stack) envoyStats(t testing.TB, pattern string) string {
	t.Helper()
	resp, err := http.Get(s.ready.EnvoyAdminURL + "/stats?filter=" + pattern)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(raw)
}

// requireNothingHeld: no reservation is open, no lease and no slot is held,
// nothing waits on its way to the ledger.
func (c *chaos) requireNothingHeld(t *testing.T) {
	t.Helper()
	var (
		stats domain.StoreStats
		held  map[string]int64
	)
	rest := poll(settleLimit, func() bool {
		var err error
		stats, err = c.stack.store.Stats(t.Context())
		require.NoError(t, err)
		held = c.held(t)
		return stats.OpenReservations == 0 && stats.OutboxLen == 0 && len(held) == 0
	})
	if !rest {
		t.Errorf("still held %s after the end: %+v, %v", settleLimit, stats, held)
	}
}

// held are the leases and slots that live.
func (c *chaos) held(t *testing.T) map[string]int64 {
	t.Helper()
	counters, err := c.stack.store.Counters(t.Context(), "wide", append(slices.Clone(faceNames), extraChannel)...)
	require.NoError(t, err)
	for name := range counters {
		if !strings.Contains(name, ":inflight:") && !strings.Contains(name, ":slot:") {
			delete(counters, name)
		}
	}
	return counters
}

// requireBooksRight: every request that reached a provider or was answered has
// exactly one row, each whole answer costs what its provider said, and the
// budget counters are the ledger's sums.
func (c *chaos) requireBooksRight(t *testing.T) {
	t.Helper()
	rows := map[string]domain.UsageRecord{}
	var sum int64
	err := c.stack.ledger.Records(t.Context(), ledger.Query{KeyID: c.keyID}, func(r domain.UsageRecord) error {
		if _, twice := rows[r.RequestID]; twice {
			t.Errorf("request %s has two rows", r.RequestID)
		}
		rows[r.RequestID] = r
		sum += r.CostMicros
		return nil
	})
	require.NoError(t, err)
	missing := 0
	for id := range c.judge.reached {
		if _, ok := rows[id]; !ok {
			missing++
			t.Logf("no row for %s", id)
		}
	}
	require.Zero(t, missing, "requests that reached a provider and have no row")
	wrong := 0
	for id, want := range c.judge.charged {
		r := rows[id]
		if r.CostMicros != want || r.Outcome != domain.OutcomeSuccess || r.Source != domain.SourceUpstream {
			wrong++
			t.Logf("%s should cost %d: %+v", id, want, r)
		}
	}
	require.Zero(t, wrong, "whole answers with a wrong row")
	counters, err := c.stack.store.Counters(t.Context(), "wide")
	require.NoError(t, err)
	budgets := map[string]int64{}
	for name, value := range counters {
		_, kind, ok := strings.Cut(name, ":budget:")
		if !ok || !strings.Contains(name, ":"+c.keyID+":") && !strings.Contains(name, ":wide:") {
			continue
		}
		parts := strings.Split(kind, ":") // day:key:ID:WINDOW
		budgets[parts[0]+" of "+parts[1]] += value
	}
	t.Logf("%d rows, %d of them exact answers, money %d", len(rows), len(c.judge.charged), sum)
	require.Equal(t, map[string]int64{
		"day of key": sum, "month of key": sum, "day of identity": sum, "month of identity": sum,
	}, budgets)
}

// poll asks done until it is true or the limit has passed.
func poll(limit time.Duration, done func() bool) bool {
	for deadline := time.Now().Add(limit); ; {
		if done() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
}
