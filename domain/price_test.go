package domain_test

import (
	"math"
	"math/big"
	"strings"
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

// drawnPrice is any price list that config accepts.
func drawnPrice(t *rapid.T) domain.Price {
	rate := rapid.OneOf(rapid.Int64Range(0, 1e11), rapid.Int64Range(0, 100), rapid.Just(int64(0)))
	special := func(name string) []domain.PartRate {
		var list []domain.PartRate
		for part := domain.PartCacheWrite30m; part <= domain.PartOutputImage; part++ {
			if rapid.Bool().Draw(t, name) {
				list = append(list, domain.PartRate{Part: part, Rate: rate.Draw(t, name)})
			}
		}
		return list
	}
	factor := rapid.OneOf(rapid.Just(int64(1_000_000)), rapid.Int64Range(0, 1e9))
	p := domain.Price{
		Input: rate.Draw(t, "in"), CacheRead: rate.Draw(t, "read"), CacheWrite: rate.Draw(t, "write"), Output: rate.Draw(t, "out"),
		Special: special("special"), FactorMicros: rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, 1e9)).Draw(t, "identity"),
		Tools: []domain.ToolRate{{Tool: domain.ToolWebSearch, PerThousand: rate.Draw(t, "search")}, {Tool: domain.ToolMCP, PerThousand: rate.Draw(t, "mcp")}},
		Tiers: []domain.TierFactor{{Tier: "flex", FactorMicros: factor.Draw(t, "flex")}, {Tier: "priority", FactorMicros: factor.Draw(t, "priority")}},
	}
	above := int64(0)
	for range rapid.IntRange(0, 3).Draw(t, "steps") {
		above += rapid.Int64Range(1, 1<<20).Draw(t, "above")
		p.Steps = append(p.Steps, domain.PriceStep{
			AbovePrompt: above, Input: rate.Draw(t, "in"), CacheRead: rate.Draw(t, "read"), CacheWrite: rate.Draw(t, "write"),
			Output: rate.Draw(t, "out"), Special: special("special of a step"),
		})
	}
	return p
}

// drawnUsage is any usage whose parts are within their wholes.
func drawnUsage(t *rapid.T) domain.Usage {
	tokens := rapid.OneOf(rapid.Int64Range(0, 1<<31), rapid.Int64Range(0, 1<<21), rapid.Int64Range(0, 10))
	u := domain.Usage{InputUncached: tokens.Draw(t, "u"), CacheRead: tokens.Draw(t, "r"), CacheWrite: tokens.Draw(t, "w"), Output: tokens.Draw(t, "o")}
	for _, split := range []struct {
		whole int64
		parts []*int64
	}{
		{u.InputUncached, []*int64{&u.InputAudio, &u.InputImage}},
		{u.CacheWrite, []*int64{&u.CacheWrite30m, &u.CacheWrite1h, &u.CacheWrite12h}},
		{u.Output, []*int64{&u.Reasoning, &u.OutputAudio, &u.OutputImage}},
	} {
		left := split.whole
		for _, part := range split.parts {
			*part = rapid.Int64Range(0, left).Draw(t, "part")
			left -= *part
		}
	}
	u.Tier = rapid.SampledFrom([]string{"", "flex", "priority", "never heard of"}).Draw(t, "tier")
	return u
}

