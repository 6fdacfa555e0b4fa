package routing_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyway/domain"
	"keyway/routing"
)

func seeded(seed uint64) func() float64 { return rand.New(rand.NewPCG(seed, seed)).Float64 }

// order names the options in the order of their ranks, without those left out.
func order(options []routing.Option, c routing.Choice) []string {
	if c.Random == nil {
		c.Random = seeded(1)
	}
	var names []string
	for _, r := range routing.Rank(options, c) {
		if o := options[r.Index]; o.LeftOut == "" {
			names = append(names, o.Channel)
		}
	}
	return names
}

// leads counts how often each option is first.
func leads(options []routing.Option, c routing.Choice, rounds int) map[string]float64 {
	c.Random = seeded(7)
	share := map[string]float64{}
	for range rounds {
		share[options[routing.Rank(options, c)[0].Index].Channel] += 1 / float64(rounds)
	}
	return share
}

func TestPriorityGoesBeforeEverything(t *testing.T) {
	t.Parallel()
	options := []routing.Option{
		{Channel: "spare", Priority: 2, Weight: 1000, Cost: 0.1, TTFT: time.Millisecond},
		{Channel: "main", Priority: 1, Weight: 1, Cost: 5, TTFT: 10 * time.Second, ErrorRate: 0.9},
		{Channel: "last", Priority: 3, Weight: 1000, Cost: 0.1, TTFT: time.Millisecond},
		{Channel: "gone", Priority: 0, LeftOut: "cooling"},
	}
	for _, s := range domain.Strategies() {
		for seed := range uint64(50) {
			require.Equal(t, []string{"main", "spare", "last"}, order(options, routing.Choice{Strategy: s, Affinity: fmt.Sprint(seed), Random: seeded(seed)}), s)
		}
	}
	require.Equal(t, "spare", options[0].Channel, "the given slice is left alone")
	require.Empty(t, routing.Rank(nil, routing.Choice{Strategy: domain.StrategyWeighted}))
}

func TestOrders(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		strategy domain.Strategy
		options  []routing.Option
		want     []string
	}{
		{"priority goes by weight", domain.StrategyPriority, []routing.Option{
			{Channel: "a", Weight: 1}, {Channel: "b", Weight: 9}, {Channel: "c", Weight: 1},
		}, []string{"b", "a", "c"}},
		{"priority does not look at how they do", domain.StrategyPriority, []routing.Option{
			{Channel: "a", ErrorRate: 0.9, TTFT: time.Minute, InUse: 9, Slots: 10}, {Channel: "b"},
		}, []string{"a", "b"}},
		{"cost takes the cheapest", domain.StrategyCost, []routing.Option{
			{Channel: "dear", Cost: 1.5, Weight: 100}, {Channel: "usual", Weight: 100}, {Channel: "cheap", Cost: 0.9, TTFT: time.Minute},
		}, []string{"cheap", "usual", "dear"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(50) {
				require.Equal(t, tc.want, order(tc.options, routing.Choice{Strategy: tc.strategy, Random: seeded(seed)}))
			}
		})
	}
}

// What counts in a draw, as the share of requests that each of two channels leads.
func TestShares(t *testing.T) {
	t.Parallel()
	const rounds, within = 20_000, 0.015
	for _, tc := range []struct {
		name     string
		strategy domain.Strategy
		a, b     routing.Option
		// want is the share of b.
		want float64
	}{
		{"even", domain.StrategyWeighted, routing.Option{}, routing.Option{}, 0.5},
		{"weights", domain.StrategyWeighted, routing.Option{Weight: 1}, routing.Option{Weight: 3}, 0.75},
		{"no weight is one", domain.StrategyWeighted, routing.Option{}, routing.Option{Weight: 1}, 0.5},
		{"errors", domain.StrategyWeighted, routing.Option{ErrorRate: 0.5}, routing.Option{}, 1 / 1.25},
		{"nothing but errors is still tried", domain.StrategyWeighted, routing.Option{ErrorRate: 1}, routing.Option{}, 1 / 1.02},
		{"a slower one", domain.StrategyWeighted, routing.Option{TTFT: 1500 * time.Millisecond}, routing.Option{TTFT: 300 * time.Millisecond}, 1 / 1.5},
		{"what nobody notices", domain.StrategyWeighted, routing.Option{TTFT: 5 * time.Millisecond}, routing.Option{TTFT: time.Millisecond}, 0.505},
		{"an unknown one", domain.StrategyWeighted, routing.Option{TTFT: time.Second}, routing.Option{}, 0.5},
		{"a dearer one", domain.StrategyWeighted, routing.Option{Cost: 4}, routing.Option{Cost: 1}, 2. / 3},
		{"three quarters of the slots", domain.StrategyWeighted, routing.Option{InUse: 75, Slots: 100}, routing.Option{InUse: 50, Slots: 100}, 2. / 3},
		{"no slot free", domain.StrategyWeighted, routing.Option{InUse: 100, Slots: 100}, routing.Option{}, 1 / 1.02},
		{"quota about to be lost", domain.StrategyWeighted, routing.Option{}, routing.Option{WindowLeft: 1, WindowEnds: time.Nanosecond}, 2. / 3},
		{"half of it, in half a minute", domain.StrategyWeighted, routing.Option{}, routing.Option{WindowLeft: 0.5, WindowEnds: 30 * time.Second}, 1.25 / 2.25},
		{"latency", domain.StrategyLatency, routing.Option{TTFT: 500 * time.Millisecond}, routing.Option{TTFT: 200 * time.Millisecond}, 1 / 1.0625},
		{"cost, when they cost the same", domain.StrategyCost, routing.Option{Cost: 2, Weight: 1}, routing.Option{Cost: 2, Weight: 3}, 0.75},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.a.Channel, tc.b.Channel = "a", "b"
			share := leads([]routing.Option{tc.a, tc.b}, routing.Choice{Strategy: tc.strategy}, rounds)
			assert.InDelta(t, tc.want, share["b"], within)
		})
	}
}

