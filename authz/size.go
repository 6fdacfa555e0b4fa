package authz

import (
	"math"
	"slices"

	"keyway/config"
	"keyway/domain"
	"keyway/wire"
)

// headerOutputCap tells the client which output cap was put into its request,
// in tokens for each answer.
const headerOutputCap = "x-keyway-output-cap"

// sizing is what a hold is sized by.
type sizing struct {
	snap *config.Snapshot
	key  domain.VirtualKey
	peek *wire.Request
	// models may be dispatched, the first one first; never empty.
	models []domain.Model
	body   []byte
}

// size is how large a request may become with one model.
type size struct {
	prompt, output int64
	class          domain.ContentClass
}

// terms are what goes with a decision and does not travel with it.
type terms struct {
	// inject is the cap, in tokens for each answer, that has to go into the
	// request so that the hold is enough; 0 is none.
	inject int64
	// own and shared are the policies of the key and of its identity.
	own, shared domain.Policy
}

// decide sizes the hold: the corrected estimate of the prompt and the largest
// output. Where several models may be dispatched it is the largest and the
// dearest of them, and the limits of each hold it; the settlement charges the
// one that served.
func (s *Server) decide(z sizing) (domain.Decision, terms) {
	key, now, known := z.key, s.now(), s.calibration.load()
	own, shared := z.snap.Policies[key.Policy], z.snap.Policies[z.snap.Identities[key.Identity]]
	sizes := make([]size, len(z.models))
	var inject int64
	for i, m := range z.models {
		sizes[i].prompt, sizes[i].class = z.prompt(m, known)
		sizes[i].output = z.output(m, sizes[i].prompt)
		if z.peek.LacksCap() && (own.InjectCap || shared.InjectCap) {
			// One cap, so that the client is told the one that it gets.
			most := max(sizes[i].output/z.peek.N, smallestCap(z.peek.API))
			if i == 0 || most < inject {
				inject = most
			}
		}
	}
	demand := domain.Demand{Toll: z.peek.API.Toll()}
	for i, m := range z.models {
		if inject > 0 {
			sizes[i].output = inject * z.peek.N
		}
		demand.Models = append(demand.Models, m.Name)
		demand.Tokens = max(demand.Tokens, sizes[i].prompt+sizes[i].output)
		demand.CostMicros = max(demand.CostMicros, z.mostMicros(z.price(m), sizes[i]))
		switch {
		case z.peek.API.MakesImages():
			demand.Images = z.peek.N
		case own.LimitsImages(m.Name) || shared.LimitsImages(m.Name):
			demand.Images = wire.ImagesAsked(z.peek.API, z.body)
		}
	}
	var holds []domain.Hold
	if z.snap.Prepaid[key.Identity] && !z.peek.API.Free() {
		holds = append(holds, domain.BalanceHold(key.Identity, demand.CostMicros))
	}
	holds = append(holds, own.Holds(domain.ScopeKey, key.ID, demand, now)...)
	holds = append(holds, shared.Holds(domain.ScopeIdentity, key.Identity, demand, now)...)
	holds = append(holds, z.snap.Ceiling.Holds(domain.ScopeRegion, z.snap.Region, demand, now)...)
	if !budgeted(holds) {
		inject = 0
	}
	first := z.models[0]
	return domain.Decision{
		KeyID: key.ID, Identity: key.Identity,
		Model: first.Name, Stream: z.peek.Stream,
		PromptTokens: sizes[0].prompt, OutputCap: sizes[0].output, PromptEstimate: z.peek.PromptTokens, Class: sizes[0].class,
		AdmittedAt: now, Price: z.price(first), Units: z.peek.Units, Holds: holds, Lease: z.snap.Lease,
		Heartbeat: first.Heartbeat, IdleLimit: first.IdleLimit,
	}, terms{inject: inject, own: own, shared: shared}
}

// spokenTokensPerTen is how many tokens of sound ten characters become: some 15
// characters a second, and 20 tokens.
const spokenTokensPerTen = 14

