package authz

import (
	"time"

	"keyway/config"
	"keyway/domain"
	"keyway/wire"
)

// headerOutputCap tells the client which output cap was put into its request,
// in tokens for each answer.
const headerOutputCap = "x-keyway-output-cap"

// sizing is what a hold is sized by.
type sizing struct {
	snap  *config.Snapshot
	key   domain.VirtualKey
	peek  *wire.Request
	model domain.Model
	body  []byte
}

// terms are what goes with a decision and does not travel with it.
type terms struct {
	// inject is the cap, in tokens for each answer, that has to go into the
	// request so that the hold is enough; 0 is none.
	inject int64
	// open is for how long the request's limits may be kept without the store.
	open time.Duration
}

// decide sizes the hold: the corrected estimate of the prompt and the largest output.
func (s *Server) decide(z sizing) (domain.Decision, terms) {
	key, now := z.key, s.now()
	own, shared := z.snap.Policies[key.Policy], z.snap.Policies[z.snap.Identities[key.Identity]]
	prompt, class := z.prompt(s.calibration.load())
	output := z.output(prompt)
	var inject int64
	if z.peek.LacksCap() && (own.InjectCap || shared.InjectCap) {
		inject = max(output/z.peek.N, smallestCap(z.peek.API))
		output = inject * z.peek.N
	}
	price := z.model.Price
	price.FactorMicros = z.snap.PriceFactors[key.Identity]
	demand := domain.Demand{Model: z.model.Name, Tokens: prompt + output, CostMicros: price.MaxCostMicros(prompt, output)}
	if own.LimitsImages(demand.Model) || shared.LimitsImages(demand.Model) {
		demand.Images = wire.ImagesAsked(z.peek.API, z.body)
	}
	var holds []domain.Hold
	if z.snap.Prepaid[key.Identity] {
		holds = append(holds, domain.BalanceHold(key.Identity, demand.CostMicros))
	}
	holds = append(holds, own.Holds(domain.ScopeKey, key.ID, demand, now)...)
	holds = append(holds, shared.Holds(domain.ScopeIdentity, key.Identity, demand, now)...)
	holds = append(holds, z.snap.Ceiling.Holds(domain.ScopeRegion, z.snap.Region, demand, now)...)
	if !budgeted(holds) {
		inject = 0
	}
	return domain.Decision{
		KeyID: key.ID, Identity: key.Identity,
		Model: z.model.Name, Stream: z.peek.Stream,
		PromptTokens: prompt, OutputCap: output, PromptEstimate: z.peek.PromptTokens, Class: class,
		AdmittedAt: now, Price: price, Holds: holds, Lease: z.snap.Lease,
	}, terms{inject: inject, open: openWindow(holds, own, shared)}
}

// prompt is what to reserve for the prompt, in tokens, and the class from
// which its outcome may be learned: "" where the body does not show it whole.
func (z sizing) prompt(known domain.Calibration) (int64, domain.ContentClass) {
	tokens := known.Correct(domain.CalibrationKey{Model: z.model.Name, Class: z.peek.Class}, z.peek.PromptTokens)
	if z.peek.HiddenPrompt {
		return max(tokens, z.model.HiddenPromptFloor), ""
	}
	return tokens, z.peek.Class
}

// output is what to reserve for all answers together, in tokens: the largest
// cap in the request or, where it has none that counts, the model's own
// maximum; either clipped to what the window leaves.
func (z sizing) output(prompt int64) int64 {
	if z.peek.API == domain.APIEmbeddings {
		return 0
	}
	output := z.peek.OutputCap
	if !z.peek.HasCap {
		output = max(output, z.model.MaxOutput*z.peek.N)
	}
	if z.model.ContextWindow > 0 {
		output = min(output, max(z.model.ContextWindow-prompt, 0)*z.peek.N)
	}
	return output
}

// smallestCap is the least that a provider takes for a cap.
func smallestCap(api domain.API) int64 {
	if api == domain.APIResponses {
		return 16
	}
	return 1
}

// budgeted reports whether money limits the request.
func budgeted(holds []domain.Hold) bool {
	for _, h := range holds {
		if h.Kind.IsBudget() {
			return true
		}
	}
	return false
}

// candidate is what is particular to one channel; inject is the cap to put in.
func candidate(c domain.Channel, peek *wire.Request, inject int64) domain.Candidate {
	upstream := c.Models[peek.Model]
	return domain.Candidate{
		Channel: c.Name, UpstreamModel: upstream, Slots: c.Slots,
		Patches: peek.Patches(wire.PatchOptions{UpstreamModel: upstream, InjectUsage: c.InjectUsage, OutputCap: inject}),
		Account: c.Account,
	}
}
