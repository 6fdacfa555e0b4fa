package keywayv1

import (
	"strings"
	"time"

	"keyway/domain"
)

// DecisionToProto is d as it crosses Envoy and lies beside the reservation.
// Hold.Limit is left out: only the reserve call reads it, and it was made.
// Times keep milliseconds.
func DecisionToProto(d domain.Decision) *Decision {
	return &Decision{
		RequestId:        d.RequestID,
		KeyId:            d.KeyID,
		Identity:         d.Identity,
		Api:              string(d.API),
		Path:             text(d.Path),
		Model:            text(d.Model),
		Stream:           d.Stream,
		StripUsage:       d.StripUsage,
		PromptTokens:     d.PromptTokens,
		OutputCap:        d.OutputCap,
		BodyLen:          d.BodyLen,
		AdmittedAtMs:     toMs(d.AdmittedAt),
		Rates:            ratesToProto(d.Price),
		Holds:            convert(d.Holds, holdToProto),
		Candidates:       convert(d.Candidates, candidateToProto),
		LeaseMs:          d.Lease.Milliseconds(),
		FirstByteLimitMs: d.FirstByteLimit.Milliseconds(),
		PromptEstimate:   d.PromptEstimate,
		ContentClass:     string(d.Class),
		Asked:            text(d.Asked),
		Route:            convert(d.Route, standingToProto),
		HeartbeatMs:      d.Heartbeat.Milliseconds(),
		Unreserved:       d.Unreserved,
		Background:       d.Background,
		IdleLimitMs:      d.IdleLimit.Milliseconds(),
		Units:            toolsToProto(d.Units),
	}
}

// DecisionFromProto is the reverse of DecisionToProto; times are in UTC. It
// checks nothing: a nil or empty message gives the zero Decision.
func DecisionFromProto(p *Decision) domain.Decision {
	return domain.Decision{
		RequestID:      p.GetRequestId(),
		KeyID:          p.GetKeyId(),
		Identity:       p.GetIdentity(),
		API:            domain.API(p.GetApi()),
		Path:           p.GetPath(),
		Model:          p.GetModel(),
		Stream:         p.GetStream(),
		StripUsage:     p.GetStripUsage(),
		PromptTokens:   p.GetPromptTokens(),
		OutputCap:      p.GetOutputCap(),
		BodyLen:        p.GetBodyLen(),
		AdmittedAt:     fromMs(p.GetAdmittedAtMs()),
		Price:          ratesFromProto(p.GetRates()),
		Holds:          convert(p.GetHolds(), holdFromProto),
		Candidates:     convert(p.GetCandidates(), candidateFromProto),
		Lease:          time.Duration(p.GetLeaseMs()) * time.Millisecond,
		FirstByteLimit: time.Duration(p.GetFirstByteLimitMs()) * time.Millisecond,
		PromptEstimate: p.GetPromptEstimate(),
		Class:          domain.ContentClass(p.GetContentClass()),
		Asked:          p.GetAsked(),
		Route:          convert(p.GetRoute(), standingFromProto),
		Heartbeat:      time.Duration(p.GetHeartbeatMs()) * time.Millisecond,
		Unreserved:     p.GetUnreserved(),
		Background:     p.GetBackground(),
		IdleLimit:      time.Duration(p.GetIdleLimitMs()) * time.Millisecond,
		Units:          toolsFromProto(p.GetUnits()),
	}
}

