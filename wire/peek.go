package wire

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"keyway/domain"
)

// UsageOption is what a request says in stream_options.include_usage.
type UsageOption uint8

// The states of the option; a null counts as unset.
const (
	UsageUnset UsageOption = iota
	UsageTrue
	UsageFalse
)

// Request is what a gateway must know of a client's request body. Peek makes
// it; the spans inside refer to the very bytes Peek read.
type Request struct {
	API    domain.API
	Model  string
	Stream bool
	// N is how many answers are asked for, 1 to 128; it is the greater of n and best_of.
	N int64
	// OutputCap, in tokens, is the largest cap the client set in any of the
	// known fields, times N; 0 when it set none. HasCap is whether one of them
	// is a field that providers of this API heed: any other caps nothing.
	OutputCap int64
	HasCap    bool
	// PromptTokens is the estimate of the prompt, at least 1.
	PromptTokens int64
	// HiddenPrompt: the provider adds to the prompt what does not stand in this
	// body (a stored conversation or prompt), or no text of it was found here.
	// The estimate then says little.
	HiddenPrompt bool
	// Class is what most of the prompt is; "" for one whose tokens are counted and
	// not estimated, because all of it is token ids.
	Class        domain.ContentClass
	IncludeUsage UsageOption
	// PreviousResponseID is "" when absent.
	PreviousResponseID string
	// Conversation is the conversation's id; HasConversation also holds for
	// one that was given without an id.
	Conversation    string
	HasConversation bool
	Background      bool
	// PromptCacheKey is the client's own hint for cache affinity; "" when absent.
	PromptCacheKey string
	// Session is whom the client says it speaks for: the first of user,
	// safety_identifier and metadata's user_id or session_id; "" when absent.
	Session string
	// Units are what is asked for that is charged by the piece, by domain.Tool.
	Units [domain.ToolKinds]int64
	// Size and Quality are those of the images that an image API is asked for.
	Size, Quality string

	bodyLen int64
	// open is the offset after the root's opening brace.
	open  int
	model span
	// form: the body is a form, whose values are not quoted.
	form bool
	// options is the value of stream_options, zero when absent; its opening
	// brace is followed by optionsOpen, and usage is include_usage's value.
	options      span
	optionsOpen  int
	optionsEmpty bool
	optionsNull  bool
	usage        span
	// capNull is the null that stands for the cap of CapField.
	capNull span
}

// span is a half-open range of the body; it is unset when both ends are 0.
type span struct{ from, to int }

func (s span) unset() bool { return s.to == 0 }

// MaxModelLen is the longest model name, in bytes, that a request may carry.
const MaxModelLen = 256

// Peek reads the body of a request for api once and strictly: what it saw is
// what every other JSON reader sees, and whatever two readers could read
// differently is refused. The error is a *domain.Error that names the field.
func Peek(api domain.API, body []byte) (*Request, error) {
	p := peeker{api: api, req: Request{API: api, N: 1, bodyLen: int64(len(body))}}
	p.r.b = body
	if !p.document() {
		return nil, p.r.err
	}
	p.finish()
	return &p.req, nil
}

type peeker struct {
	r    reader
	api  domain.API
	req  Request
	seen uint64
	cap  int64
	// est counts text; tokens are those that are known without an estimate of
	// text: token ids, images, the frame around messages.
	est    Estimator
	tokens int64
	// media are those of tokens that stand for images, sound and files; text
	// says that the prompt itself, not its frame, holds some.
	media int64
	text  bool
	// stored: the prompt is one that the provider keeps.
	stored bool
	// documents and characters are what is to be ranked and to be spoken.
	documents, characters int64
}

