package wire

import (
	"bytes"
	"slices"

	"keyway/domain"
	"keyway/wire/sse"
)

// WatchOptions says what a Watcher is to watch.
type WatchOptions struct {
	API domain.API
	// Format is what the content type says; the first bytes may know better.
	Format Format
	// Streamed: the client asked for a stream of events, and reads nothing else.
	Streamed bool
	// StripUsage takes out of a chat or completions stream what the provider was
	// asked for by us and not by the client: the usage chunk, and "usage":null in
	// the others. Frames over 16 KiB pass as they are.
	StripUsage bool
	// RequestID is ours, for the error frame of a broken stream.
	RequestID string
}

// Watcher reads one answer while its bytes pass to the client. Memory is
// bounded whatever the answer holds. A Watcher is confined to one goroutine.
type Watcher struct {
	opts  WatchOptions
	split sse.Splitter
	scan  scanner
	text  Estimator
	strip stripper

	layout layout

	// state of the frame being read
	prefix     [len(doneMark)]byte
	prefixLen  int
	frameBegun bool
	// joined: the frame holds several events, of which one has been judged.
	joined bool

	// what is known of the answer so far
	tally    tally
	hasUsage bool
	input    bool
	result   Result
	startRaw []byte // usage object of message_start
	lastRaw  []byte // usage object that came last
	counted  int64  // tokens of text up to there
	choices  choiceSet
	items    itemCount
	sequence int64 // next sequence_number of a Responses stream
	closed   bool
}

// StreamError is an error that came inside an answer, in the provider's words.
type StreamError struct {
	Type string `json:"type"`
	Code string `json:"code"`
	// Message is cut at maxErrorMessage bytes. It must not be logged with the key or the prompt.
	Message string `json:"message"`
}

// Result is what a Watcher knows. Strings are "" when the answer did not say.
type Result struct {
	Usage domain.Usage
	// HasUsage is true when Usage is the provider's own count of both sides, as
	// far as the answer came. When false, Usage may still hold the input side.
	HasUsage bool
	// InputExact is true when the input side of Usage is the provider's count.
	InputExact bool
	// RawUsage is the usage as it came, JSON; nil for none. A Messages stream
	// tells it in two events, which are joined: {"message_start":…,"message_delta":…}.
	RawUsage    []byte
	ModelServed string
	ServiceTier string
	// UpstreamID is the provider's id of the response or message.
	UpstreamID string
	// Terminal is true when the answer came to its own end: an end marker, a
	// finish reason for every choice, a terminal event, an error, or the end of
	// the JSON document.
	Terminal bool
	// Failed is true when the answer reported an error or a failed response.
	Failed bool
	Error  StreamError
	// Unfinished is true when the last status of a Responses answer says that the
	// provider still works on it: "queued" or "in_progress".
	Unfinished bool
	// Cancelled is true when that status is "cancelled".
	Cancelled bool
	// Incomplete is why a Responses answer stopped early, such as
	// "max_output_tokens"; it is no failure.
	Incomplete string
	// OutputTokensEstimate counts the text that was generated, without errors,
	// in the vocabulary of the model served.
	OutputTokensEstimate int64
	// Uncounted is the part of it that came after the last usage.
	Uncounted int64
	// FirstOutput is true once any text was generated.
	FirstOutput bool
	// Unread is true for a body in no form that could be read.
	Unread bool
}

// Count returns what to settle by: the provider's usage, or else an estimate of
// the exact input (promptTokens where unknown) and the text that came. A stream
// that broke off had more text than its last usage counts.
func (r *Result) Count(promptTokens int64) (domain.Usage, domain.Source) {
	if r.HasUsage && (r.Terminal || r.Uncounted == 0) {
		return r.Usage, domain.SourceUpstream
	}
	if r.HasUsage {
		u := r.Usage
		u.Output += r.Uncounted
		return u, domain.SourceEstimate
	}
	u := domain.Usage{InputUncached: promptTokens, Tools: r.Usage.Tools, Tier: r.Usage.Tier}
	if r.InputExact {
		u = r.Usage
	}
	u.Output, u.Reasoning, u.OutputAudio, u.OutputImage = r.OutputTokensEstimate, 0, 0, 0
	return u, domain.SourceEstimate
}

const (
	doneMark        = "[DONE]"
	maxErrorMessage = 1 << 10
)

