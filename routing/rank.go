package routing

import (
	"cmp"
	"math"
	"slices"

	"keyway/domain"
)

// Rank orders channels for one request: lower priority numbers first, within
// one priority a weighted random order. random returns a number in [0, 1) and
// is called once per channel, so a seeded source gives a repeatable order. The
// slice given is not changed.
//
// The order within a priority is weighted sampling without replacement: each
// channel draws the key -ln(u)/weight and the smallest goes first, so a channel
// leads with probability weight/Σ weights (Efraimidis and Spirakis, 2006).
func Rank(channels []domain.Channel, random func() float64) []domain.Channel {
	type drawn struct {
		channel domain.Channel
		key     float64
	}
	draws := make([]drawn, len(channels))
	for i, c := range channels {
		// 1-u is in (0, 1], so the logarithm is finite.
		draws[i] = drawn{channel: c, key: -math.Log(1-random()) / float64(max(c.Weight, 1))}
	}
	slices.SortStableFunc(draws, func(a, b drawn) int {
		return cmp.Or(cmp.Compare(a.channel.Priority, b.channel.Priority), cmp.Compare(a.key, b.key))
	})
	ranked := make([]domain.Channel, len(draws))
	for i, d := range draws {
		ranked[i] = d.channel
	}
	return ranked
}