func (p *peeker) document() bool {
	r := &p.r
	if bytes.HasPrefix(r.b, []byte("\xef\xbb\xbf")) {
		return r.fail("it begins with a byte order mark")
	}
	if !utf8.Valid(r.b) {
		r.i = firstInvalid(r.b)
		return r.fail("a byte is not UTF-8")
	}
	r.space()
	if r.peek() != '{' {
		return r.fail("it does not begin with an object")
	}
	p.req.open = r.i + 1
	if !r.members(p.member) {
		return false
	}
	r.space()
	if r.i != len(r.b) {
		return r.fail("something follows the object")
	}
	if p.seen&(1<<fieldModel) == 0 {
		return p.modelMissing()
	}
	return true
}

func firstInvalid(b []byte) int {
	for i := 0; i < len(b); {
		c, size := utf8.DecodeRune(b[i:])
		if c == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
	return len(b)
}

func (p *peeker) finish() {
	q := &p.req
	q.OutputCap = p.cap * q.N
	text := p.est.Tokens()
	q.PromptTokens = max(1, p.tokens+int64(float64(text)*FamilyFactor(q.Model)))
	if text > 0 {
		q.Class = p.est.class()
	}
	if p.media > q.PromptTokens/2 {
		q.Class = domain.ContentMedia
	}
	switch p.api {
	case domain.APIChat, domain.APIMessages, domain.APIResponses, domain.APICompact:
		// What these are asked is text; token ids are not among their inputs.
		q.HiddenPrompt = !p.text || p.stored || q.PreviousResponseID != "" || q.HasConversation
	case domain.APIRerank:
		q.Units[domain.ToolSearchUnit] = max(1, (p.documents+documentsPerUnit-1)/documentsPerUnit)
	case domain.APISpeech:
		q.Units[domain.ToolCharacter] = p.characters
	case domain.APIImages, domain.APIImageEdits:
		q.Units[domain.ToolImageGeneration] = q.N
	}
}

func (p *peeker) member(key []byte) bool {
	f := fieldOf(key)
	if f != fieldUnknown {
		if p.seen&(1<<f) != 0 {
			return p.refuse(string(key), "is given twice; send it once")
		}
		p.seen |= 1 << f
	} else if name := disguised(key); name != "" {
		return p.refuse(string(key), "differs from "+name+" in case only; send it as "+name)
	}
	switch f {
	case fieldModel:
		return p.readModel()
	case fieldStream:
		return p.readFlag("stream", &p.req.Stream)
	case fieldStreamOptions:
		return p.readStreamOptions()
	case fieldMaxTokens, fieldMaxCompletionTokens, fieldMaxOutputTokens:
		return p.readCap(string(key))
	case fieldN, fieldBestOf:
		return p.readN(string(key))
	case fieldBackground:
		return p.readFlag("background", &p.req.Background)
	case fieldPreviousResponse:
		return p.readString("previous_response_id", &p.req.PreviousResponseID)
	case fieldConversation:
		return p.readConversation()
	case fieldCacheKey:
		return p.readString("prompt_cache_key", &p.req.PromptCacheKey)
	case fieldUser, fieldMetadata, fieldSafetyID:
		return p.readSession(f)
	case fieldServiceTier, fieldInclude:
		return p.r.skip()
	case fieldDocuments, fieldSize, fieldQuality:
		return p.readPiece(f)
	}
	return p.countField(f)
}

// refuse sets the error of a field that is well-formed JSON and not acceptable.
func (p *peeker) refuse(field, why string) bool {
	p.r.err = domain.Errorf(domain.CodeInvalidRequest, "The field %q %s.", field, why)
	p.r.err.Param = field
	return false
}

func (p *peeker) wrongType(field, want string) bool {
	got := "a number"
	switch p.r.peek() {
	case '"':
		got = "a string"
	case '{':
		got = "an object"
	case '[':
		got = "an array"
	case 't', 'f':
		got = "a boolean"
	case 'n':
		got = "null"
	}
	if !p.r.skip() { // a value that is no JSON at all is the greater fault
		return false
	}
	return p.refuse(field, fmt.Sprintf("must be %s, not %s", want, got))
}

func (p *peeker) modelMissing() bool {
	p.r.err = domain.Errorf(domain.CodeModelMissing, "The field \"model\" is missing. Name the model that should answer.")
	p.r.err.Param = "model"
	return false
}

func (p *peeker) readModel() bool {
	r := &p.r
	switch r.peek() {
	case 'n':
		return r.word("null") && p.modelMissing()
	case '"':
	default:
		return p.wrongType("model", "a string")
	}
	begin := r.i
	t, ok := r.str()
	if !ok {
		return false
	}
	p.req.model = span{begin, r.i}
	p.req.Model = r.plainText(t)
	switch {
	case p.req.Model == "":
		return p.modelMissing()
	case len(p.req.Model) > MaxModelLen:
		return p.refuse("model", fmt.Sprintf("is longer than %d bytes", MaxModelLen))
	}
	return true
}

// plainText returns a string's text as a string of its own.
func (r *reader) plainText(t text) string {
	raw := r.b[t.from:t.to]
	if t.escaped {
		raw = appendUnescaped(nil, raw)
	}
	return string(raw)
}

// readFlag reads a boolean; null leaves it false.
func (p *peeker) readFlag(field string, to *bool) bool {
	switch p.r.peek() {
	case 't':
		*to = true
		return p.r.word("true")
	case 'f':
		return p.r.word("false")
	case 'n':
		return p.r.word("null")
	}
	return p.wrongType(field, "true or false")
}

// readString reads a string; null leaves it empty.
func (p *peeker) readString(field string, to *string) bool {
	switch p.r.peek() {
	case 'n':
		return p.r.word("null")
	case '"':
		t, ok := p.r.str()
		if ok {
			*to = p.r.plainText(t)
		}
		return ok
	}
	return p.wrongType(field, "a string")
}

// readInt reads an integer from 0 up to limit; ok is false for null too.
func (p *peeker) readInt(field string, limit int64) (n int64, given, ok bool) {
	r := &p.r
	c := r.peek()
	if c == 'n' {
		return 0, false, r.word("null")
	}
	if c != '-' && !isDigit(c) {
		return 0, false, p.wrongType(field, "an integer")
	}
	begin := r.i
	if !r.number() {
		return 0, false, false
	}
	n, ok = parseCount(r.b[begin:r.i], limit)
	if !ok {
		return 0, false, p.refuse(field, fmt.Sprintf("must be an integer from 0 to %d", limit))
	}
	return n, true, true
}

// parseCount reads plain decimal digits as a number up to limit; n is 0 for
// anything else.
func parseCount(digits []byte, limit int64) (n int64, ok bool) {
	const enough = 15 // digits that cannot overflow
	if len(digits) == 0 || len(digits) > enough {
		return 0, false
	}
	for _, c := range digits {
		if !isDigit(c) {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	if n > limit {
		return 0, false
	}
	return n, true
}

func (p *peeker) readStreamOptions() bool {
	r, q := &p.r, &p.req
	begin := r.i
	switch r.peek() {
	case 'n':
		q.optionsNull = true
		ok := r.word("null")
		q.options = span{begin, r.i}
		return ok
	case '{':
	default:
		return p.wrongType("stream_options", "an object")
	}
	q.optionsOpen, q.optionsEmpty = r.i+1, true
	ok := r.members(func(key []byte) bool {
		q.optionsEmpty = false
		if string(key) != "include_usage" {
			return r.skip()
		}
		if !q.usage.unset() {
			return p.refuse("stream_options.include_usage", "is given twice; send it once")
		}
		return p.readIncludeUsage()
	})
	q.options = span{begin, r.i}
	return ok
}

func (p *peeker) readIncludeUsage() bool {
	begin := p.r.i
	state := map[byte]UsageOption{'t': UsageTrue, 'f': UsageFalse}[p.r.peek()]
	var given bool
	if !p.readFlag("stream_options.include_usage", &given) {
		return false
	}
	p.req.IncludeUsage = state
	p.req.usage = span{begin, p.r.i}
	return true
}
