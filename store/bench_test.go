package store

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
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
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

var (
	benchRounds = flag.Int("rounds", 5, "rounds of BenchmarkStore")
	benchReport = flag.String("report", "", "file that BenchmarkStore writes; empty prints only")
)

const (
	// benchFor is how long one load is measured in a round.
	benchFor = 2 * time.Second
	// benchWorkers is how many requests are under way at once.
	benchWorkers = 32
	// benchKeys is "many": each of an identity of its own.
	benchKeys = 10_000
	// benchAlone is how many calls of each script are timed on their own.
	benchAlone = 5_000
)

// benchTopologies are the ways to run a store that are measured.
var benchTopologies = []struct {
	name  string
	start func(testing.TB) (url string)
}{
	{"one server", func(tb testing.TB) string { return storetest.Start(tb).URL }},
	{"cluster of 3", func(tb testing.TB) string { return storetest.StartCluster(tb, 3) }},
	{"sentinel, 1 replica", func(tb testing.TB) string { _, url := storetest.StartSentinel(tb); return url }},
}

// benchFigures are those of one load in one round.
type benchFigures struct {
	// rate is admissions a second, each settled; core is the same for a second of
	// the processor of the servers that were asked.
	rate, core float64
	// simple is scripts a second of one GET, by the same workers and client.
	simple           float64
	admitP50         time.Duration
	admitP99         time.Duration
	settleP50        time.Duration
	settleP99        time.Duration
	perCommand       map[string]float64 // µs of each admission, by command, on the server's clock
	perScript        map[string]float64 // µs of each call
	outside, scripts float64            // µs of each admission, in scripts and around them
	others           float64            // share of the machine that other processes took meanwhile
}

// BenchmarkStore is the store's whole work for requests with five limits and a
// slot: two round trips each. It runs as `make bench-store`, with -benchtime 1x.
func BenchmarkStore(b *testing.B) {
	results := map[string][]benchFigures{}
	var columns []string
	for _, top := range benchTopologies {
		b.Run(top.name, func(b *testing.B) {
			s := begun(b, top.start(b))
			for _, load := range benchLoads {
				column := top.name + ", " + load.name
				columns = append(columns, column)
				load.owners = make([]tenant, load.keys)
				for i := range load.owners {
					load.owners[i] = newTenant()
				}
				for range *benchRounds {
					results[column] = append(results[column], load.measure(b, s))
				}
			}
		})
	}
	if len(columns) < len(benchLoads) {
		return
	}
	report := benchDocument(columns, results)
	fmt.Println(report) // b.Log cuts long texts
	if *benchReport != "" {
		require.NoError(b, os.WriteFile(*benchReport, []byte(report), 0o644))
	}
}

// benchLoad is who asks.
type benchLoad struct {
	name   string
	keys   int
	leased bool
	owners []tenant
}

var benchLoads = []benchLoad{
	{name: "1 key", keys: 1},
	{name: strconv.Itoa(benchKeys) + " keys", keys: benchKeys},
	{name: strconv.Itoa(benchKeys) + " keys, rates leased", keys: benchKeys, leased: true},
}

