package domain

import (
	"math"
	"math/bits"
)

// Price is one price version of a model. Every rate is in micro-units per
// million tokens, so that a price list in whole currency per million tokens is
// a factor of 1 000 000 away. It travels with the reservation: a settlement is
// priced by the version of its admission (SPEC §3).
type Price struct {
	Version string
	// Input is the rate of uncached prompt tokens.
	Input int64
	// CacheRead and CacheWrite fall back to nothing: config fills them from Input where the file is silent.
	CacheRead  int64
	CacheWrite int64
	Output     int64
}

const tokensPerRate = 1_000_000

// part is one summand of a cost: so many tokens at a rate.
type part struct{ tokens, rate int64 }

// CostMicros is what u costs: the parts are added exactly and rounded up once,
// so that the sum never undercharges by more than it is whole. A cost beyond
// int64 is the largest int64; negative counts cost nothing.
func (p Price) CostMicros(u Usage) int64 {
	return costOf(part{u.InputUncached, p.Input}, part{u.CacheRead, p.CacheRead}, part{u.CacheWrite, p.CacheWrite}, part{u.Output, p.Output})
}

// MaxCostMicros is the most that a prompt of promptTokens and an output of
// outputTokens can cost, whichever way the prompt meets the cache.
func (p Price) MaxCostMicros(promptTokens, outputTokens int64) int64 {
	return costOf(part{promptTokens, max(p.Input, p.CacheRead, p.CacheWrite)}, part{outputTokens, p.Output})
}

// costOf adds in 128 bits: the largest body's tokens at the highest rate that
// config allows do not fit into 64.
func costOf(parts ...part) int64 {
	var high, low, carry uint64
	for _, p := range parts {
		h, l := bits.Mul64(uint64(max(p.tokens, 0)), uint64(max(p.rate, 0)))
		low, carry = bits.Add64(low, l, 0)
		high, _ = bits.Add64(high, h, carry)
	}
	low, carry = bits.Add64(low, tokensPerRate-1, 0)
	high += carry
	if high >= tokensPerRate {
		return math.MaxInt64
	}
	micros, _ := bits.Div64(high, low, tokensPerRate)
	return int64(min(micros, math.MaxInt64))
}
