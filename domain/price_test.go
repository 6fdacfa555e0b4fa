package domain_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyway/domain"
)

func TestCostIsExactAndRoundedUpOnce(t *testing.T) {
	t.Parallel()
	p := domain.Price{Input: 2_500_000, CacheRead: 250_000, CacheWrite: 3_125_000, Output: 10_000_000}
	for _, tc := range []struct {
		usage domain.Usage
		want  int64
	}{
		{domain.Usage{}, 0},
		{domain.Usage{InputUncached: 2, Output: 8}, 85},
		{domain.Usage{CacheRead: 1}, 1},                                  // 0.25 rounds up
		{domain.Usage{CacheRead: 3, CacheWrite: 1}, 4},                   // 0.75 + 3.125 = 3.875
		{domain.Usage{InputUncached: 1, CacheRead: 1, CacheWrite: 1}, 6}, // 5.875
		{domain.Usage{InputUncached: -5}, 0},
	} {
		require.Equal(t, tc.want, p.CostMicros(tc.usage), "%+v", tc.usage)
	}
	require.Equal(t, int64(4), p.MaxCostMicros(1, 0), "the dearest way into the prompt: a cache write")
}

func TestCostSaturates(t *testing.T) {
	t.Parallel()
	p := domain.Price{Input: math.MaxInt64, CacheRead: math.MaxInt64, CacheWrite: math.MaxInt64, Output: math.MaxInt64}
	require.Equal(t, int64(math.MaxInt64), p.CostMicros(domain.Usage{InputUncached: math.MaxInt64, CacheRead: math.MaxInt64, CacheWrite: math.MaxInt64, Output: math.MaxInt64}))
	require.Equal(t, int64(math.MaxInt64), p.MaxCostMicros(1_000_001, 0))
	require.Equal(t, int64(math.MaxInt64), p.MaxCostMicros(1_000_000, 0), "exactly the largest")
}

// What is reserved covers what can be settled, however the prompt meets the cache.
func TestReservedCoversSettled(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate, tokens := rapid.Int64Range(0, 1e11), rapid.Int64Range(0, 1<<31)
		p := domain.Price{Input: rate.Draw(t, "in"), CacheRead: rate.Draw(t, "read"), CacheWrite: rate.Draw(t, "write"), Output: rate.Draw(t, "out")}
		u := domain.Usage{InputUncached: tokens.Draw(t, "u"), CacheRead: tokens.Draw(t, "r"), CacheWrite: tokens.Draw(t, "w"), Output: tokens.Draw(t, "o")}
		require.LessOrEqual(t, p.CostMicros(u), p.MaxCostMicros(u.Input(), u.Output))
	})
}