// RecordToProto is r as it lies in the outbox and as people see it in JSON.
// InputTokens is added for the reader; RecordFromProto does not need it.
func RecordToProto(r domain.UsageRecord) *UsageRecord {
	return &UsageRecord{
		RequestId:            r.RequestID,
		Attempt:              int32(r.Attempt),
		KeyId:                r.KeyID,
		Identity:             r.Identity,
		Api:                  string(r.API),
		Model:                text(r.Model),
		ModelServed:          text(r.ModelServed),
		ModelDispatched:      text(r.ModelDispatched),
		Channel:              r.Channel,
		Attempts:             convert(r.Attempts, attemptToProto),
		Outcome:              string(r.Outcome),
		Source:               string(r.Source),
		Status:               int32(r.Status),
		InputUncachedTokens:  r.Usage.InputUncached,
		CacheReadTokens:      r.Usage.CacheRead,
		CacheWriteTokens:     r.Usage.CacheWrite,
		CacheWrite_1HTokens:  r.Usage.CacheWrite1h,
		OutputTokens:         r.Usage.Output,
		ReasoningTokens:      r.Usage.Reasoning,
		InputTokens:          r.Usage.Input(),
		CostMicros:           r.CostMicros,
		PriceVersion:         r.PriceVersion,
		RawUsage:             r.RawUsage,
		PromptTokensEstimate: r.PromptTokensEstimate,
		UpstreamRequestId:    text(r.UpstreamRequestID),
		AdmittedAtMs:         toMs(r.AdmittedAt),
		FirstByteAtMs:        toMs(r.FirstByteAt),
		EndedAtMs:            toMs(r.EndedAt),
		CacheWrite_30MTokens: r.Usage.CacheWrite30m,
		CacheWrite_12HTokens: r.Usage.CacheWrite12h,
		InputAudioTokens:     r.Usage.InputAudio,
		InputImageTokens:     r.Usage.InputImage,
		OutputAudioTokens:    r.Usage.OutputAudio,
		OutputImageTokens:    r.Usage.OutputImage,
		ToolCalls:            toolsToProto(r.Usage.Tools),
		ServiceTier:          text(r.Usage.Tier),
		EntryNo:              int32(r.EntryNo),
		Reason:               text(r.Reason),
		Budgets:              convert(r.Budgets, text),
	}
}

// RecordFromProto is the reverse of RecordToProto; times are in UTC.
func RecordFromProto(p *UsageRecord) domain.UsageRecord {
	return domain.UsageRecord{
		RequestID:       p.GetRequestId(),
		Attempt:         int(p.GetAttempt()),
		KeyID:           p.GetKeyId(),
		Identity:        p.GetIdentity(),
		API:             domain.API(p.GetApi()),
		Model:           p.GetModel(),
		ModelServed:     p.GetModelServed(),
		ModelDispatched: p.GetModelDispatched(),
		Channel:         p.GetChannel(),
		Attempts:        convert(p.GetAttempts(), attemptFromProto),
		Outcome:         domain.Outcome(p.GetOutcome()),
		Source:          domain.Source(p.GetSource()),
		Status:          int(p.GetStatus()),
		Usage: domain.Usage{
			InputUncached: p.GetInputUncachedTokens(),
			CacheRead:     p.GetCacheReadTokens(),
			CacheWrite:    p.GetCacheWriteTokens(),
			CacheWrite1h:  p.GetCacheWrite_1HTokens(),
			Output:        p.GetOutputTokens(),
			Reasoning:     p.GetReasoningTokens(),
			CacheWrite30m: p.GetCacheWrite_30MTokens(),
			CacheWrite12h: p.GetCacheWrite_12HTokens(),
			InputAudio:    p.GetInputAudioTokens(),
			InputImage:    p.GetInputImageTokens(),
			OutputAudio:   p.GetOutputAudioTokens(),
			OutputImage:   p.GetOutputImageTokens(),
			Tools:         toolsFromProto(p.GetToolCalls()),
			Tier:          p.GetServiceTier(),
		},
		CostMicros:           p.GetCostMicros(),
		PriceVersion:         p.GetPriceVersion(),
		RawUsage:             p.GetRawUsage(),
		PromptTokensEstimate: p.GetPromptTokensEstimate(),
		UpstreamRequestID:    p.GetUpstreamRequestId(),
		AdmittedAt:           fromMs(p.GetAdmittedAtMs()),
		FirstByteAt:          fromMs(p.GetFirstByteAtMs()),
		EndedAt:              fromMs(p.GetEndedAtMs()),
		EntryNo:              int(p.GetEntryNo()),
		Reason:               p.GetReason(),
		Budgets:              p.GetBudgets(),
	}
}

