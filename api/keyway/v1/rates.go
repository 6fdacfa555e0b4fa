package keywayv1

import "keyway/domain"

func ratesToProto(p domain.Price) *Rates {
	return &Rates{
		Version:      p.Version,
		Input:        p.Input,
		CacheRead:    p.CacheRead,
		CacheWrite:   p.CacheWrite,
		Output:       p.Output,
		Special:      convert(p.Special, partToProto),
		Steps:        convert(p.Steps, stepToProto),
		Tools:        convert(p.Tools, toolToProto),
		Tiers:        convert(p.Tiers, tierToProto),
		FactorMicros: p.FactorMicros,
	}
}

func ratesFromProto(p *Rates) domain.Price {
	return domain.Price{
		Version:      p.GetVersion(),
		Input:        p.GetInput(),
		CacheRead:    p.GetCacheRead(),
		CacheWrite:   p.GetCacheWrite(),
		Output:       p.GetOutput(),
		Special:      convert(p.GetSpecial(), partFromProto),
		Steps:        convert(p.GetSteps(), stepFromProto),
		Tools:        convert(p.GetTools(), toolFromProto),
		Tiers:        convert(p.GetTiers(), tierFromProto),
		FactorMicros: p.GetFactorMicros(),
	}
}

func partToProto(r domain.PartRate) *PartRate {
	return &PartRate{Part: int32(r.Part), Rate: r.Rate}
}

func partFromProto(p *PartRate) domain.PartRate {
	return domain.PartRate{Part: domain.Part(p.GetPart()), Rate: p.GetRate()}
}

func stepToProto(s domain.PriceStep) *RateStep {
	return &RateStep{
		Above:      s.AbovePrompt,
		Input:      s.Input,
		CacheRead:  s.CacheRead,
		CacheWrite: s.CacheWrite,
		Output:     s.Output,
		Special:    convert(s.Special, partToProto),
	}
}

func stepFromProto(p *RateStep) domain.PriceStep {
	return domain.PriceStep{
		AbovePrompt: p.GetAbove(),
		Input:       p.GetInput(),
		CacheRead:   p.GetCacheRead(),
		CacheWrite:  p.GetCacheWrite(),
		Output:      p.GetOutput(),
		Special:     convert(p.GetSpecial(), partFromProto),
	}
}

func toolToProto(r domain.ToolRate) *ToolRate {
	return &ToolRate{Tool: int32(r.Tool), PerThousand: r.PerThousand}
}

func toolFromProto(p *ToolRate) domain.ToolRate {
	return domain.ToolRate{Tool: domain.Tool(p.GetTool()), PerThousand: p.GetPerThousand()}
}

func tierToProto(f domain.TierFactor) *TierFactor {
	return &TierFactor{Tier: f.Tier, FactorMicros: f.FactorMicros}
}

func tierFromProto(p *TierFactor) domain.TierFactor {
	return domain.TierFactor{Tier: p.GetTier(), FactorMicros: p.GetFactorMicros()}
}

// toolsToProto names the tools that were called; nil when none was.
func toolsToProto(calls [domain.ToolKinds]int64) map[string]int64 {
	var out map[string]int64
	for tool, n := range calls {
		if n == 0 {
			continue
		}
		if out == nil {
			out = make(map[string]int64)
		}
		out[domain.Tool(tool).String()] = n
	}
	return out
}

// toolsFromProto leaves out a tool that this version does not know.
func toolsFromProto(calls map[string]int64) (out [domain.ToolKinds]int64) {
	for name, n := range calls {
		if tool, ok := domain.ToolNamed(name); ok {
			out[tool] = n
		}
	}
	return out
}
