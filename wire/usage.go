package wire

import (
	"bytes"
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
	// tier and speed are the words of a Messages usage for how it was served.
	tier, speed string
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
	countWrite30m
	countWrite12h
	countInputAudio
	countInputImage
	countOutputAudio
	countOutputImage
	countWebSearch
	countWebFetch
	countSearchUnits
	countSeconds
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
// negative or beyond belief are left as they were; a number that is written as
// a fraction or in quotes is read as a whole one. It returns false, and changes
// nothing, for what is no JSON object.
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
	// Moonshot and DeepSeek tell the cached part beside the prompt, inside it.
	case "cache_read_input_tokens", "cached_tokens", "prompt_cache_hit_tokens":
		return t.number(r, countCacheRead)
	case "cache_creation_input_tokens":
		return t.number(r, countCacheWrite)
	case "prompt_tokens_details", "input_tokens_details", "input_token_details", "cache_creation", "cache_write_tokens_details":
		return t.details(r, inputParts)
	case "completion_tokens_details", "output_tokens_details", "output_token_details":
		return t.details(r, outputParts)
	case "server_tool_use":
		return t.details(r, toolParts)
	case "search_units":
		return t.ceiling(r, countSearchUnits)
	case "seconds":
		return t.ceiling(r, countSeconds)
	case "service_tier":
		return word(r, &t.tier)
	case "speed":
		return word(r, &t.speed)
	}
	return r.skip()
}

// parts are the fields of a detail object and what they count.
type parts map[string]countField

var (
	inputParts = parts{
		"cached_tokens":             countCacheRead,
		"cache_write_tokens":        countCacheWrite,
		"ephemeral_5m_input_tokens": countWrite5m,
		"ephemeral_1h_input_tokens": countWrite1h,
		"ttl_30m_tokens":            countWrite30m,
		"ttl_1h_tokens":             countWrite1h,
		"ttl_12h_tokens":            countWrite12h,
		"audio_tokens":              countInputAudio,
		"image_tokens":              countInputImage,
	}
	outputParts = parts{
		"reasoning_tokens": countReasoning,
		"thinking_tokens":  countReasoning,
		"audio_tokens":     countOutputAudio,
		"image_tokens":     countOutputImage,
	}
	toolParts = parts{
		"web_search_requests": countWebSearch,
		"web_fetch_requests":  countWebFetch,
	}
)

// details reads one detail object; null and anything else counts nothing.
func (t *tally) details(r *reader, of parts) bool {
	if r.peek() != '{' {
		return r.skip()
	}
	return r.members(func(key []byte) bool {
		if f, ok := of[string(key)]; ok {
			return t.number(r, f)
		}
		if string(key) == "cache_write_tokens_details" {
			return t.details(r, inputParts)
		}
		return r.skip()
	})
}

// word reads a string into to; anything else leaves it as it was.
func word(r *reader, to *string) bool {
	begin := r.i
	if !r.skip() {
		return false
	}
	if raw := r.b[begin:r.i]; len(raw) > 2 && raw[0] == '"' {
		*to = cut(string(appendUnescaped(nil, raw[1:len(raw)-1])))
	}
	return true
}

func (t *tally) number(r *reader, f countField) bool {
	begin := r.i
	if !r.skip() {
		return false
	}
	raw := r.b[begin:r.i]
	n, ok := parseCount(raw, maxCount)
	if !ok {
		// Backends in languages with one kind of number write 12.0, some "12".
		n, ok = parseCeiling(bytes.Trim(raw, `"`))
	}
	if ok {
		t.set(f, n)
	}
	return true
}

// ceiling reads a number that need not be whole, and rounds it up.
func (t *tally) ceiling(r *reader, f countField) bool {
	begin := r.i
	if !r.skip() {
		return false
	}
	if n, ok := parseCeiling(r.b[begin:r.i]); ok {
		t.set(f, n)
	}
	return true
}

// parseCeiling reads plain decimal digits with or without a fraction, and rounds up.
func parseCeiling(text []byte) (n int64, ok bool) {
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	n, ok = parseCount(whole, maxCount-1)
	for _, c := range fraction {
		ok = ok && isDigit(c)
	}
	if ok && len(bytes.Trim(fraction, "0")) > 0 {
		n++
	}
	return n, ok
}

// usage returns the canonical record. The parts are made disjoint and never
// negative, whatever the provider counted.
func (t *tally) usage(d domain.Dialect) domain.Usage {
	u := t.openAIUsage()
	if d == domain.DialectAnthropic {
		u = t.anthropicUsage()
	}
	u.Reasoning = min(t.reasoning(u), u.Output)
	left := u.Output - u.Reasoning
	u.OutputAudio = take(&left, t.count[countOutputAudio])
	u.OutputImage = take(&left, t.count[countOutputImage])
	left = u.InputUncached
	u.InputAudio = take(&left, t.count[countInputAudio])
	u.InputImage = take(&left, t.count[countInputImage])
	left = u.CacheWrite
	u.CacheWrite1h = take(&left, t.count[countWrite1h])
	u.CacheWrite12h = take(&left, t.count[countWrite12h])
	u.CacheWrite30m = take(&left, t.count[countWrite30m])
	return u
}

// take takes up to n of what is left.
func take(left *int64, n int64) int64 {
	n = min(n, *left)
	*left -= n
	return n
}

// openAIUsage splits a prompt count that includes what was cached.
func (t *tally) openAIUsage() domain.Usage {
	left := t.count[countPrompt]
	u := domain.Usage{Output: t.count[countOutput] + t.hidden()}
	u.CacheRead = take(&left, t.count[countCacheRead])
	u.CacheWrite = take(&left, t.count[countCacheWrite])
	u.InputUncached = left
	return u
}

// hidden is the thinking that a provider left out of the completion: where the
// total is more than its parts (Gemini's compatible endpoint and others).
func (t *tally) hidden() int64 {
	if !t.has(countPrompt) {
		return 0
	}
	return max(0, t.count[countTotal]-t.count[countPrompt]-t.count[countOutput])
}

func (t *tally) reasoning(u domain.Usage) int64 {
	return max(t.count[countReasoning], u.Output-t.count[countOutput])
}

// anthropicUsage takes a prompt count that is beside what was cached.
func (t *tally) anthropicUsage() domain.Usage {
	write := t.count[countCacheWrite]
	if !t.has(countCacheWrite) {
		write = t.count[countWrite5m] + t.count[countWrite1h]
	}
	return domain.Usage{
		InputUncached: t.count[countPrompt],
		CacheRead:     t.count[countCacheRead],
		CacheWrite:    write,
		Output:        t.count[countOutput],
	}
}

// tools are the calls that a usage object counts.
func (t *tally) tools() (calls toolCalls) {
	calls[domain.ToolWebSearch] = t.count[countWebSearch]
	calls[domain.ToolWebFetch] = t.count[countWebFetch]
	calls[domain.ToolSearchUnit] = t.count[countSearchUnits]
	calls[domain.ToolAudioSecond] = t.count[countSeconds]
	return calls
}

// usedTier is the tier that a Messages usage names. Speed is a tier of its own
// to whoever pays for it.
func (t *tally) usedTier() string {
	if speed := domain.NormalTier(t.speed); speed != "" {
		return speed
	}
	return domain.NormalTier(t.tier)
}
