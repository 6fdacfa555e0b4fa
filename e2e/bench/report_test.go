package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// write makes the report.
func write(results, slowly map[string][]figures, profiles string) string {
	var out strings.Builder
	w := newTables(&out, targetNames, results)
	fmt.Fprintf(&out, "# Benchmarks\n\nWritten by `make bench`; do not edit the figures.\n\n%s\n",
		machine(slices.Concat(append(slices.Collect(maps.Values(slowly)), w.all...)...)))
	out.WriteString(howTaken)
	head, row, against := w.head, w.row, w.against
	out.WriteString("\n## Latency and throughput\n")
	head("", targetNames...)
	row("1 connection: requests/s", func(f figures) float64 { return f.aloneRate })
	row("1 connection: p50, ms", func(f figures) float64 { return ms(f.aloneP50) })
	row("1 connection: p99, ms", func(f figures) float64 { return ms(f.aloneP99) })
	row("16 connections: requests/s", func(f figures) float64 { return f.crowdRate })
	row("16 connections: p50, ms", func(f figures) float64 { return ms(f.crowdP50) })
	row("16 connections: p99, ms", func(f figures) float64 { return ms(f.crowdP99) })
	row("50 streams: first byte p50, ms", func(f figures) float64 { return ms(f.firstP50) })
	row("50 streams: first byte p99, ms", func(f figures) float64 { return ms(f.firstP99) })
	row("50 streams: chunk delay p50, ms", func(f figures) float64 { return ms(f.chunkP50) })
	row("50 streams: chunk delay p99, ms", func(f figures) float64 { return ms(f.chunkP99) })

	out.WriteString("\n## Processor time\n\nSeconds per 1 000 requests, 16 connections.\n")
	head("process", targetNames...)
	row("Envoy", func(f figures) float64 { return f.envoy })
	for _, name := range services[1:] {
		row(name, func(f figures) float64 { return f.cpu[name] })
	}
	row("**gateway**: all of the above", gatewayCPU)
	row(procProvider, func(f figures) float64 { return f.cpu[procProvider] })
	row(procLoad, func(f figures) float64 { return f.cpu[procLoad] })

	out.WriteString("\n## Against bare Envoy\n\nMedians of the ratios and differences of each round.\n")
	head("", append([]string{"aim"}, targetNames[1:]...)...)
	against("gateway's processor time, times bare Envoy's", "≤ 16", func(own, bare figures) float64 { return gatewayCPU(own) / gatewayCPU(bare) })
	against("requests/s at 16 connections, of bare Envoy's", "≥ 0.08", func(own, bare figures) float64 { return own.crowdRate / bare.crowdRate })
	against("added p50 at 1 connection, ms", "≤ 1.5", func(own, bare figures) float64 { return ms(own.aloneP50 - bare.aloneP50) })
	against("added time to the first byte at 50 streams, p50, ms", "", func(own, bare figures) float64 { return ms(own.firstP50 - bare.firstP50) })
	against("added time to the first byte at 50 streams, p99, ms", "", func(own, bare figures) float64 { return ms(own.firstP99 - bare.firstP99) })
	against("added delay of a chunk, p50, ms", "", func(own, bare figures) float64 { return ms(own.chunkP50 - bare.chunkP50) })
	against("added delay of a chunk, p99, ms", "", func(own, bare figures) float64 { return ms(own.chunkP99 - bare.chunkP99) })

	writeSlow(&out, slowly)

	out.WriteString("\n## Where the services' time goes\n\nGo profiles under 16 connections. A part holds all that it calls, so parts overlap.\n")
	out.WriteString(profiles)
	out.WriteString(found)
	return out.String()
}

// tables writes the figures of several targets side by side; the first is what
// the others are compared with.
type tables struct {
	out   *strings.Builder
	names []string
	all   [][]figures
}

func newTables(out *strings.Builder, names []string, results map[string][]figures) tables {
	w := tables{out: out, names: names}
	for _, name := range names {
		w.all = append(w.all, results[name])
	}
	return w
}

func (w tables) head(first string, columns ...string) {
	fmt.Fprintf(w.out, "\n| %s | %s |\n|%s\n", first, strings.Join(columns, " | "), strings.Repeat(" --- |", len(columns)+1))
}

