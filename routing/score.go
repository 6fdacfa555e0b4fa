package routing

import (
	"math"
	"time"

	"keyway/domain"
)

// factors say how much each thing counts in a strategy: the exponents of a
// product that begins with the weight.
type factors struct {
	// errors is the exponent of the share of attempts that went well.
	errors float64
	// speed is the exponent of the fastest time to the first byte over the channel's own.
	speed float64
	// thrift is the exponent of one over the cost.
	thrift float64
	// load is 1 where slots that are taken, and quota that is about to be lost, count.
	load float64
	// top is how many of a priority take part in the draw; 0 is all.
	top int
	// sticks: an affinity takes the place of chance.
	sticks bool
}

// The K of each strategy's Top-K draw.
const (
	// TopWeighted is beyond what models have, so that shares follow weights.
	TopWeighted = 16
	// TopLatency leaves the slow ones in reserve, and still tries more than one.
	TopLatency = 3
)

func factorsOf(s domain.Strategy) factors {
	switch s {
	case domain.StrategyPriority:
		return factors{} // nothing but the weight
	case domain.StrategyLatency:
		return factors{errors: 2, speed: 4, load: 1, top: TopLatency}
	case domain.StrategyCost:
		return factors{errors: 2, load: 1}
	}
	return factors{errors: 2, speed: 0.5, thrift: 0.5, load: 1, top: TopWeighted, sticks: true}
}

const (
	// ttftGrain is added to every time to the first byte: what a client hardly
	// notices must not decide.
	ttftGrain = 100 * time.Millisecond
	// leastFactor keeps each channel in the draw, so that one that did badly is
	// found out when it does well again.
	leastFactor = 0.02
	// easyUse is the share of slots that may be taken before it counts.
	easyUse = 0.5
	// windowSpan is how close the end of a quota window has to be to count.
	windowSpan = time.Minute
)

// score is the product of all that counts; above 0.
func (f factors) score(o *Option, best time.Duration) float64 {
	score := weightOf(o)
	if f.errors > 0 && o.ErrorRate > 0 {
		score *= clamp(math.Pow(1-min(o.ErrorRate, 1), f.errors))
	}
	if f.speed > 0 && o.TTFT > 0 && best > 0 {
		score *= clamp(math.Pow(float64(best+ttftGrain)/float64(o.TTFT+ttftGrain), f.speed))
	}
	if f.thrift > 0 && o.Cost > 0 {
		score *= math.Pow(1/o.Cost, f.thrift)
	}
	if f.load > 0 {
		score *= room(o) * window(o)
	}
	return score
}

// room is 1 up to half of the slots in use and falls to the least when all are.
func room(o *Option) float64 {
	if o.Slots <= 0 || o.InUse <= 0 {
		return 1
	}
	use := float64(o.InUse) / float64(o.Slots)
	return clamp((1 - use) / (1 - easyUse))
}

// window is up to 2 for a quota that is unused and about to begin anew: what
// is not taken now is lost.
func window(o *Option) float64 {
	if o.WindowEnds <= 0 || o.WindowEnds >= windowSpan || o.WindowLeft <= 0 {
		return 1
	}
	return 1 + min(o.WindowLeft, 1)*(1-float64(o.WindowEnds)/float64(windowSpan))
}

func clamp(x float64) float64 { return min(max(x, leastFactor), 1) }

func weightOf(o *Option) float64 { return float64(max(o.Weight, 1)) }

func costOf(o *Option) float64 {
	if o.Cost <= 0 {
		return 1
	}
	return o.Cost
}

// fastest is the shortest known time to the first byte; 0 for none.
func fastest(options []Option) time.Duration {
	var best time.Duration
	for i := range options {
		if o := &options[i]; o.LeftOut == "" && o.TTFT > 0 && (best == 0 || o.TTFT < best) {
			best = o.TTFT
		}
	}
	return best
}

const (
	// failingRate is the share of failures at which a session leaves its channel.
	failingRate = 0.5
	// A session leaves a channel that takes slowTimes the fastest's time, if
	// that is slowBy more.
	slowTimes = 3
	slowBy    = time.Second
)

// escape is why a session should not stay on its channel; "" when it may.
func escape(o *Option, best time.Duration) string {
	switch {
	case o.Slots > 0 && o.InUse >= o.Slots:
		return NoteFull
	case o.ErrorRate >= failingRate:
		return NoteFailing
	case best > 0 && o.TTFT > slowTimes*best && o.TTFT-best > slowBy:
		return NoteSlow
	}
	return ""
}
