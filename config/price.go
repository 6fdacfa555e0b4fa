package config

import (
	"fmt"
	"strings"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

const (
	// maxFactorMicros is a thousandfold price: enough for any tier, and inside
	// what a sum of costs can hold.
	maxFactorMicros = 1000 * microsPerUnit
	maxTierLength   = 32
	callsPerRate    = 1000
)

// rateTexts are the decimals of one rate set, of a price or of a step.
type rateTexts struct {
	input, cacheRead, cacheWrite, output string
	special                              [len(partFields)]string // by domain.Part
}

// partFields are the fields of parts that may have a rate of their own.
var partFields = [...]string{
	domain.PartCacheWrite30m: "cache_write_30m",
	domain.PartCacheWrite1h:  "cache_write_1h",
	domain.PartCacheWrite12h: "cache_write_12h",
	domain.PartInputAudio:    "input_audio",
	domain.PartInputImage:    "input_image",
	domain.PartReasoning:     "reasoning",
	domain.PartOutputAudio:   "output_audio",
	domain.PartOutputImage:   "output_image",
}

func priceTexts(p *keywayv1.Price) rateTexts {
	return rateTexts{p.Input, p.CacheRead, p.CacheWrite, p.Output, [...]string{
		p.CacheWrite_30M, p.CacheWrite_1H, p.CacheWrite_12H, p.InputAudio, p.InputImage, p.Reasoning, p.OutputAudio, p.OutputImage,
	}}
}

func stepTexts(p *keywayv1.PriceStep) rateTexts {
	return rateTexts{p.Input, p.CacheRead, p.CacheWrite, p.Output, [...]string{
		p.CacheWrite_30M, p.CacheWrite_1H, p.CacheWrite_12H, p.InputAudio, p.InputImage, p.Reasoning, p.OutputAudio, p.OutputImage,
	}}
}

func fillPrice(p *keywayv1.Price) {
	orDefault(&p.CacheRead, p.Input)
	orDefault(&p.CacheWrite, p.Input)
	for _, s := range p.Steps {
		orDefault(&s.CacheRead, s.Input)
		orDefault(&s.CacheWrite, s.Input)
	}
}

func (c *checker) price(at string, p *keywayv1.Price) {
	c.rates(at, priceTexts(p))
	c.tools(at, p.Tools)
	c.tiers(at, p.Tiers)
	c.images(at, p.Images)
	var above int64
	for i, s := range p.Steps {
		here := fmt.Sprintf("%s.steps[%d]", at, i)
		if s.Above < 1 || s.Above > maxTokens {
			c.add(here+".above", "%d is out of range; 1 to %d prompt tokens", s.Above, int64(maxTokens))
		} else if s.Above <= above {
			c.add(here+".above", "%d is not more than the step before; list steps by rising above", s.Above)
		}
		above = max(above, s.Above)
		c.rates(here, stepTexts(s))
	}
}

func (c *checker) rates(at string, r rateTexts) {
	for _, rate := range []struct{ field, value string }{
		{".input", r.input}, {".cache_read", r.cacheRead}, {".cache_write", r.cacheWrite}, {".output", r.output},
	} {
		switch cached := rate.field == ".cache_read" || rate.field == ".cache_write"; {
		case cached && rate.value == r.input: // the default: input has been looked at
		case rate.value == "":
			c.add(at+rate.field, "is missing; currency per million tokens, such as \"2.50\"")
		default:
			c.amount(at+rate.field, rate.value, maxPriceMicros)
		}
	}
	for part, text := range r.special {
		if text != "" {
			c.amount(at+"."+partFields[part], text, maxPriceMicros)
		}
	}
}

func (c *checker) tools(at string, tools []*keywayv1.ToolPrice) {
	var names []string
	for i, t := range tools {
		here := fmt.Sprintf("%s.tools[%d]", at, i)
		c.reference(here+".tool", t.Tool, reference{"tool that providers charge for", domain.ToolNames()})
		names = c.unique(names, here+".tool", t.Tool)
		switch {
		case t.PerThousand == "" && t.PerCall == "":
			c.add(here, "has no price; set per_thousand or per_call, such as per_thousand: \"10.00\"")
		case t.PerThousand != "" && t.PerCall != "":
			c.add(here, "has two prices; set per_thousand or per_call, not both")
		case t.PerThousand != "":
			c.amount(here+".per_thousand", t.PerThousand, maxPriceMicros)
		default:
			c.amount(here+".per_call", t.PerCall, maxPriceMicros/callsPerRate)
		}
	}
}

func (c *checker) images(at string, images []*keywayv1.ImagePrice) {
	seen := make(map[[2]string]bool, len(images))
	for i, p := range images {
		here := fmt.Sprintf("%s.images[%d]", at, i)
		for _, word := range []struct{ field, value string }{{".quality", p.Quality}, {".size", p.Size}} {
			if word.value != "" {
				c.opaque(here+word.field, word.value, maxTierLength)
			}
		}
		if kind := [2]string{p.Quality, p.Size}; seen[kind] {
			c.add(here, "has the quality and size of one before it")
		} else {
			seen[kind] = true
		}
		if p.Price == "" {
			c.add(here+".price", "is missing; currency for one image, such as \"0.04\"")
			continue
		}
		c.amount(here+".price", p.Price, maxPriceMicros/callsPerRate)
	}
}

func (c *checker) tiers(at string, tiers []*keywayv1.TierPrice) {
	var names []string
	for i, t := range tiers {
		here := fmt.Sprintf("%s.tiers[%d]", at, i)
		switch {
		case t.Tier != "" && domain.NormalTier(t.Tier) == "":
			c.add(here+".tier", "%s is the standard tier, whose price is that of the model", quote(t.Tier))
		case t.Tier != strings.ToLower(t.Tier):
			c.add(here+".tier", "%s is not lower case", quote(t.Tier))
		default:
			c.opaque(here+".tier", t.Tier, maxTierLength)
		}
		names = c.unique(names, here+".tier", t.Tier)
		if t.Multiplier == "" {
			c.add(here+".multiplier", "is missing; a decimal such as \"0.5\"")
			continue
		}
		c.amount(here+".multiplier", t.Multiplier, maxFactorMicros)
	}
}

// multiplier checks an identity's factor; "" is none.
func (c *checker) multiplier(path, text string) {
	if text == "" {
		return
	}
	if n, err := ParseMicros(text); err == nil && n == 0 {
		c.add(path, "must be more than 0; leave it out for the plain price")
		return
	}
	c.amount(path, text, maxFactorMicros)
}

func compilePrice(p *keywayv1.Price) domain.Price {
	set := compileRates(priceTexts(p))
	out := domain.Price{
		Version: p.Version, Input: set.Input, CacheRead: set.CacheRead, CacheWrite: set.CacheWrite, Output: set.Output,
		Special: set.Special,
	}
	for _, s := range p.Steps {
		step := compileRates(stepTexts(s))
		step.AbovePrompt = s.Above
		out.Steps = append(out.Steps, step)
	}
	for _, t := range p.Tools {
		tool, _ := domain.ToolNamed(t.Tool)
		out.Tools = append(out.Tools, domain.ToolRate{Tool: tool, PerThousand: micros(t.PerThousand) + callsPerRate*micros(t.PerCall)})
	}
	for _, t := range p.Tiers {
		out.Tiers = append(out.Tiers, domain.TierFactor{Tier: t.Tier, FactorMicros: micros(t.Multiplier)})
	}
	return out
}

func compileImages(images []*keywayv1.ImagePrice) []domain.ImagePrice {
	var out []domain.ImagePrice
	for _, p := range images {
		out = append(out, domain.ImagePrice{Quality: p.Quality, Size: p.Size, Micros: micros(p.Price)})
	}
	return out
}

// compileRates keeps only the special rates that differ from what their part
// would cost anyway: the price travels with every request.
func compileRates(r rateTexts) domain.PriceStep {
	set := domain.PriceStep{
		Input: micros(r.input), CacheRead: micros(r.cacheRead), CacheWrite: micros(r.cacheWrite), Output: micros(r.output),
	}
	for i, text := range r.special {
		part, rate := domain.Part(i), micros(text)
		if text != "" && rate != parentRate(set, part) {
			set.Special = append(set.Special, domain.PartRate{Part: part, Rate: rate})
		}
	}
	return set
}

func parentRate(set domain.PriceStep, part domain.Part) int64 {
	switch part {
	case domain.PartInputAudio, domain.PartInputImage:
		return set.Input
	case domain.PartReasoning, domain.PartOutputAudio, domain.PartOutputImage:
		return set.Output
	}
	return set.CacheWrite
}

// compileFactors maps the identities that have a multiplier to it, in
// millionths; nil when none has.
func compileFactors(identities []*keywayv1.Identity) map[string]int64 {
	var out map[string]int64
	for _, id := range identities {
		factor := micros(id.PriceMultiplier)
		if id.PriceMultiplier == "" || factor == microsPerUnit {
			continue
		}
		if out == nil {
			out = make(map[string]int64)
		}
		out[id.Id] = factor
	}
	return out
}