func (w tables) row(label string, of func(figures) float64) {
	fmt.Fprintf(w.out, "| %s |", label)
	for _, own := range w.all {
		fmt.Fprintf(w.out, " %s |", spread(own, of))
	}
	w.out.WriteString("\n")
}

// against compares, with an aim where there is one.
func (w tables) against(label, aim string, of func(own, bare figures) float64) {
	fmt.Fprintf(w.out, "| %s | %s |", label, aim)
	for _, own := range w.all[1:] {
		fmt.Fprintf(w.out, " %s |", spread(paired(own, w.all[0], of), itself))
	}
	w.out.WriteString("\n")
}

const howTaken = `
A provider that answers about 1 KB from memory, a bare Envoy in front of it, and
a whole region by ` + "`keyway up`" + ` (store with its append-only file, xds, authz,
extproc, worker with its SQLite ledger, Envoy) run side by side as processes of
their own; both Envoys are the same binary with the same number of workers. The
load generator writes prepared requests of about 500 bytes over HTTP/1.1. Every
request reserves, holds a slot, is settled and becomes a ledger row. "Keyway" has
each kind of limit once: requests, tokens and concurrency on the key, money by
day and month on its identity. "All at once" has all five on both, and another
name for the model at the provider, so that every body is patched. "Native" is
the same over a channel with ` + "`egress: native`" + `: Envoy itself, and not extproc,
sets credential, path and body of an attempt.

Each round measures every target in turn, in alternating order: 2 s on one
connection, 4 s on 16, then 50 streams of 50 chunks, each 40 ms after the last,
from which the gateway takes out the usage chunk that it asked for. Processor
time is that of the 16 connections and the second after them. A cell is the
median over the rounds, with the least and the greatest.
`

const found = `
## What was done about it

Taken, each with its figures in its commit: the services' heaps grow to five
times what lives in them before they are collected; gRPC's windows are fixed, so
that it does not ping Envoy to measure them; its calls run on goroutines that are
kept, with the stacks that they have grown; Envoy writes an access-log entry only
for an answer that nobody watched to its end; a settlement reads its reservation
in one call and explains the request in the same script; a rate bucket is one
value, and the counters of a request are read in one command; expiries that are
there are not written again; the store of ` + "`keyway up`" + ` is reached over a socket.

What is left has no single owner. A third is Envoy's: it waits for three gRPC
streams a request (admission, egress, watch), where the bare one has none. About
a sixth is the store's, nearly all of it in the calls that the reserve and settle
scripts make for each bucket. In the services gRPC and protobuf take most, and a
fifth of their time is the kernel's switching between threads; then comes the
client of the store.

Tried in turns with the present form, and not taken: one processor for each
service and a heap that grows to 17 times what lives, neither of which showed; and
bodies that go to the watch without waiting for what it says of the head, which
took 0.16 ms from the median at one connection and no processor time, but would
send every sound and image through Go as well.

Native egress saves one of the three streams. It is not the default all the same:
a channel with slots can then only be a first choice, a failure before the last
attempt is known only with the answer's head, so that a channel cools later, and
the control plane has to hold the secret keys. Where none of that matters it is
the cheaper form, per channel.

Left for later, because each changes more than it brings alone: a decision whose
holds are numbered instead of named; settlements in batches; profile-guided
builds, which slow every build down.
`

// machine describes where the figures come from, without naming it.
func machine(all []figures) string {
	var kernel, memory string
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel, _, _ = strings.Cut(strings.TrimSpace(string(raw)), "-")
	}
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int64
		if _, err := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kib); err == nil {
			memory = fmt.Sprintf("%d GiB", (kib+1<<19)>>20)
		}
	}
	return fmt.Sprintf("Machine: %d cores (%s), %s of memory, Linux %s, %s. Other processes took %s %% of it meanwhile.",
		runtime.NumCPU(), runtime.GOARCH, memory, kernel, runtime.Version(), spread(all, func(f figures) float64 { return 100 * f.others }))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func itself(v float64) float64 { return v }

func gatewayCPU(f figures) float64 { return f.gateway }

// paired compares the same rounds of two targets.
func paired(own, bare []figures, of func(own, bare figures) float64) []float64 {
	out := make([]float64, len(own))
	for i := range own {
		out[i] = of(own[i], bare[i])
	}
	return out
}