// measure takes admissions and settlements side by side, then every script on
// its own, then the simplest script.
func (l benchLoad) measure(b *testing.B, s *Store) benchFigures {
	channel, owners := unique("channel"), l.owners
	ask := func(o tenant) domain.Decision {
		requests, tokens := o.hold(domain.LimitRPM, 1e9, 1), o.hold(domain.LimitTPM, 1e10, 1000)
		requests.Leased, tokens.Leased = l.leased, l.leased
		d := o.decide(
			requests, tokens, o.hold(domain.LimitInFlight, 1e6, 1),
			o.own(o.hold(domain.LimitBudgetDay, 1e15, 100)), o.own(o.hold(domain.LimitBudgetMonth, 1e15, 100)),
		)
		d.Candidates = []domain.Candidate{{Channel: channel, Slots: 1e6}}
		return d
	}
	end := func(d domain.Decision) domain.Settlement {
		settlement := ends(d, 10, 1)
		settlement.Channel = channel
		return settlement
	}
	var mu sync.Mutex
	var admits, settles []time.Duration
	before, busy := serverTimes(b, s), othersTime(b)
	n, took := benchWork(func(i int) {
		d := ask(owners[i%len(owners)])
		began := time.Now()
		a, err := s.Admit(context.Background(), d)
		admitted := time.Now()
		if err != nil || a.Refusal != nil || a.SlotRefused || a.BudgetsUnknown {
			b.Errorf("admit: %+v %v", a, err)
			return
		}
		if _, err := s.Settle(context.Background(), end(d)); err != nil {
			b.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		admits, settles = append(admits, admitted.Sub(began)), append(settles, time.Since(admitted))
	})
	used := serverTimes(b, s).minus(before)
	f := benchFigures{
		rate: float64(n) / took.Seconds(), core: float64(n) / used.cpu.Seconds(), perCommand: map[string]float64{},
		others: max(0, (othersTime(b)-busy-used.cpu).Seconds()/took.Seconds()/float64(runtime.NumCPU())),
	}
	f.admitP50, f.admitP99 = percentiles(admits)
	f.settleP50, f.settleP99 = percentiles(settles)
	for name, usec := range used.commands {
		f.perCommand[name] = usec / float64(n)
	}
	f.scripts = f.perCommand["evalsha"]
	f.outside = max(0, float64(used.cpu.Microseconds())/float64(n)-f.scripts)
	f.perScript = benchScripts(b, s, owners, ask, end)

	node := benchNodes(b, s)[0]
	simple := redis.NewScript("return redis.call('GET', KEYS[1])")
	require.NoError(b, simple.Load(b.Context(), node).Err())
	n, took = benchWork(func(int) {
		if err := simple.EvalSha(context.Background(), node, []string{"{s00}:none"}).Err(); err != nil && !isMoved(err) && !errors.Is(err, redis.Nil) {
			b.Error(err)
		}
	})
	f.simple = float64(n) / took.Seconds()
	trimOutbox(b, s)
	return f
}

func isMoved(err error) bool { return redis.HasErrorPrefix(err, "MOVED") }

// benchWork lets the workers do work for benchFor, and returns how often they did.
func benchWork(work func(i int)) (n int64, took time.Duration) {
	var (
		count   atomic.Int64
		workers sync.WaitGroup
	)
	began := time.Now()
	for range benchWorkers {
		workers.Go(func() {
			for time.Since(began) < benchFor {
				work(int(count.Add(1)))
			}
		})
	}
	workers.Wait()
	return count.Load(), time.Since(began)
}

// benchScripts times the scripts one after another, in pipelines.
func benchScripts(b *testing.B, s *Store, owners []tenant, ask func(tenant) domain.Decision, end func(domain.Decision) domain.Settlement) map[string]float64 {
	byScript := map[string][]call{}
	for i := range benchAlone {
		d := ask(owners[i%len(owners)])
		calls, err := admitCalls(d, 0)
		require.NoError(b, err)
		record, err := encodeRecord(end(d).Record)
		require.NoError(b, err)
		calls = append(calls, renewCalls(domain.Lease{RequestID: d.RequestID, Identity: d.Identity, Holds: d.Holds, TTL: d.Lease})...)
		calls = append(calls, closeCalls(d, closing{record: record, used: func(h domain.Hold) int64 { return used(h, end(d).Record, d.Model) }})...)
		calls = append(calls, releaseCall(d.Candidates[0].Channel, d.RequestID))
		calls = append(calls, leaseCall(domain.RateWish{Identity: d.Identity, Hold: d.Holds[0], Want: 10}))
		for _, c := range calls {
			byScript[c.script.Name] = append(byScript[c.script.Name], c)
		}
	}
	times := map[string]float64{}
	for _, name := range []string{"reserve", "slot_acquire", "renew", "settle", "slot_release", "lease_take"} {
		before := serverTimes(b, s)
		for calls := range slices.Chunk(byScript[name], 100) {
			require.NoError(b, firstError(s.run(b.Context(), calls)))
		}
		times[name] = float64(serverTimes(b, s).minus(before).cpu.Microseconds()) / benchAlone
	}
	return times
}

// trimOutbox keeps the records of one round out of the next one's memory.
func trimOutbox(b *testing.B, s *Store) {
	for shard := range domain.Shards {
		require.NoError(b, s.client.Del(b.Context(), outboxKey(shard)).Err())
	}
}

// serverTime is what the servers have used since they began.
type serverTime struct {
	cpu      time.Duration
	commands map[string]float64 // µs
}

func (t serverTime) minus(o serverTime) serverTime {
	d := serverTime{cpu: t.cpu - o.cpu, commands: map[string]float64{}}
	for name, usec := range t.commands {
		if usec > o.commands[name] {
			d.commands[name] = usec - o.commands[name]
		}
	}
	return d
}

// benchNodes are the servers that take writes.
func benchNodes(b *testing.B, s *Store) []*redis.Client {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		node, ok := s.client.(*redis.Client)
		require.True(b, ok)
		return []*redis.Client{node}
	}
	var (
		mu    sync.Mutex
		nodes []*redis.Client
	)
	require.NoError(b, cluster.ForEachMaster(b.Context(), func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, node)
		return nil
	}))
	return nodes
}

