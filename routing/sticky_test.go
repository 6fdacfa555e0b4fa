package routing_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/routing"
)

var three = []routing.Option{{Channel: "a"}, {Channel: "b"}, {Channel: "c"}}

func sticky(affinity string) routing.Choice {
	return routing.Choice{Strategy: domain.StrategySticky, Affinity: affinity}
}

func TestASessionStaysWhereItIs(t *testing.T) {
	t.Parallel()
	first := order(three, sticky("session"))
	for seed := range uint64(100) {
		for _, s := range []domain.Strategy{domain.StrategySticky, domain.StrategyWeighted} {
			require.Equal(t, first, order(three, routing.Choice{Strategy: s, Affinity: "session", Random: seeded(seed)}))
		}
	}
	turned := []routing.Option{three[2], three[0], three[1]}
	require.Equal(t, first, order(turned, sticky("session")), "the order of the file does not count")
	led := leads(three, routing.Choice{Strategy: domain.StrategySticky}, 3000)
	require.Len(t, led, 3, "without a session, chance decides")
}

// Sessions spread by weight, and a channel that comes or goes moves only those
// that it gains or loses.
func TestSessionsSpreadByWeightAndHardlyMove(t *testing.T) {
	t.Parallel()
	weighted := []routing.Option{{Channel: "a", Weight: 1}, {Channel: "b", Weight: 2}, {Channel: "c", Weight: 5}}
	const sessions = 20_000
	led := map[string]int{}
	for i := range sessions {
		name := fmt.Sprintf("session-%d", i)
		home := order(weighted, sticky(name))[0]
		led[home]++
		if without := order(weighted[:2], sticky(name))[0]; home != "c" {
			require.Equal(t, home, without)
		}
	}
	for channel, weight := range map[string]float64{"a": 1, "b": 2, "c": 5} {
		assert.InDelta(t, weight/8, float64(led[channel])/sessions, 0.01, channel)
	}
}

func TestASessionEscapes(t *testing.T) {
	t.Parallel()
	home := order(three, sticky("session"))
	for _, tc := range []struct {
		name string
		make routing.Option
		rest time.Duration // the others' time to the first byte
		note string
	}{
		{"full", routing.Option{Slots: 5, InUse: 5}, 0, routing.NoteFull},
		{"a slot free", routing.Option{Slots: 5, InUse: 4}, 0, ""},
		{"failing", routing.Option{ErrorRate: 0.5}, 0, routing.NoteFailing},
		{"failing at times", routing.Option{ErrorRate: 0.49}, 0, ""},
		{"slow", routing.Option{TTFT: 3100 * time.Millisecond}, time.Second, routing.NoteSlow},
		{"not so slow", routing.Option{TTFT: 3 * time.Second}, time.Second, ""},
		{"slow in milliseconds only", routing.Option{TTFT: 900 * time.Millisecond}, 10 * time.Millisecond, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			options := make([]routing.Option, len(three))
			for i, o := range three {
				o.TTFT = tc.rest
				if o.Channel == home[0] {
					tc.make.Channel = o.Channel
					o = tc.make
				}
				options[i] = o
			}
			ranked := routing.Rank(options, sticky("session"))
			if tc.note == "" {
				require.Equal(t, home[0], options[ranked[0].Index].Channel)
				require.Empty(t, ranked[0].Note)
				return
			}
			require.Equal(t, []string{home[1], home[2], home[0]}, order(options, sticky("session")))
			require.Equal(t, tc.note, ranked[2].Note)
		})
	}
	left := make([]routing.Option, len(three))
	for i, o := range three {
		if o.Channel == home[0] {
			o.LeftOut = "cooling"
		}
		left[i] = o
	}
	require.Equal(t, home[1:], order(left, sticky("session")), "one that is left out is no home")
}

func TestShareIsEvenAndTheSameEverywhere(t *testing.T) {
	t.Parallel()
	const keys = 10_000
	below := 0
	for i := range keys {
		if routing.Share("latest", fmt.Sprintf("identity-%d", i)) < 0.05 {
			below++
		}
	}
	assert.InDelta(t, 0.05, float64(below)/keys, 0.01)
	assert.Equal(t, routing.Share("latest", "acme"), routing.Share("latest", "acme"))
	assert.NotEqual(t, routing.Share("latest", "acme"), routing.Share("other", "acme"), "another name draws anew")
}
