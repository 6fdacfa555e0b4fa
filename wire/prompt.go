package wire

import (
	"bytes"
	"unicode/utf8"

	"keyway/domain"
)

// What the frame around a prompt costs, in tokens (PROTOCOLS §9).
const (
	tokensPerMessage = 4
	tokensPerMember  = 2 // the quotes, colon and comma of a schema's key
)

// place says what the values being counted are part of.
type place uint8

const (
	inPrompt place = iota
	// inSchema: the keys count too, because the model is shown the JSON.
	inSchema
	// inImage: a url is that of an image.
	inImage
)

// countField counts a top-level member. An unknown one counts as prompt:
// whatever it is, it may not smuggle text past the estimate.
func (p *peeker) countField(f requestField) bool {
	if f == fieldInput && p.api == domain.APISpeech && p.r.peek() == '"' {
		return p.countSpoken()
	}
	switch f {
	case fieldMessages, fieldInput, fieldPrompt, fieldInstructions, fieldSystem:
		return p.countPrompt(f)
	case fieldTools, fieldFunctions, fieldFormat, fieldText, fieldOutputConfig:
		return p.count(inSchema)
	}
	return p.count(inPrompt)
}

// countPrompt counts a member that holds the prompt itself.
func (p *peeker) countPrompt(f requestField) bool {
	before := p.est.Tokens()
	ok := false
	switch c := p.r.peek(); {
	case c == '[' && (f == fieldMessages || f == fieldInput):
		ok = p.r.elements(p.countMessage)
	default:
		p.stored = p.stored || c == '{' && f == fieldPrompt
		ok = p.count(inPrompt)
	}
	p.text = p.text || p.est.Tokens() > before
	return ok
}

func (p *peeker) countMessage() bool {
	if p.r.peek() == '{' {
		p.tokens += tokensPerMessage
	}
	return p.count(inPrompt)
}

func (p *peeker) count(in place) bool {
	r := &p.r
	switch r.peek() {
	case '{':
		if in == inSchema {
			return r.members(p.countSchemaMember)
		}
		return p.countObject(in)
	case '[':
		return p.countElements(in)
	case '"':
		t, ok := r.str()
		if ok {
			p.countText(t)
		}
		return ok
	}
	p.tokens++ // a number is one token; in an embeddings input it is one exactly
	return r.scalar()
}

func (p *peeker) countElements(in place) bool {
	r := &p.r
	if !r.enter() {
		return false
	}
	if r.peek() == ']' {
		return r.leave()
	}
	for {
		if !p.count(in) {
			return false
		}
		if more, ok := r.more(']'); !more {
			return ok
		}
	}
}

func (p *peeker) countSchemaMember(key []byte) bool {
	p.est.Feed(key)
	p.est.Break()
	p.tokens += tokensPerMember
	return p.count(inSchema)
}

// countText counts the characters a JSON string stands for.
func (p *peeker) countText(t text) {
	raw := p.r.b[t.from:t.to]
	if !t.escaped {
		p.est.Feed(raw)
		p.est.Break()
		return
	}
	// Escapes come in crowds: their characters are gathered before they are counted.
	var gathered [512]byte
	n := 0
	for len(raw) > 0 {
		if n > len(gathered)/2 {
			p.est.Feed(gathered[:n])
			n = 0
		}
		if raw[0] == '\\' {
			c, size := nextEscape(raw)
			n += utf8.EncodeRune(gathered[n:], c)
			raw = raw[size:]
			continue
		}
		k := bytes.IndexByte(raw, '\\')
		if k < 0 {
			k = len(raw)
		}
		if k <= len(gathered)/4 {
			n += copy(gathered[n:], raw[:k])
		} else {
			p.est.Feed(gathered[:n])
			p.est.Feed(raw[:k])
			n = 0
		}
		raw = raw[k:]
	}
	p.est.Feed(gathered[:n])
	p.est.Break()
}

// part is what is known of one object of a prompt once all its members were read.
type part struct {
	data   text
	has    bool
	base64 bool // type says so
	plain  bool // type or media type says text
	typed  bool // some member names the kind of the data
}

func (p *peeker) countObject(in place) bool {
	var o part
	if !p.r.members(func(key []byte) bool { return p.countMember(in, key, &o) }) {
		return false
	}
	if !o.has {
		return true
	}
	if o.base64 || (o.typed && !o.plain) {
		p.countMedia(mediaTokens(p.api, p.r.b[o.data.from:o.data.to]))
		return true
	}
	p.countText(o.data)
	return true
}

func (p *peeker) countMember(in place, key []byte, o *part) bool {
	r := &p.r
	isString := r.peek() == '"'
	switch string(key) {
	case "role", "id", "call_id", "tool_call_id", "tool_use_id", "status", "cache_control", "detail":
		return r.skip() // names for the machine; the frame around a message is counted as such
	case "input", "arguments", "input_schema", "parameters", "schema":
		return p.count(inSchema)
	case "image_url", "file_data":
		if isString {
			return p.countReference(inImage)
		}
		return p.count(inImage)
	case "source", "input_audio":
		if !isString {
			return p.count(inImage)
		}
	case "url":
		if isString {
			return p.countReference(in)
		}
	case "file_id":
		p.countMedia(imageCap(p.api))
		return r.skip()
	case "signature", "encrypted_content":
		return p.countOpaque()
	case "type", "media_type", "mime_type", "format":
		if isString {
			return p.noteType(o, string(key) == "type")
		}
	case "data":
		if isString {
			if o.has {
				p.countText(o.data) // a second one does not hide the first
			}
			t, ok := r.str()
			o.data, o.has = t, true
			return ok
		}
	}
	return p.count(in)
}

// noteType remembers what an object's type members say about its data.
func (p *peeker) noteType(o *part, isType bool) bool {
	t, ok := p.r.str()
	if !ok {
		return false
	}
	value := p.r.b[t.from:t.to]
	switch {
	case isType && string(value) == "base64":
		o.base64 = true
	case isType && string(value) == "text", !isType && bytes.HasPrefix(value, []byte("text/")):
		o.plain = true
	case !isType:
		o.typed = true
	}
	return true
}

// countReference counts a string that may be an image's URL or hold media itself.
func (p *peeker) countReference(in place) bool {
	t, ok := p.r.str()
	if !ok {
		return false
	}
	value := p.r.b[t.from:t.to]
	switch n, inline := inlineTokens(p.api, value); {
	case inline:
		p.countMedia(n)
	case in == inImage:
		p.countMedia(imageCap(p.api))
	default:
		p.countText(t)
	}
	return true
}

// countOpaque counts what the model's maker signed or sealed: it goes back as
// it came and stands for far fewer tokens than its base64 would have as text.
func (p *peeker) countOpaque() bool {
	const bytesPerToken = 8
	begin := p.r.i
	ok := p.r.skip()
	p.tokens += int64(p.r.i-begin) / bytesPerToken
	return ok
}

func (p *peeker) countMedia(tokens int64) {
	p.tokens += tokens
	p.media += tokens
}

// imageCap is what an image of unknown size may cost at most.
func imageCap(api domain.API) int64 {
	if api.Dialect() == domain.DialectAnthropic {
		return anthropicImageCap
	}
	return openAIImageCap
}
