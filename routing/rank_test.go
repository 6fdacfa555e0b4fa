package routing_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/routing"
)

func names(channels []domain.Channel) []string {
	var out []string
	for _, c := range channels {
		out = append(out, c.Name)
	}
	return out
}

func TestRankPutsPriorityFirst(t *testing.T) {
	t.Parallel()
	channels := []domain.Channel{
		{Name: "spare", Priority: 2, Weight: 1000},
		{Name: "main", Priority: 1, Weight: 1},
		{Name: "last", Priority: 3, Weight: 1000},
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		require.Equal(t, []string{"main", "spare", "last"}, names(routing.Rank(channels, random.Float64)))
	}
	require.Equal(t, "spare", channels[0].Name, "the given slice is left alone")
}

func TestRankLeadsByWeight(t *testing.T) {
	t.Parallel()
	channels := []domain.Channel{{Name: "one", Weight: 1}, {Name: "three", Weight: 3}}
	random := rand.New(rand.NewPCG(3, 4))
	const rounds = 20_000
	lead := 0
	for range rounds {
		if routing.Rank(channels, random.Float64)[0].Name == "three" {
			lead++
		}
	}
	require.InDelta(t, 0.75, float64(lead)/rounds, 0.02)
}

func TestRankTreatsNoWeightAsOne(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	require.Len(t, routing.Rank([]domain.Channel{{Name: "a"}, {Name: "b"}}, random.Float64), 2)
	require.Empty(t, routing.Rank(nil, random.Float64))
}
