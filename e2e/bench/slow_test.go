package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The slow streams of a round: what is not seen where an answer comes at once.
const (
	slowStreams = 400
	slowOver    = time.Second
	slowChunks  = 20
	// slowEvery is longer than the models' heartbeat, so that there is one for
	// each chunk but the first.
	slowEvery = 160 * time.Millisecond
)

// slowWays are the paths of slow streams; the first is what others are compared with.
var slowWays = []way{
	{bareTarget, "bench"},
	{"Keyway", "bench"},
	{withBeats, "soon-beating"},
	{throughRelay, "thinking"},
	{"relay with heartbeats", "thinking-soon-beating"},
}

const (
	withBeats    = "with heartbeats"
	throughRelay = "relay"
)

// slowRound measures slow streams on one way once.
func (r *region) slowRound(b *testing.B, t target) (f figures, err error) {
	b.Helper()
	time.Sleep(warmFor) // what went before has ended, but for its last settlements
	before, err := r.cpu()
	require.NoError(b, err)
	s, err := stream(t, slowStreams, slowOver)
	if err != nil {
		return f, err
	}
	time.Sleep(booksFor)
	after, err := r.cpu()
	require.NoError(b, err)
	f.charge(t, before, after, slowStreams)
	f.firstP50, f.firstP99 = quantiles(s.firsts)
	f.chunkP50, f.chunkP99 = quantiles(s.delays)
	f.silenceP50, _ = quantiles(s.silences)
	f.beats = float64(s.beats) / slowStreams
	return f, nil
}

const slowTaken = `
## What heartbeats and the relay cost

%d streams, begun within %s, each of %d chunks, %s apart, so that many are open
at once and nothing is at its limit. "With heartbeats" is a model whose heartbeat
comes after 0.1 s of silence, so that there is one for nearly each chunk; in use it
comes after 14 s. "Relay" is a model with ` + "`early_heartbeat`" + `. The longest silence is
that of a stream, from its first byte on. Processor time is in seconds for 1 000
such streams, admission and settlement included.
`

// writeSlow reports the slow streams.
func writeSlow(out *strings.Builder, results map[string][]figures) {
	names := make([]string, len(slowWays))
	for i, w := range slowWays {
		names[i] = w.name
	}
	w := newTables(out, names, results)
	fmt.Fprintf(out, slowTaken, slowStreams, slowOver, slowChunks, slowEvery)
	w.head("", names...)
	w.row("first byte p50, ms", func(f figures) float64 { return ms(f.firstP50) })
	w.row("first byte p99, ms", func(f figures) float64 { return ms(f.firstP99) })
	w.row("delay of a chunk p50, ms", func(f figures) float64 { return ms(f.chunkP50) })
	w.row("delay of a chunk p99, ms", func(f figures) float64 { return ms(f.chunkP99) })
	w.row("heartbeats of a stream", func(f figures) float64 { return f.beats })
	w.row("longest silence p50, ms", func(f figures) float64 { return ms(f.silenceP50) })
	w.row("Envoy", func(f figures) float64 { return f.envoy })
	for _, name := range services[1:] {
		w.row(name, func(f figures) float64 { return f.cpu[name] })
	}
	w.row("**gateway**: all of the above", gatewayCPU)
	w.head("against bare Envoy", append([]string{"aim"}, names[1:]...)...)
	w.against("gateway's processor time, times bare Envoy's", "", func(own, bare figures) float64 { return gatewayCPU(own) / gatewayCPU(bare) })
	w.against("added time to the first byte, p50, ms", "", func(own, bare figures) float64 { return ms(own.firstP50 - bare.firstP50) })
	w.against("added delay of a chunk, p50, ms", "", func(own, bare figures) float64 { return ms(own.chunkP50 - bare.chunkP50) })
	plain := results["Keyway"]
	beat := paired(results[withBeats], plain, func(own, plain figures) float64 { return 1000 * (gatewayCPU(own) - gatewayCPU(plain)) / own.beats })
	relay := paired(results[throughRelay], plain, func(own, plain figures) float64 { return 1000 * (gatewayCPU(own) - gatewayCPU(plain)) })
	fmt.Fprintf(out, "\nSo a heartbeat costs %s µs of a processor, and the relay %s µs for such a stream.\n", spread(beat, itself), spread(relay, itself))
}
