package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// region is the machine under measurement: a provider, a bare Envoy and a
// whole `keyway up`.
type region struct {
	dir    string
	binary string
	ready  struct {
		BaseURL       string         `json:"base_url"`
		EnvoyAdminURL string         `json:"envoy_admin_url"`
		RedisURL      string         `json:"redis_url"`
		PIDs          map[string]int `json:"pids"`
		Services      map[string]struct {
			MetricsURL string `json:"metrics_url"`
		} `json:"services"`
	}
	upstream string
	bare     string
	// pids are the processes whose processor time counts, by name.
	pids map[string]int
}

// The names of processes beside those of `keyway up`.
const (
	procBare     = "bare envoy"
	procProvider = "provider"
	procLoad     = "load generator"
)

func startRegion(t testing.TB) *region {
	t.Helper()
	r := &region{dir: t.TempDir(), pids: map[string]int{procLoad: os.Getpid()}}
	r.binary = filepath.Join(r.dir, "keyway")
	out, err := exec.Command("go", "build", "-o", r.binary, "keyway/cmd/keyway").CombinedOutput()
	require.NoError(t, err, "%s", out)
	r.startUpstream(t)
	r.startKeyway(t)
	r.startBare(t)
	return r
}

// start runs a process until the benchmark ends.
func (r *region) start(t testing.TB, cmd *exec.Cmd, grace time.Duration) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ends is of no interest
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(grace):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
		}
		if t.Failed() {
			t.Logf("%s printed:\n%s", filepath.Base(cmd.Path), out.String())
		}
	})
}

func (r *region) startUpstream(t testing.TB) {
	t.Helper()
	r.upstream = freeAddr(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), upstreamEnv+"="+r.upstream)
	r.start(t, cmd, 0)
	r.pids[procProvider] = cmd.Process.Pid
	waitFor(t, func() bool { return accepts(r.upstream) })
}

// startKeyway runs a region with every kind of limit: rates on keys and money
// on identities, or all of them on both.
func (r *region) startKeyway(t testing.TB) {
	t.Helper()
	_, port, err := net.SplitHostPort(freeAddr(t))
	require.NoError(t, err)
	file := filepath.Join(r.dir, "config.yaml")
	secret := filepath.Join(r.dir, "sk")
	require.NoError(t, os.WriteFile(secret, []byte("sk-bench\n"), 0o600))
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, regionConfig, port, r.upstream, secret), 0o600))
	parts, err := filepath.Abs("../../.parts")
	require.NoError(t, err)
	dir := filepath.Join(r.dir, "up")
	cmd := exec.Command(r.binary, "up", "--dir", dir, "--config", file, "--parts-dir", parts, "--stop-grace", "500ms",
		"--admin-port", "0", "--provider-port", "0", "--envoy-admin-port", "0", "--store-port", "0",
		"--authz-port", "0", "--extproc-port", "0", "--worker-port", "0")
	cmd.Env = append(os.Environ(), "KEYWAY_PPROF=true")
	r.start(t, cmd, 40*time.Second)
	waitFor(t, func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "ready.json"))
		return err == nil && json.Unmarshal(raw, &r.ready) == nil
	})
	for _, name := range services {
		r.pids[name] = r.ready.PIDs[name]
		require.NotZero(t, r.pids[name], name)
	}
}

// services are the processes of `keyway up` that a request may cost something.
var services = []string{"envoy", "authz", "extproc", "store", "worker", "xds"}

const regionConfig = `
region: bench
listener: {address: 127.0.0.1, port: %[1]s}
providers:
  - {name: p, dialects: [openai], base_url: "http://%[2]s/v1"}
channels:
  - {name: c, provider: p, secret: "file:%[3]s", slots: 5000, models: [{name: bench}, {name: renamed, upstream: bench-upstream}, {name: beating}, {name: thinking}, {name: thinking-beating}, {name: soon-beating}, {name: thinking-soon-beating}]}
  - {name: n, provider: p, secret: "file:%[3]s", egress: native, slots: 5000, models: [{name: native, upstream: native}, {name: native-renamed, upstream: bench-upstream}]}
models:
  - {name: bench, context_window: 200000, max_output: 4096, prices: [{version: v1, input: "2.5", output: "10"}]}
  - {name: beating, heartbeat: 0.6s, context_window: 200000, max_output: 4096, prices: [{version: v1, input: "2.5", output: "10"}]}
  - {name: thinking, early_heartbeat: true, context_window: 200000, max_output: 4096, prices: [{version: v1, input: "2.5", output: "10"}]}
  - {name: thinking-beating, heartbeat: 0.6s, early_heartbeat: true, context_window: 200000, max_output: 4096, prices: [{version: v1, input: "2.5", output: "10"}]}
  - {name: soon-beating, heartbeat: 0.1s, context_window: 200000, max_output: 4096, prices: [{version: v1, input: "2.5", output: "10"}]}
  - {name: thinking-soon-beating, heartbeat: 0.1s, early_heartbeat: true, context_window: 200000, max_output: 4096, prices: [{version: v1, input: "2.5", output: "10"}]}
  - {name: renamed, context_window: 200000, max_output: 4096, prices: [{version: v1, input: "2.5", output: "10"}]}
  - {name: native, context_window: 200000, max_output: 4096, prices: [{version: v1, input: "2.5", output: "10"}]}
  - {name: native-renamed, context_window: 200000, max_output: 4096, prices: [{version: v1, input: "2.5", output: "10"}]}
policies:
  - {name: all, rpm: 10000000, tpm: 1000000000, in_flight: 100000, budget_day: "100000000", budget_month: "100000000"}
  - {name: rates, rpm: 10000000, tpm: 1000000000, in_flight: 100000}
  - {name: money, budget_day: "100000000", budget_month: "100000000"}
identities:
  - {id: usual, policy: money}
  - {id: full, policy: all}
`