// price is what the request pays for m: its price with the identity's
// multiplier, and the price of an image of the kind asked for; nothing where it is free.
func (z sizing) price(m domain.Model) domain.Price {
	price := m.Price
	if z.peek.API.Free() {
		return domain.Price{Version: price.Version}
	}
	price.FactorMicros = z.snap.PriceFactors[z.key.Identity]
	if !z.peek.API.MakesImages() {
		return price
	}
	if micros, ok := m.ImageMicros(z.peek.Quality, z.peek.Size); ok {
		price.Tools = []domain.ToolRate{{Tool: domain.ToolImageGeneration, PerThousand: micros * 1000}}
	}
	return price
}

// mostMicros is the most that the tokens and the pieces of the request can cost.
func (z sizing) mostMicros(price domain.Price, of size) int64 {
	tokens, pieces := price.MaxCostMicros(of.prompt, of.output), price.CostMicros(domain.Usage{Tools: z.peek.Units})
	if tokens > math.MaxInt64-pieces {
		return math.MaxInt64
	}
	return tokens + pieces
}

// pricedByImage reports whether the price of one image is known.
func (z sizing) pricedByImage(m domain.Model) bool {
	_, ok := m.ImageMicros(z.peek.Quality, z.peek.Size)
	return ok || slices.ContainsFunc(m.Price.Tools, func(r domain.ToolRate) bool { return r.Tool == domain.ToolImageGeneration })
}

// prompt is what to reserve for the prompt, in tokens, and the class from
// which its outcome may be learned: "" where the body does not show it whole.
func (z sizing) prompt(m domain.Model, known domain.Calibration) (int64, domain.ContentClass) {
	if z.peek.API.Free() || z.peek.API.IsRaw() {
		return 0, ""
	}
	tokens := known.Correct(domain.CalibrationKey{Model: m.Name, Class: z.peek.Class}, z.peek.PromptTokens)
	if z.peek.HiddenPrompt {
		return max(tokens, m.HiddenPromptFloor), ""
	}
	return tokens, z.peek.Class
}

// output is what to reserve for all answers together, in tokens: the largest
// cap in the request or, where it has none that counts, the model's own
// maximum; either clipped to what the window leaves.
func (z sizing) output(m domain.Model, prompt int64) int64 {
	switch api := z.peek.API; {
	case api == domain.APIEmbeddings, api == domain.APIRerank, api.IsRaw(), api.Free():
		return 0
	case api == domain.APISpeech:
		return (z.peek.Units[domain.ToolCharacter]*spokenTokensPerTen + 9) / 10
	case api.MakesImages() && z.pricedByImage(m):
		return 0 // held by the image
	}
	output := z.peek.OutputCap
	if !z.peek.HasCap {
		output = max(output, m.MaxOutput*z.peek.N)
	}
	if m.ContextWindow > 0 {
		output = min(output, max(m.ContextWindow-prompt, 0)*z.peek.N)
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

// candidateTerms are what all candidates of a request have in common; inject is
// the cap to put in.
type candidateTerms struct {
	sizing
	inject int64
}

// into writes into d whom the request may go to, in order, and what follows from that.
func (w route) into(d *domain.Decision, t candidateTerms) {
	d.Route = w.standings
	if t.peek.Model != d.Model {
		d.Asked = t.peek.Model
	}
	for _, p := range w.picks {
		d.Candidates = append(d.Candidates, candidate(d, p, t))
		d.FirstByteLimit = max(d.FirstByteLimit, p.channel.Provider.FirstByteLimit)
		d.StripUsage = d.StripUsage || (p.channel.InjectUsage && t.peek.LacksUsage())
	}
}

// candidate is what is particular to one channel and to the model it serves.
func candidate(d *domain.Decision, p pick, t candidateTerms) domain.Candidate {
	upstream := p.channel.Models[p.model.Name]
	c := domain.Candidate{
		Channel: p.channel.Name, UpstreamModel: upstream, Slots: p.channel.Slots,
		Patches: t.peek.Patches(wire.PatchOptions{UpstreamModel: upstream, InjectUsage: p.channel.InjectUsage, OutputCap: t.inject}),
		Account: p.channel.Account, Egress: p.channel.Egress, Class: p.model.HealthClass(d.API), Trial: p.trial,
	}
	if p.model.Name != d.Model {
		price := t.price(p.model)
		c.Model, c.Price = p.model.Name, &price
	}
	return c
}