func serverTimes(b *testing.B, s *Store) serverTime {
	t := serverTime{commands: map[string]float64{}}
	for _, node := range benchNodes(b, s) {
		for _, section := range []string{"cpu", "commandstats"} {
			info, err := node.Info(b.Context(), section).Result()
			require.NoError(b, err)
			for line := range strings.Lines(info) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
				switch command, isCommand := strings.CutPrefix(name, "cmdstat_"); {
				case name == "used_cpu_sys" || name == "used_cpu_user":
					seconds, err := strconv.ParseFloat(value, 64)
					require.NoError(b, err)
					t.cpu += time.Duration(seconds * float64(time.Second))
				case isCommand:
					_, rest, _ := strings.Cut(value, "usec=")
					usec, _, _ := strings.Cut(rest, ",")
					number, err := strconv.ParseFloat(usec, 64)
					require.NoError(b, err)
					t.commands[command] += number
				}
			}
		}
	}
	return t
}

// othersTime is what the machine has done since it began, without this process;
// 0 where that cannot be told.
func othersTime(b *testing.B) time.Duration {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	var all struct{ user, nice, system, idle, wait, irq, soft, steal int64 }
	_, err = fmt.Sscanf(string(stat), "cpu %d %d %d %d %d %d %d %d", &all.user, &all.nice, &all.system, &all.idle, &all.wait, &all.irq, &all.soft, &all.steal)
	require.NoError(b, err)
	var own syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	const tick = 10 * time.Millisecond
	busy := time.Duration(all.user+all.nice+all.system+all.irq+all.soft+all.steal) * tick
	return busy - time.Duration(own.Utime.Nano()) - time.Duration(own.Stime.Nano())
}

func percentiles(all []time.Duration) (p50, p99 time.Duration) {
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)*99/100]
}