func holdToProto(h domain.Hold) *Hold {
	p := &Hold{Kind: string(h.Kind), Scope: string(h.Scope), Id: h.ID, Window: h.Window, Amount: h.Amount}
	if h.Leased {
		p.LeasedLimit = h.Limit
	}
	return p
}

func holdFromProto(p *Hold) domain.Hold {
	return domain.Hold{
		Kind:   domain.LimitKind(p.GetKind()),
		Scope:  domain.Scope(p.GetScope()),
		ID:     p.GetId(),
		Window: p.GetWindow(),
		Amount: p.GetAmount(),
		Limit:  p.GetLeasedLimit(),
		Leased: p.GetLeasedLimit() > 0,
	}
}

func candidateToProto(c domain.Candidate) *Candidate {
	p := &Candidate{
		Channel:       c.Channel,
		UpstreamModel: c.UpstreamModel,
		Slots:         c.Slots,
		Patches:       convert(c.Patches, patchToProto),
		Class:         text(c.Class),
		Account:       c.Account,
		Trial:         c.Trial,
		Model:         text(c.Model),
	}
	if c.Price != nil {
		p.Rates = ratesToProto(*c.Price)
	}
	return p
}

func candidateFromProto(p *Candidate) domain.Candidate {
	c := domain.Candidate{
		Channel:       p.GetChannel(),
		UpstreamModel: p.GetUpstreamModel(),
		Slots:         p.GetSlots(),
		Patches:       convert(p.GetPatches(), patchFromProto),
		Class:         p.GetClass(),
		Account:       p.GetAccount(),
		Trial:         p.GetTrial(),
		Model:         p.GetModel(),
	}
	if p.GetRates() != nil {
		price := ratesFromProto(p.GetRates())
		c.Price = &price
	}
	return c
}

func standingToProto(s domain.Standing) *Standing {
	return &Standing{Channel: s.Channel, Model: text(s.Model), Score: s.Score, LeftOut: s.LeftOut, Note: s.Note}
}

func standingFromProto(p *Standing) domain.Standing {
	return domain.Standing{Channel: p.GetChannel(), Model: p.GetModel(), Score: p.GetScore(), LeftOut: p.GetLeftOut(), Note: p.GetNote()}
}

func patchToProto(p domain.Patch) *Patch {
	return &Patch{Offset: p.Offset, Delete: p.Delete, Insert: p.Insert}
}

func patchFromProto(p *Patch) domain.Patch {
	return domain.Patch{Offset: p.GetOffset(), Delete: p.GetDelete(), Insert: p.GetInsert()}
}

func attemptToProto(a domain.Attempt) *Attempt {
	return &Attempt{Channel: a.Channel, Status: int32(a.Status), Reason: string(a.Reason), AtMs: toMs(a.At)}
}

func attemptFromProto(p *Attempt) domain.Attempt {
	return domain.Attempt{
		Channel: p.GetChannel(), Status: int(p.GetStatus()), Reason: domain.CooldownReason(p.GetReason()), At: fromMs(p.GetAtMs()),
	}
}

// convert maps a list; an empty one becomes nil, as protobuf decodes it.
func convert[From, To any](list []From, one func(From) To) []To {
	if len(list) == 0 {
		return nil
	}
	out := make([]To, len(list))
	for i, from := range list {
		out[i] = one(from)
	}
	return out
}

// text makes s fit for a protobuf string. What clients and providers send may
// hold any bytes, and a name must never cost a settlement.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// toMs gives 0 for the zero time, which protobuf then leaves out.
func toMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMs(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