// key makes a virtual key of an identity with a policy of its own.
func (r *region) key(t testing.TB, identity, policy string) string {
	t.Helper()
	out, err := exec.Command(r.binary, "key", "create", "-o", "json", "--store", r.ready.RedisURL,
		"--identity", identity, "--policy", policy).Output()
	require.NoError(t, err)
	var made struct {
		Secret string `json:"secret"`
		Key    string `json:"key"`
	}
	require.NoError(t, json.Unmarshal(out, &made))
	require.NotEmpty(t, made.Secret+made.Key, "%s", out)
	return made.Secret + made.Key
}

// startBare runs the same Envoy with as many workers and nothing in it but a
// listener and the way to the provider.
func (r *region) startBare(t testing.TB) {
	t.Helper()
	r.bare = freeAddr(t)
	_, port, err := net.SplitHostPort(r.bare)
	require.NoError(t, err)
	_, upstreamPort, err := net.SplitHostPort(r.upstream)
	require.NoError(t, err)
	file := filepath.Join(r.dir, "bare.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, bareConfig, port, upstreamPort), 0o600))
	proc := fmt.Sprintf("/proc/%d/", r.ready.PIDs["envoy"])
	binary, err := os.Readlink(proc + "exe")
	require.NoError(t, err)
	line, err := os.ReadFile(proc + "cmdline")
	require.NoError(t, err)
	_, workers, ok := strings.Cut(string(line), "--concurrency\x00")
	require.True(t, ok)
	workers, _, _ = strings.Cut(workers, "\x00")
	cmd := exec.Command(binary, "--config-path", file, "--log-level", "warning", "--concurrency", workers, "--disable-hot-restart")
	r.start(t, cmd, 5*time.Second)
	r.pids[procBare] = cmd.Process.Pid
	waitFor(t, func() bool { return accepts(r.bare) })
}

const bareConfig = `
static_resources:
  listeners:
  - name: bare
    address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    per_connection_buffer_limit_bytes: 65536
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bare
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: bare
              domains: ["*"]
              routes:
              - match: {prefix: "/"}
                route: {cluster: provider, timeout: 0s}
  clusters:
  - name: provider
    connect_timeout: 2s
    per_connection_buffer_limit_bytes: 65536
    circuit_breakers: {thresholds: [{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}]}
    load_assignment:
      cluster_name: provider
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}
`

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func accepts(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close() // it was opened only to see
	return true
}

func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "it took too long to start")
	}
}

// ticks is the kernel's unit of processor time, a hundredth of a second.
const ticks = 100

// cpu reads the processor time of every process since its start, in seconds.
func (r *region) cpu() (map[string]float64, error) {
	out := make(map[string]float64, len(r.pids))
	var errs []error
	for name, pid := range r.pids {
		raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// The name may hold spaces; the fields behind it count from 3 (state).
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		const utime, stime = 14 - 3, 15 - 3
		user, err1 := strconv.ParseFloat(fields[utime], 64)
		system, err2 := strconv.ParseFloat(fields[stime], 64)
		errs = append(errs, err1, err2)
		out[name] = (user + system) / ticks
	}
	return out, errors.Join(errs...)
}

// watchOthers begins to watch over the machine; the function it returns says
// what share of it, 0 to 1, processes that are not ours took since then.
func (r *region) watchOthers(t testing.TB) func() float64 {
	t.Helper()
	look := func() (busy, all, own float64) {
		raw, err := os.ReadFile("/proc/stat")
		require.NoError(t, err)
		line, _, _ := strings.Cut(string(raw), "\n")
		for i, field := range strings.Fields(line)[1:9] { // user nice system idle iowait irq softirq steal
			v, err := strconv.ParseFloat(field, 64)
			require.NoError(t, err)
			all += v
			if i != 3 && i != 4 {
				busy += v
			}
		}
		ours, err := r.cpu()
		require.NoError(t, err)
		for _, v := range ours {
			own += v * ticks
		}
		return busy, all, own
	}
	busy, all, own := look()
	return func() float64 {
		nowBusy, nowAll, nowOwn := look()
		return max(0, (nowBusy-busy)-(nowOwn-own)) / (nowAll - all)
	}
}