// median is the middle of the rounds, with the least and the greatest.
func median(rounds []benchFigures, of func(benchFigures) float64) string {
	values := make([]float64, len(rounds))
	for i, f := range rounds {
		values[i] = of(f)
	}
	slices.SortFunc(values, cmp.Compare)
	number := func(v float64) string {
		if v >= 100 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return fmt.Sprintf("%s (%s–%s)", number(values[len(values)/2]), number(values[0]), number(values[len(values)-1]))
}

// benchDocument writes the figures down.
func benchDocument(columns []string, results map[string][]benchFigures) string {
	var out strings.Builder
	fmt.Fprintf(&out, "# Benchmarks of the store\n\nWritten by `make bench-store`; do not edit the figures.\n\n"+
		"Machine: %d cores (%s), shared by the servers and the load, %s; %d rounds.\n%s",
		runtime.NumCPU(), runtime.GOARCH, runtime.Version(), len(results[columns[0]]), benchHow)
	table := func(columns []string) func(label string, of func(benchFigures) float64) {
		fmt.Fprintf(&out, "\n| | %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat(" --- |", len(columns)+1))
		return func(label string, of func(benchFigures) float64) {
			out.WriteString("| " + label + " |")
			for _, column := range columns {
				out.WriteString(" " + median(results[column], of) + " |")
			}
			out.WriteString("\n")
		}
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	out.WriteString("\n## Admissions\n")
	row := table(columns)
	row("admissions/s, each settled", func(f benchFigures) float64 { return f.rate })
	row("the same, for one core's second of the store", func(f benchFigures) float64 { return f.core })
	row("of the simplest script's rate", func(f benchFigures) float64 { return f.rate / f.simple })
	row("admission p50, ms", func(f benchFigures) float64 { return ms(f.admitP50) })
	row("admission p99, ms", func(f benchFigures) float64 { return ms(f.admitP99) })
	row("settlement p50, ms", func(f benchFigures) float64 { return ms(f.settleP50) })
	row("settlement p99, ms", func(f benchFigures) float64 { return ms(f.settleP99) })
	row("% of the machine in other hands meanwhile", func(f benchFigures) float64 { return 100 * f.others })

	out.WriteString("\n## Where the store's time goes\n\nµs of each admission and its settlement.\n")
	row = table(columns[:len(benchLoads)])
	row("outside of scripts: sockets, protocol, append-only file", func(f benchFigures) float64 { return f.outside })
	row("in scripts", func(f benchFigures) float64 { return f.scripts })
	row("of that Lua itself", func(f benchFigures) float64 { return f.scripts - inCommands(f) })
	for _, command := range topCommands(results[columns[1]]) {
		row("of that "+command, func(f benchFigures) float64 { return f.perCommand[command] })
	}
	out.WriteString("\nµs of the processor for one call of each script, called on its own in pipelines of 100.\n")
	row = table(columns[:len(benchLoads)])
	for _, script := range []string{"reserve", "slot_acquire", "settle", "slot_release", "renew", "lease_take"} {
		row(script, func(f benchFigures) float64 { return f.perScript[script] })
	}
	out.WriteString(benchFound)
	return out.String()
}

// benchAround are commands that no script calls.
var benchAround = []string{"evalsha", "eval", "script|load", "info", "hello", "client|setinfo", "client|maint_notifications", "ping", "del"}

func inCommands(f benchFigures) (sum float64) {
	for name, usec := range f.perCommand {
		if name == "del" || !slices.Contains(benchAround, name) {
			sum += usec
		}
	}
	return sum
}

// topCommands are those that take longest, the longest first.
func topCommands(rounds []benchFigures) []string {
	last := rounds[len(rounds)-1].perCommand
	var names []string
	for name := range last {
		if name == "del" || !slices.Contains(benchAround, name) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(last[b], last[a]) })
	return names[:min(len(names), 12)]
}

const benchHow = `
Each request holds five limits (requests, tokens and places in flight on its key,
money by day and month on its identity) and a slot of its channel: one round trip
admits it, another settles it, and a record lies in the outbox. The servers append
to a file (everysec). 32 workers ask as fast as they are answered, for 2 s a round.
The processor's time is what the servers say of themselves (INFO cpu), that of
commands and scripts INFO commandstats, which measures the clock and so is longer
where the machine has no time for the server. The simplest script is one GET, called
by the same workers through the same client. With leased rates, the requests and
tokens were taken before, and only their settlement corrects them. A cell is the
median over the rounds, with the least and the greatest.
`

const benchFound = `
## What this says

The aim is 10 000 admissions for a second of one core of the store, each settled,
for many keys, with all five limits in the store. The cores here are shared with
the load.

No single command takes the time: a call from Lua costs 1 to 2 µs whatever it does,
and an admission with its end makes some thirty of them in four scripts. The
append-only file is a sixth of the scripts' time. Up to a third of the processor's
time is outside of scripts, in reading and writing sockets, which io-threads of the
server take to other cores.

Done: a rate bucket is one value, all counters of a request are read at once, and
written together with their expiry; what a reservation holds is one field; expiries
have room, so that few requests write them; one request in sixteen clears away dead
leases; a settlement keeps by itself what explains the request, which had a script
of its own before, and the record is sent once; whole numbers are written as such,
not as floats. In turns with the form before them, the last two brought 6 % more
admissions for a core's second.

Beyond one core, a cluster spreads identities over its nodes, and leased rates take
two buckets out of every admission; requests without other limits then need none.
`
