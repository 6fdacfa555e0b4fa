package domain

import (
	"math"
	"math/big"
	"slices"
)

// Price is one price version of a model. Every rate is in micro-units per
// million tokens, so that a price list in whole currency per million tokens is
// a factor of 1 000 000 away. It travels with the reservation, whole: a
// settlement is priced by the version of its admission (SPEC §3).
type Price struct {
	Version string
	// Input is the rate of uncached prompt tokens.
	Input int64
	// CacheRead and CacheWrite fall back to nothing: config fills them from Input where the file is silent.
	CacheRead  int64
	CacheWrite int64
	Output     int64
	// Special are the rates of parts that differ from the four above.
	Special []PartRate
	// Steps are rate sets for long prompts, by rising AbovePrompt.
	Steps []PriceStep
	// Tools are what calls of the provider's tools cost; others are free.
	Tools []ToolRate
	// Tiers multiply the cost of tokens by the service tier used; 1 for others.
	Tiers []TierFactor
	// FactorMicros multiplies everything, in millionths: the identity's own
	// multiplier. 0 is none.
	FactorMicros int64
}

// Part is a share of a usage that may have a rate of its own.
type Part int

// The parts. Each falls back to the rate in its comment.
const (
	PartCacheWrite30m Part = iota // CacheWrite
	PartCacheWrite1h              // CacheWrite
	PartCacheWrite12h             // CacheWrite
	PartInputAudio                // Input
	PartInputImage                // Input
	PartReasoning                 // Output
	PartOutputAudio               // Output
	PartOutputImage               // Output
)

// PartRate is a part's own rate, in micro-units per million tokens.
type PartRate struct {
	Part Part
	Rate int64
}

// PriceStep is the rate set of requests whose whole prompt, cached parts
// included, has more than AbovePrompt tokens. It replaces the former set for
// all tokens of the request, not only for those above.
type PriceStep struct {
	AbovePrompt int64
	Input       int64
	CacheRead   int64
	CacheWrite  int64
	Output      int64
	Special     []PartRate
}

// ToolRate is what a thousand calls of a tool cost, in micro-units.
type ToolRate struct {
	Tool        Tool
	PerThousand int64
}

// TierFactor multiplies the cost of tokens in a service tier, in millionths.
type TierFactor struct {
	Tier         string
	FactorMicros int64
}

const (
	microsPerUnit  = 1_000_000 // factors are in millionths
	tokensPerRate  = 1_000_000 // rates are per million tokens
	tokensPerTools = tokensPerRate / 1000
)

// CostMicros is what u costs. There is one rounding rule: every part, tier and
// factor is multiplied and added exactly, and the sum is rounded up once, so
// that the parts of a cost never disagree with it by a unit each. A cost
// beyond int64 is the largest int64; negative counts cost nothing.
func (p Price) CostMicros(u Usage) int64 {
	tokens := p.at(u.Input()).cost(u)
	tokens.Mul(tokens, big.NewInt(p.tierFactor(u.Tier)))
	tools := new(big.Int)
	for _, r := range p.Tools {
		if r.Tool >= 0 && r.Tool < ToolKinds {
			addProduct(tools, u.Tools[r.Tool], r.PerThousand)
		}
	}
	// A tier is a price of tokens; a call costs the same in each.
	tools.Mul(tools, big.NewInt(tokensPerTools*microsPerUnit))
	return p.round(tokens.Add(tokens, tools))
}

// MaxCostMicros is the most that a prompt of up to promptTokens and an output
// of up to outputTokens can cost, whatever part of the price they meet:
// cached or not, text or sound, whichever step and tier. Calls of tools are not
// in it, because nothing bounds their number in advance.
func (p Price) MaxCostMicros(promptTokens, outputTokens int64) int64 {
	most := p.base().most(promptTokens, outputTokens)
	for _, s := range p.Steps {
		if s.AbovePrompt >= promptTokens {
			break
		}
		if cost := s.most(promptTokens, outputTokens); cost.Cmp(most) > 0 {
			most = cost
		}
	}
	factor := int64(microsPerUnit)
	for _, t := range p.Tiers {
		factor = max(factor, t.FactorMicros)
	}
	return p.round(most.Mul(most, big.NewInt(factor)))
}

