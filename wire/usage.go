package wire

import (
	"unicode/utf8"

	"keyway/domain"
)

// tally gathers a provider's usage objects into the canonical record
// (PROTOCOLS §6). A field that comes again replaces the former value; nothing
// is ever added up over objects.
type tally struct {
	count [countFields]int64
	// known has a bit for every field that has come.
	known uint32
}

// countField is one number of a usage object, of either dialect.
type countField uint8

const (
	countPrompt countField = iota
	countOutput
	countTotal
	countCacheRead
	countCacheWrite
	countWrite5m
	countWrite1h
	countReasoning
	countFields
)

// maxCount is the largest count that is believed.
const maxCount = 1 << 31

func (t *tally) set(f countField, n int64) {
	t.count[f] = n
	t.known |= 1 << f
}

func (t *tally) has(f countField) bool { return t.known&(1<<f) != 0 }

// apply overlays the fields of one raw usage object. Fields that are null,
// negative, fractional or beyond belief are left as they were. It returns
// false, and changes nothing, for what is no JSON object.
func (t *tally) apply(raw []byte) bool {
	if len(raw) == 0 || raw[0] != '{' || !utf8.Valid(raw) {
		return false
	}
	next := *t
	// A total belongs to the object it came in: only there it can be compared.
	next.known &^= 1 << countTotal
	next.count[countTotal] = 0
	r := reader{b: raw}
	ok := r.members(func(key []byte) bool { return next.member(&r, key) })
	if ok {
		*t = next
	}
	return ok
}

func (t *tally) member(r *reader, key []byte) bool {
	switch string(key) {
	case "prompt_tokens", "input_tokens":
		return t.number(r, countPrompt)
	case "completion_tokens", "output_tokens":
		return t.number(r, countOutput)
	case "total_tokens":
		return t.number(r, countTotal)
	case "cache_read_input_tokens":
		return t.number(r, countCacheRead)
	case "cache_creation_input_tokens":
		return t.number(r, countCacheWrite)
	case "prompt_tokens_details", "input_tokens_details",
		"completion_tokens_details", "output_tokens_details", "cache_creation":
		if r.peek() == '{' {
			return r.members(func(key []byte) bool { return t.detail(r, key) })
		}
	}
	return r.skip()
}

func (t *tally) detail(r *reader, key []byte) bool {
	switch string(key) {
	case "cached_tokens":
		return t.number(r, countCacheRead)
	case "cache_write_tokens":
		return t.number(r, countCacheWrite)
	case "reasoning_tokens", "thinking_tokens":
		return t.number(r, countReasoning)
	case "ephemeral_5m_input_tokens":
		return t.number(r, countWrite5m)
	case "ephemeral_1h_input_tokens":
		return t.number(r, countWrite1h)
	}
	return r.skip()
}

func (t *tally) number(r *reader, f countField) bool {
	begin := r.i
	if !r.skip() {
		return false
	}
	if n, ok := parseCount(r.b[begin:r.i], maxCount); ok {
		t.set(f, n)
	}
	return true
}

// usage returns the canonical record. The parts are made disjoint and never
// negative, whatever the provider counted.
func (t *tally) usage(d domain.Dialect) domain.Usage {
	if d == domain.DialectAnthropic {
		return t.anthropicUsage()
	}
	u := domain.Usage{CacheRead: t.count[countCacheRead], CacheWrite: t.count[countCacheWrite]}
	prompt := t.count[countPrompt]
	u.CacheRead = min(u.CacheRead, prompt)
	u.CacheWrite = min(u.CacheWrite, prompt-u.CacheRead)
	u.InputUncached = prompt - u.CacheRead - u.CacheWrite
	u.Output, u.Reasoning = t.count[countOutput], t.count[countReasoning]
	// Where the total is more than its parts, the thinking was left out of the
	// completion (Gemini's compatible endpoint and others).
	if hidden := t.count[countTotal] - prompt - u.Output; hidden > 0 && t.has(countPrompt) {
		u.Output += hidden
		u.Reasoning = max(u.Reasoning, hidden)
	}
	u.Reasoning = min(u.Reasoning, u.Output)
	return u
}

func (t *tally) anthropicUsage() domain.Usage {
	write := t.count[countCacheWrite]
	if !t.has(countCacheWrite) {
		write = t.count[countWrite5m] + t.count[countWrite1h]
	}
	output := t.count[countOutput]
	return domain.Usage{
		InputUncached: t.count[countPrompt],
		CacheRead:     t.count[countCacheRead],
		CacheWrite:    write,
		CacheWrite1h:  min(t.count[countWrite1h], write),
		Output:        output,
		Reasoning:     min(t.count[countReasoning], output),
	}
}