// Only the K best of a priority are drawn from; who is not among them follows.
func TestTopK(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		strategy domain.Strategy
		top      int
	}{{domain.StrategyWeighted, routing.TopWeighted}, {domain.StrategyLatency, routing.TopLatency}} {
		var options []routing.Option
		for i := range tc.top + 3 {
			// The last ones are the best.
			options = append(options, routing.Option{Channel: fmt.Sprint(i), Weight: i + 1, TTFT: time.Duration(30-i) * 10 * time.Millisecond})
		}
		for seed := range uint64(200) {
			ranked := routing.Rank(options, routing.Choice{Strategy: tc.strategy, Random: seeded(seed)})
			for place, r := range ranked {
				require.Equal(t, place < tc.top, r.Index >= 3, "%s: place %d", tc.strategy, place)
			}
		}
	}
}

// drawnOptions are any options at all.
func drawnOptions(t *rapid.T) []routing.Option {
	one := rapid.Custom(func(t *rapid.T) routing.Option {
		return routing.Option{
			Priority:   rapid.IntRange(0, 3).Draw(t, "priority"),
			Weight:     rapid.IntRange(-1, 1_000_000).Draw(t, "weight"),
			Cost:       rapid.Float64Range(0, 1000).Draw(t, "cost"),
			ErrorRate:  rapid.Float64Range(0, 1).Draw(t, "errors"),
			TTFT:       time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "ttft")),
			InUse:      rapid.Int64Range(0, 20).Draw(t, "in use"),
			Slots:      rapid.Int64Range(0, 10).Draw(t, "slots"),
			WindowLeft: rapid.Float64Range(0, 1).Draw(t, "left"),
			WindowEnds: time.Duration(rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "ends")),
			LeftOut:    rapid.SampledFrom([]string{"", "", "", "cooling"}).Draw(t, "left out"),
		}
	})
	options := rapid.SliceOfN(one, 0, 24).Draw(t, "options")
	for i := range options {
		options[i].Channel = fmt.Sprintf("channel-%d", i)
	}
	return options
}

// Whatever the options: each has one place, priorities rise, what is left out
// comes last and has no score, and the same chance gives the same order.
func TestEveryOptionHasOnePlace(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		options := drawnOptions(t)
		c := routing.Choice{
			Strategy: rapid.SampledFrom(domain.Strategies()).Draw(t, "strategy"),
			Affinity: rapid.SampledFrom([]string{"", "session-1", "session-2"}).Draw(t, "affinity"),
		}
		seed := rapid.Uint64().Draw(t, "seed")
		c.Random = seeded(seed)
		ranked := routing.Rank(options, c)
		require.Len(t, ranked, len(options))
		seen := make([]bool, len(options))
		for i, r := range ranked {
			require.False(t, seen[r.Index])
			seen[r.Index] = true
			out := options[r.Index].LeftOut != ""
			require.Equal(t, out, r.Score == 0, "score %v", r.Score)
			if i == 0 {
				continue
			}
			before := options[ranked[i-1].Index]
			require.False(t, before.LeftOut != "" && !out, "what is left out is last")
			if !out {
				require.LessOrEqual(t, before.Priority, options[r.Index].Priority)
			}
		}
		c.Random = seeded(seed)
		require.Equal(t, ranked, routing.Rank(options, c))
	})
}

// Shares follow weights, for any number of channels.
func TestSharesFollowWeights(t *testing.T) {
	t.Parallel()
	weights := rand.New(rand.NewPCG(11, 12))
	for n := 2; n <= routing.TopWeighted; n += 7 {
		options := make([]routing.Option, n)
		sum := 0
		for i := range options {
			options[i] = routing.Option{Channel: fmt.Sprint(i), Weight: 1 + weights.IntN(20)}
			sum += options[i].Weight
		}
		share := leads(options, routing.Choice{Strategy: domain.StrategyWeighted}, 20_000)
		for _, o := range options {
			assert.InDelta(t, float64(o.Weight)/float64(sum), share[o.Channel], 0.015, "%d channels, %+v", n, o)
		}
	}
}

func BenchmarkRank(b *testing.B) {
	for _, n := range []int{1, 4, 16} {
		for _, s := range domain.Strategies() {
			b.Run(fmt.Sprintf("%s/%d", s, n), func(b *testing.B) {
				options := make([]routing.Option, n)
				for i := range options {
					options[i] = routing.Option{
						Channel: fmt.Sprintf("channel-%d", i), Weight: 1 + i, ErrorRate: 0.1, TTFT: time.Duration(i+1) * 100 * time.Millisecond,
						InUse: 60, Slots: 100, WindowLeft: 0.5, WindowEnds: 20 * time.Second, Cost: 1.2,
					}
				}
				c := routing.Choice{Strategy: s, Random: seeded(1)}
				if s == domain.StrategySticky {
					c.Affinity = "key_3f9a0c1d2e4b5a67 session-1"
				}
				b.ReportAllocs()
				for b.Loop() {
					routing.Rank(options, c)
				}
			})
		}
	}
}