// PricesTier reports whether tier has a price: the standard tier, or one with
// a factor of its own. A tier that has none is charged as the standard one.
func (p Price) PricesTier(tier string) bool {
	return tier == "" || slices.ContainsFunc(p.Tiers, func(f TierFactor) bool { return f.Tier == tier })
}

func (p Price) tierFactor(tier string) int64 {
	for _, f := range p.Tiers {
		if f.Tier == tier {
			return max(f.FactorMicros, 0)
		}
	}
	return microsPerUnit
}

// base is the rate set of short prompts.
func (p Price) base() PriceStep {
	return PriceStep{Input: p.Input, CacheRead: p.CacheRead, CacheWrite: p.CacheWrite, Output: p.Output, Special: p.Special}
}

// at returns the rate set for a prompt of that many tokens.
func (p Price) at(promptTokens int64) PriceStep {
	set := p.base()
	for _, s := range p.Steps {
		if promptTokens > s.AbovePrompt {
			set = s
		}
	}
	return set
}

// round makes whole micro-units of a sum that is in micro-units per million
// tokens, times a tier's factor.
func (p Price) round(sum *big.Int) int64 {
	factor := p.FactorMicros
	if factor == 0 {
		factor = microsPerUnit
	}
	sum.Mul(sum, big.NewInt(max(factor, 0)))
	unit := big.NewInt(tokensPerRate * microsPerUnit)
	unit.Mul(unit, big.NewInt(microsPerUnit))
	whole, rest := sum.QuoRem(sum, unit, new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	if !whole.IsInt64() {
		return math.MaxInt64
	}
	return whole.Int64()
}

func (s PriceStep) rate(part Part, parent int64) int64 {
	for _, r := range s.Special {
		if r.Part == part {
			return r.Rate
		}
	}
	return parent
}

// cost adds the tokens of u, each at its own rate.
func (s PriceStep) cost(u Usage) *big.Int {
	sum := new(big.Int)
	text := share(sum, u.InputUncached, []priced{
		{u.InputAudio, s.rate(PartInputAudio, s.Input)},
		{u.InputImage, s.rate(PartInputImage, s.Input)},
	})
	addProduct(sum, text, s.Input)
	addProduct(sum, u.CacheRead, s.CacheRead)
	short := share(sum, u.CacheWrite, []priced{
		{u.CacheWrite30m, s.rate(PartCacheWrite30m, s.CacheWrite)},
		{u.CacheWrite1h, s.rate(PartCacheWrite1h, s.CacheWrite)},
		{u.CacheWrite12h, s.rate(PartCacheWrite12h, s.CacheWrite)},
	})
	addProduct(sum, short, s.CacheWrite)
	shown := share(sum, u.Output, []priced{
		{u.Reasoning, s.rate(PartReasoning, s.Output)},
		{u.OutputAudio, s.rate(PartOutputAudio, s.Output)},
		{u.OutputImage, s.rate(PartOutputImage, s.Output)},
	})
	addProduct(sum, shown, s.Output)
	return sum
}

// most is the cost when every token meets the dearest rate that it can.
func (s PriceStep) most(promptTokens, outputTokens int64) *big.Int {
	input, output := max(s.Input, s.CacheRead, s.CacheWrite), s.Output
	for _, r := range s.Special {
		if r.Part < PartReasoning {
			input = max(input, r.Rate)
		} else {
			output = max(output, r.Rate)
		}
	}
	sum := new(big.Int)
	addProduct(sum, promptTokens, input)
	addProduct(sum, outputTokens, output)
	return sum
}

// priced is a number of tokens and their rate.
type priced struct{ tokens, rate int64 }

// share takes parts out of whole, adds their cost to sum and returns what is
// left. A part can never be more than what is left of the whole: a count that
// contradicts itself must not charge a token twice.
func share(sum *big.Int, whole int64, parts []priced) (left int64) {
	left = max(whole, 0)
	for _, p := range parts {
		n := min(max(p.tokens, 0), left)
		addProduct(sum, n, p.rate)
		left -= n
	}
	return left
}

// addProduct adds n × rate, neither of them below 0.
func addProduct(sum *big.Int, n, rate int64) {
	if n > 0 && rate > 0 {
		product := big.NewInt(n)
		sum.Add(sum, product.Mul(product, big.NewInt(rate)))
	}
}