// NewWatcher makes a Watcher for one answer. An API that is not watched passes unseen.
func NewWatcher(o WatchOptions) *Watcher {
	w := &Watcher{opts: o, layout: layout{fixed: o.Format != FormatSSE && !o.Streamed}}
	w.scan.text = &w.text
	w.scan.closed = w.choiceEnded
	switch {
	case o.API == domain.APIResponses:
		w.scan.closed = w.itemEnded
	case o.API.MakesImages():
		w.scan.closed = func() { w.items.listed.add(domain.ToolImageGeneration) }
	}
	w.readAs(o.Format)
	return w
}

// Write takes the next bytes of the answer and returns those to forward now.
// The result aliases p, or a buffer of the Watcher that the next call reuses.
// Without StripUsage it is always p itself, with every byte of it.
func (w *Watcher) Write(p []byte) []byte {
	if w.scan.paths == nil || len(p) == 0 {
		return p
	}
	first, labelled := 0, w.opts.Format == FormatSSE
	if !w.layout.told {
		first = w.recognise(p)
	}
	if w.opts.Format == FormatSSE && !labelled && first > 0 {
		// A mark at its start may lie in two chunks, of which the first has passed.
		return slices.Concat(p[:first], w.Write(p[first:]))
	}
	if w.opts.Format == FormatJSON {
		w.scan.feed(p[first:])
		if w.scan.done() && !w.closed {
			w.closed = true
			w.document()
		}
		return w.strip.release(p)
	}
	if w.opts.Format == FormatUnknown {
		return p
	}
	w.split.Feed(p, events{w})
	if !w.strip.on {
		return p
	}
	if open, ok := w.split.Open(); ok {
		return w.strip.pass(p, open.Start)
	}
	return w.strip.pass(p, nothingOpen)
}

// Close tells that the answer ended cleanly and returns the last bytes to
// forward: what was held back and, for an event stream that broke off before
// its end, an error frame that every SDK of the dialect raises. It must not be
// called for an answer that was reset: see Abort. The result is valid for good.
func (w *Watcher) Close() []byte { return w.Abort(errCutShort()) }

// Abort is Close for an answer whose rest will not come, with the reason why:
// the error frame says e. An answer that had its own end gets none.
func (w *Watcher) Abort(e *domain.Error) []byte {
	if w.scan.paths == nil {
		return nil
	}
	if !w.layout.told && w.opts.Format == FormatUnknown && w.opts.Streamed {
		w.readAs(FormatSSE) // nothing came
	}
	if w.layout.alien {
		return w.alienEnd(e)
	}
	if w.opts.Format != FormatSSE || w.closed {
		return nil
	}
	w.closed = true
	w.split.Close(events{w})
	terminator := w.split.Terminator()
	if open, ok := w.split.Open(); ok && w.complete() {
		w.frame(open) // only its blank line is missing
		if w.strip.droppedTo(open.End) {
			terminator = "" // and the line that it would have ended is gone
		}
	}
	rest := slices.Clone(w.strip.pass(nil, nothingOpen))
	if w.terminal() || inputOnly(w.opts.API) || w.layout.fixed {
		return rest
	}
	rest = append(rest, terminator...)
	return append(rest, ErrorFrame(w.opts.API, e, FrameContext{RequestID: w.opts.RequestID, Sequence: w.sequence})...)
}

// complete reports whether the open frame's data is whole.
func (w *Watcher) complete() bool {
	return w.scan.done() || w.isDoneMark()
}

func errCutShort() *domain.Error {
	return &domain.Error{
		Code:    domain.CodeUpstream,
		Message: "The provider ended the stream before the answer was complete. Send the request again.",
	}
}

// AtBoundary reports whether a heartbeat may follow the bytes forwarded so far:
// never in an answer that is not a stream of events, or not read as one.
func (w *Watcher) AtBoundary() bool {
	return w.opts.Format == FormatSSE && w.scan.paths != nil && (w.strip.holding() || w.split.AtBoundary())
}

// Result returns what is known so far. It may be called at any time; what it
// returns is a copy that later bytes do not change.
func (w *Watcher) Result() Result {
	r := w.result
	r.Usage = w.tally.usage(w.opts.API.Dialect())
	// An answer that counts only one side, or nothing at all, is not believed.
	tokens := r.Usage != domain.Usage{} && w.tally.has(countPrompt) && (w.tally.has(countOutput) || inputOnly(w.opts.API))
	r.HasUsage = w.hasUsage && (tokens || w.tally.has(countSearchUnits) || w.tally.has(countSeconds))
	r.InputExact = r.HasUsage || ((w.input || w.hasUsage) && r.Usage.Input() > 0)
	w.media(&r.Usage)
	r.Usage.Tools, r.Usage.Tier = w.toolCalls(), w.usedTier()
	r.RawUsage = w.rawUsage()
	r.Terminal = w.terminal()
	r.FirstOutput = w.FirstOutput()
	r.Unread = w.unread()
	if r.FirstOutput {
		family, tokens := FamilyFactor(r.ModelServed), w.text.Tokens()
		r.OutputTokensEstimate = int64(float64(tokens) * family)
		r.Uncounted = int64(float64(tokens-w.counted) * family)
	}
	return r
}