// exactCost adds the parts one by one as fractions: the rule in its plainest
// form, written without the code that it checks.
func exactCost(p domain.Price, u domain.Usage) (total *big.Rat, parts []*big.Rat) {
	input, read, write, output, special := p.Input, p.CacheRead, p.CacheWrite, p.Output, p.Special
	for _, s := range p.Steps {
		if u.InputUncached+u.CacheRead+u.CacheWrite > s.AbovePrompt {
			input, read, write, output, special = s.Input, s.CacheRead, s.CacheWrite, s.Output, s.Special
		}
	}
	rateOf := func(part domain.Part, parent int64) int64 {
		for _, r := range special {
			if r.Part == part {
				return r.Rate
			}
		}
		return parent
	}
	tier, identity := big.NewRat(1, 1), big.NewRat(1, 1)
	for _, f := range p.Tiers {
		if f.Tier == u.Tier {
			tier = big.NewRat(f.FactorMicros, 1e6)
		}
	}
	if p.FactorMicros > 0 {
		identity = big.NewRat(p.FactorMicros, 1e6)
	}
	total = new(big.Rat)
	add := func(n, rate, per int64, factor *big.Rat) {
		part := new(big.Rat).Mul(big.NewRat(n, per), new(big.Rat).SetInt64(rate))
		part.Mul(part, factor).Mul(part, identity)
		parts = append(parts, part)
		total.Add(total, part)
	}
	for _, t := range []struct{ n, rate int64 }{
		{u.InputUncached - u.InputAudio - u.InputImage, input},
		{u.InputAudio, rateOf(domain.PartInputAudio, input)},
		{u.InputImage, rateOf(domain.PartInputImage, input)},
		{u.CacheRead, read},
		{u.CacheWrite - u.CacheWrite30m - u.CacheWrite1h - u.CacheWrite12h, write},
		{u.CacheWrite30m, rateOf(domain.PartCacheWrite30m, write)},
		{u.CacheWrite1h, rateOf(domain.PartCacheWrite1h, write)},
		{u.CacheWrite12h, rateOf(domain.PartCacheWrite12h, write)},
		{u.Output - u.Reasoning - u.OutputAudio - u.OutputImage, output},
		{u.Reasoning, rateOf(domain.PartReasoning, output)},
		{u.OutputAudio, rateOf(domain.PartOutputAudio, output)},
		{u.OutputImage, rateOf(domain.PartOutputImage, output)},
	} {
		add(t.n, t.rate, 1e6, tier)
	}
	for _, r := range p.Tools {
		add(u.Tools[r.Tool], r.PerThousand, 1000, big.NewRat(1, 1))
	}
	return total, parts
}

// ceil is the rounding rule: up, once, and never beyond int64.
func ceil(r *big.Rat) int64 {
	whole, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	if !whole.IsInt64() {
		return math.MaxInt64
	}
	return whole.Int64()
}

// The parts of a cost add up to it before the one rounding, and no part is
// more than the whole.
func TestPartsAddUpToTheTotal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, u := drawnPrice(t), drawnUsage(t)
		u.Tools[domain.ToolWebSearch] = rapid.Int64Range(0, 1000).Draw(t, "searches")
		u.Tools[domain.ToolWebFetch] = 7 // free: it has no price
		exact, parts := exactCost(p, u)
		total := p.CostMicros(u)
		require.Equal(t, ceil(exact), total)
		for _, part := range parts {
			require.LessOrEqual(t, ceil(part), total)
		}
	})
}

// What is reserved covers what can be settled, whichever part, step and tier
// the tokens within the hold meet.
func TestReservedCoversSettled(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, u := drawnPrice(t), drawnUsage(t)
		more := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1<<21))
		held := p.MaxCostMicros(u.Input()+more.Draw(t, "prompt"), u.Output+more.Draw(t, "output"))
		require.LessOrEqual(t, p.CostMicros(u), held)
	})
}

func TestCountsThatContradictThemselvesChargeNoTokenTwice(t *testing.T) {
	t.Parallel()
	p := domain.Price{Output: 1_000_000, Special: []domain.PartRate{{Part: domain.PartReasoning, Rate: 2_000_000}}}
	require.EqualValues(t, 20, p.CostMicros(domain.Usage{Output: 10, Reasoning: 99, OutputAudio: 99}))
	require.EqualValues(t, 10, p.CostMicros(domain.Usage{Output: 10, Reasoning: -99}))
}

func TestTiers(t *testing.T) {
	t.Parallel()
	p := domain.Price{Tiers: []domain.TierFactor{{Tier: "flex"}}}
	for tier, want := range map[string]bool{"": true, "flex": true, "priority": false} {
		require.Equal(t, want, p.PricesTier(tier), tier)
	}
	for word, want := range map[string]string{
		"": "", "default": "", "Standard": "", "auto": "", "Priority": "priority", "flex\xff": "flex",
		strings.Repeat("x", 99): strings.Repeat("x", 32),
	} {
		require.Equal(t, want, domain.NormalTier(word))
	}
}

func TestToolNames(t *testing.T) {
	t.Parallel()
	for i, name := range domain.ToolNames() {
		tool, ok := domain.ToolNamed(name)
		require.True(t, ok)
		require.Equal(t, domain.Tool(i), tool)
		require.Equal(t, name, tool.String())
	}
	_, ok := domain.ToolNamed("telepathy")
	require.False(t, ok)
	require.Equal(t, "unknown", domain.ToolKinds.String())
}

func BenchmarkCost(b *testing.B) {
	p := domain.Price{Input: 2_500_000, CacheRead: 250_000, CacheWrite: 3_125_000, Output: 10_000_000, FactorMicros: 900_000}
	u := domain.Usage{InputUncached: 1000, CacheRead: 100, Output: 500, Reasoning: 300}
	b.ReportAllocs()
	for b.Loop() {
		p.CostMicros(u)
	}
}