// spread is the median with the least and the greatest.
func spread[T any](all []T, of func(T) float64) string {
	values := make([]float64, len(all))
	for i, one := range all {
		values[i] = of(one)
	}
	slices.SortFunc(values, cmp.Compare)
	return fmt.Sprintf("%s (%s–%s)", number(values[len(values)/2]), number(values[0]), number(values[len(values)-1]))
}

// number prints three significant digits, and whole numbers where there are more.
func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// profiled are the services whose profiles the report shows.
var profiled = []string{"authz", "extproc"}

// areas are parts of a service's work, by the functions that do them.
var areas = []struct{ name, functions string }{
	{"gRPC: frames, streams, messages", `google.golang.org/grpc/internal/transport|golang.org/x/net/http2|grpc.\(\*serverStream\)`},
	{"protobuf", `google.golang.org/protobuf`},
	{"calls to the store", `keyway/store\.`},
	{"reading requests and answers", `keyway/wire`},
	{"the decision, encoded and decoded", `keyway/envoy\.(En|De)codeDecision`},
	{"logging", `log/slog\.`},
	{"metrics", `client_golang/prometheus`},
	{"allocation", `runtime\.mallocgc`},
	{"garbage collection", `runtime\.gcBgMarkWorker|runtime\.gcAssistAlloc|runtime\.bgsweep`},
	{"scheduling of goroutines", `runtime\.schedule$|runtime\.findRunnable`},
	{"system calls", `internal/runtime/syscall`},
}

// profiles loads t and tells where the services' time went: a table, then the
// longest functions of each service.
func (r *region) profiles(b *testing.B, t target) string {
	b.Helper()
	failed := make(chan error, len(profiled))
	file := func(name string) string { return filepath.Join(r.dir, name+".pprof") }
	for _, name := range profiled {
		base, _, _ := strings.Cut(r.ready.Services[name].MetricsURL, "/metrics")
		go func() { failed <- fetch(base, file(name)) }()
	}
	_, err := pour(t, crowd, profileFor+time.Second)
	require.NoError(b, err)
	for range profiled {
		require.NoError(b, <-failed)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "\n| part | %s |\n| --- |%s\n", strings.Join(profiled, " | "), strings.Repeat(" --- |", len(profiled)))
	for _, area := range areas {
		fmt.Fprintf(&out, "| %s |", area.name)
		for _, name := range profiled {
			fmt.Fprintf(&out, " %s |", share(r.pprof(b, file(name), "-nodecount=100000", "-nodefraction=0", "-focus="+area.functions)))
		}
		out.WriteString("\n")
	}
	for _, name := range profiled {
		fmt.Fprintf(&out, "\n%s, by function with all it calls:\n\n```\n%s```\n", name,
			withoutHead(r.pprof(b, file(name), "-cum", "-nodecount=25", "-focus=keyway/|google.golang.org/grpc/internal/transport")))
	}
	return out.String()
}

// pprof prints a profile's top.
func (r *region) pprof(b *testing.B, file string, args ...string) string {
	b.Helper()
	args = append(append([]string{"tool", "pprof", "-top"}, args...), r.binary, file)
	out, err := exec.Command("go", args...).Output()
	require.NoError(b, err)
	return string(out)
}

// share is the part of all samples that a focused top accounts for.
func share(top string) string {
	const before = "Showing nodes accounting for "
	_, rest, _ := strings.Cut(top, before)
	_, rest, _ = strings.Cut(rest, ", ")
	percent, _, ok := strings.Cut(rest, " of ")
	if !ok {
		return "–"
	}
	return percent
}

// fetch takes a profile of the service whose observability is at base.
func fetch(base, file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*profileFor)
	defer cancel()
	url := fmt.Sprintf("%s/debug/pprof/profile?seconds=%.0f", base, profileFor.Seconds())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("fetch profile: %w", err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch profile: status %d, %w", resp.StatusCode, err)
	}
	return os.WriteFile(file, raw, 0o600)
}

// withoutHead drops the lines that name files and times.
func withoutHead(top string) string {
	if at := strings.Index(top, "Showing"); at >= 0 {
		return top[at:]
	}
	return top
}
