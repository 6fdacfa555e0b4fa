package domain

import "slices"

// Strategy is how the channels of a model are ordered for a request (SPEC §4).
type Strategy string

// The strategies; docs/routing.md says what each reckons with.
const (
	// StrategyWeighted draws by weight and by how each channel does. It is the default.
	StrategyWeighted Strategy = "weighted"
	// StrategyPriority keeps one order.
	StrategyPriority Strategy = "priority"
	// StrategyLatency draws among those that begin to answer soonest.
	StrategyLatency Strategy = "latency"
	// StrategyCost takes the cheapest first.
	StrategyCost Strategy = "cost"
	// StrategySticky keeps a session on one channel while that does well.
	StrategySticky Strategy = "sticky"
)

// Strategies lists every strategy, for validation.
func Strategies() []Strategy {
	return []Strategy{StrategyWeighted, StrategyPriority, StrategyLatency, StrategyCost, StrategySticky}
}

// Valid reports whether s is one of Strategies.
func (s Strategy) Valid() bool { return slices.Contains(Strategies(), s) }

// ModelState is where a model is in its life.
type ModelState string

// The states of a model.
const (
	ModelActive ModelState = "active"
	// ModelPreview is only for keys that name the model in full.
	ModelPreview ModelState = "preview"
	// ModelDeprecated serves, and each answer says that it will not for ever.
	ModelDeprecated ModelState = "deprecated"
)

// Valid reports whether s is a state of a model.
func (s ModelState) Valid() bool {
	return s == ModelActive || s == ModelPreview || s == ModelDeprecated
}

// Standing is one channel as it stood when a request was routed.
type Standing struct {
	Channel string
	// Model is the name under which it would have served.
	Model string
	// Score is what it was drawn or ordered by; higher is better. 0 when left out.
	Score float64
	// LeftOut is why the request could not go there; "" for a candidate.
	LeftOut string
	// Note is why a candidate stands behind others in spite of its score, such
	// as a sticky channel that was slow; "" for none.
	Note string
}

// Explanation is what is known of how a request was routed and how it ended.
type Explanation struct {
	// Decision is that of the admission, its Route included; zero when the
	// store had lost it before the end.
	Decision Decision
	// Ended is false while the request runs; Record is empty then.
	Ended bool
	// Record is the settlement without the provider's raw usage.
	Record UsageRecord
}
