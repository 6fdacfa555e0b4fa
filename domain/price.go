package domain

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

// CostMicros is what u costs: the parts are added exactly and rounded up once,
// so that the sum never undercharges by more than it is whole.
func (p Price) CostMicros(u Usage) int64 {
	sum := u.InputUncached*p.Input + u.CacheRead*p.CacheRead + u.CacheWrite*p.CacheWrite + u.Output*p.Output
	return (sum + tokensPerRate - 1) / tokensPerRate
}

// MaxCostMicros is the most that a prompt of promptTokens and an output of
// outputTokens can cost, whichever way the prompt meets the cache.
func (p Price) MaxCostMicros(promptTokens, outputTokens int64) int64 {
	dearest := max(p.Input, p.CacheRead, p.CacheWrite)
	sum := promptTokens*dearest + outputTokens*p.Output
	return (sum + tokensPerRate - 1) / tokensPerRate
}
