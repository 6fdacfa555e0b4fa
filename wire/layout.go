package wire

import (
	"strings"

	"keyway/domain"
)

// Format is how an answer's body is laid out.
type Format uint8

// The formats of an answer.
const (
	FormatUnknown Format = iota // no content type, or one that says little
	FormatSSE                   // text/event-stream
	FormatJSON                  // application/json
)

// layout is what a Watcher knows of the form of its answer. Providers mislabel:
// streams come as JSON, as plain text and without a content type, documents as
// streams. Both can be told from the first byte that is not a line end.
type layout struct {
	told bool
	// alien: a document where the client reads a stream of events. It would take
	// it for an answer without any.
	alien bool
	// fixed: nothing may be added or taken out, since the length is told.
	fixed bool
}

// fieldStarts are the first bytes of the lines of a stream of events: a comment,
// data, event, id, retry. No JSON value begins so.
const fieldStarts = ":deir"

// recognise looks for the first byte that tells the format. It returns where in
// p a document begins.
func (w *Watcher) recognise(p []byte) (first int) {
	skipped := "\r\n\xef\xbb\xbf" // line ends and a byte order mark
	if w.opts.Format == FormatJSON {
		skipped += " \t"
	}
	for first < len(p) && strings.IndexByte(skipped, p[first]) >= 0 {
		first++
	}
	if first == len(p) {
		return first
	}
	w.layout.told = true
	isField := strings.IndexByte(fieldStarts, p[first]) >= 0
	switch {
	case w.opts.Format == FormatJSON:
		if isField {
			w.readAs(FormatSSE)
		}
	case p[first] == '{', p[first] == '[':
		w.layout.alien = w.opts.Streamed
		w.readAs(FormatJSON)
	case w.opts.Format == FormatUnknown && (isField || w.opts.Streamed):
		w.readAs(FormatSSE)
	}
	return first
}

// readAs sets the format that the rest is read in.
func (w *Watcher) readAs(f Format) {
	w.opts.Format = f
	w.scan.paths = pathsFor(w.opts.API, f)
	w.scan.reset()
	counts := w.opts.API == domain.APIChat || w.opts.API == domain.APICompletions
	w.strip.on = w.opts.StripUsage && f == FormatSSE && counts && !w.layout.fixed
}

// alienEnd tells a client that reads events what it was given instead, and why
// it ends where it does.
func (w *Watcher) alienEnd(e *domain.Error) []byte {
	w.layout.alien = false
	frame := FrameContext{RequestID: w.opts.RequestID}
	event := ErrorFrame(w.opts.API, e, frame)
	switch {
	case w.result.Failed:
		event = UpstreamErrorFrame(w.opts.API, w.result.Error, frame)
	case w.result.Terminal:
		event = ErrorFrame(w.opts.API, errNoStream(), frame)
	}
	return append([]byte("\n\n"), event...)
}

func errNoStream() *domain.Error {
	return &domain.Error{
		Code:    domain.CodeUpstream,
		Message: "The provider answered with one document where a stream was asked for. Send the request again, or without stream.",
	}
}

// unread reports whether the body is in no form that could be read.
func (w *Watcher) unread() bool {
	switch w.opts.Format {
	case FormatJSON:
		return w.scan.state == scanBroken
	case FormatUnknown:
		return w.layout.told
	}
	return false
}

// Streams reports whether the client can be told of an error behind what it has
// got: the answer is a stream of events, or stands where one should.
func (w *Watcher) Streams() bool { return w.opts.Format == FormatSSE || w.layout.alien }
