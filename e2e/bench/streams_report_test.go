package bench

import (
	"fmt"
	"slices"
	"strings"
)

const streamsTaken = `
A stream brings a chunk of about 200 bytes every second, over a client's HTTP/1.1
connection of its own and, behind Envoy, a provider's. %d begin at %d a second;
figures are taken from %s after the last has begun, for %s, and then every stream
ends whole. Each way has a region of its own, started for it; the bare Envoy is the
same binary with the same number of workers. Memory is the resident memory of the
process beyond what it held after its first %d streams, by the number of streams;
growth is the difference between the last tenth of the time and the first.
extproc's heap grows to five times what lives before it is collected; what lives,
heap and stacks after two collections, is told apart. Processor time is in cores. A
delay is from the provider's write to the client's read. Heartbeats come after
0.6 s of silence, so that there is one for each chunk; in use they come after 14 s.
Everything, provider and load generator included, shares the machine: where other
processes took much of it, a chunk waits for a processor at every hop, and delays
are to be compared within this table only; memory and processor time stand.
`

// writeStreams makes the report of the ways that ran.
func writeStreams(results []held) string {
	var out strings.Builder
	shares := make([]figures, len(results))
	names := make([]string, len(results))
	for i, h := range results {
		shares[i].others, names[i] = h.others, h.way
	}
	fmt.Fprintf(&out, "# Live streams\n\nWritten by `make bench-streams`; do not edit the figures.\n\n%s\n", machine(shares))
	fmt.Fprintf(&out, streamsTaken, *liveStreams, liveRate, liveCalm, *liveFor, 2*crowd)
	fmt.Fprintf(&out, "\n| | %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat(" --- |", len(names)+1))
	row := func(label string, of func(held) float64) {
		fmt.Fprintf(&out, "| %s |", label)
		for _, h := range results {
			if h.way == bareTarget && (strings.Contains(label, "extproc") || strings.HasPrefix(label, "store")) {
				out.WriteString(" – |") // The bare Envoy has none.
				continue
			}
			fmt.Fprintf(&out, " %s |", number(of(h)))
		}
		out.WriteString("\n")
	}
	kib := func(bytes float64) float64 { return bytes / 1024 }
	row("Envoy's memory for a stream, KiB", func(h held) float64 { return kib(h.envoy) })
	row("extproc's memory for a stream, KiB", func(h held) float64 { return kib(h.extproc) })
	row("extproc's live memory for a stream, KiB", func(h held) float64 { return kib(h.live) })
	row("growth of Envoy's, KiB", func(h held) float64 { return kib(h.envoyGrowth) })
	row("growth of extproc's, KiB", func(h held) float64 { return kib(h.extprocGrowth) })
	row("growth of extproc's live memory, KiB", func(h held) float64 { return kib(h.liveGrowth) })
	row("chunks/s", func(h held) float64 { return float64(h.chunks) / liveFor.Seconds() })
	row("heartbeats/s", func(h held) float64 { return h.beats })
	row("delay of a chunk p50, ms", func(h held) float64 { return ms(h.p50) })
	row("delay of a chunk p99, ms", func(h held) float64 { return ms(h.p99) })
	row("Envoy, cores", func(h held) float64 { return h.envoyCPU })
	row("extproc, cores", func(h held) float64 { return h.cpu["extproc"] })
	row("store, cores", func(h held) float64 { return h.cpu["store"] })
	row("**gateway**: these, authz, worker and xds, cores", func(h held) float64 { return h.gatewayCPU })
	if bare := results[0]; bare.way == bareTarget {
		row("gateway's cores, times bare Envoy's", func(h held) float64 { return h.gatewayCPU / bare.gatewayCPU })
	}
	return out.String()
}

// middle is the median.
func middle(sample []float64) float64 {
	sorted := slices.Clone(sample)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}