// inputOnly reports whether answers of api have no output tokens.
func inputOnly(api domain.API) bool { return api == domain.APIEmbeddings || api == domain.APIRerank }

// media says of tokens that nobody split what an API about sound or images means by them.
func (w *Watcher) media(u *domain.Usage) {
	api := w.opts.API
	if api.Transcribes() && !w.tally.has(countInputAudio) {
		u.InputAudio = u.InputUncached
	}
	if api == domain.APISpeech {
		u.OutputAudio = u.Output
	}
	if api.MakesImages() && !w.tally.has(countOutputImage) {
		u.OutputImage = u.Output
	}
}

func (w *Watcher) terminal() bool {
	return w.result.Terminal || (w.opts.Format == FormatSSE && w.choices.done())
}

// FirstOutput reports whether any text was generated yet. It is cheap enough
// to ask after every chunk.
func (w *Watcher) FirstOutput() bool { return w.text != Estimator{} }

// UpstreamID is the provider's id of the response or message, as soon as it
// came; "" before. It costs nothing to ask.
func (w *Watcher) UpstreamID() string { return w.result.UpstreamID }

func (w *Watcher) rawUsage() []byte {
	switch {
	case w.startRaw == nil:
		return slices.Clone(w.lastRaw)
	case w.lastRaw == nil:
		return slices.Concat([]byte(`{"message_start":`), w.startRaw, []byte(`}`))
	}
	return slices.Concat([]byte(`{"message_start":`), w.startRaw, []byte(`,"message_delta":`), w.lastRaw, []byte(`}`))
}

// events keeps the handler's methods out of the Watcher's own.
type events struct{ w *Watcher }

var _ sse.Handler = events{}

// Data implements sse.Handler.
func (e events) Data(piece []byte) {
	w := e.w
	if len(piece) == 1 && piece[0] == '\n' && (w.scan.done() || w.isDoneMark()) {
		// Some servers forget the blank line: what is whole is an event of its own.
		w.joined = true
		w.judge(w.split.Event())
	}
	if !w.frameBegun {
		w.frameBegun = true
		w.scan.text = &w.text
		if bytes.HasPrefix(w.split.Event(), []byte("response.audio")) {
			w.scan.text = nil // base64, not text
		}
	}
	if w.prefixLen == 0 {
		w.prefixLen = copy(w.prefix[:], bytes.TrimLeft(piece, lineSpace))
	} else if w.prefixLen < len(w.prefix) {
		w.prefixLen += copy(w.prefix[w.prefixLen:], piece)
	}
	w.scan.feed(piece)
}

// End implements sse.Handler.
func (e events) End(f sse.Frame) { e.w.frame(f) }

// frame judges one whole frame and makes ready for the next.
func (w *Watcher) frame(f sse.Frame) {
	if f.HasData && w.strip.on && !w.joined {
		switch {
		case w.isUsageChunk():
			w.strip.drop(f)
		case w.scan.done() && w.scan.slots[slotUsage].kind == 'n':
			w.strip.dropNull(f)
		}
	}
	if f.HasData {
		w.judge(f.Event)
	}
	w.frameBegun, w.joined = false, false
}

// judge takes in the data of one event, and makes ready for the next.
func (w *Watcher) judge(name []byte) {
	if w.isDoneMark() {
		w.result.Terminal = true
	} else {
		w.event(name)
	}
	w.scan.reset()
	w.items.listed = toolCalls{}
	w.prefixLen, w.choices.failed = 0, false
}

func (w *Watcher) isDoneMark() bool { return string(w.prefix[:w.prefixLen]) == doneMark }

// isUsageChunk reports whether the frame says what was used and nothing else.
func (w *Watcher) isUsageChunk() bool {
	s := &w.scan.slots
	return w.scan.done() && s[slotUsage].kind == '{' && s[slotChoice].kind == 0 &&
		(s[slotChoices].kind == '[' || s[slotChoices].kind == 'n' || s[slotChoices].kind == 0) && !w.isError(nil)
}
