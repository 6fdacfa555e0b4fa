package fakeprovider

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// exchange is one request at one face, from its first line to its end. It
// belongs to the handler's goroutine.
type exchange struct {
	face  *Face
	w     http.ResponseWriter
	r     *http.Request
	entry *entry
	timer *time.Timer
	// flushing: every write leaves at once, because it is timed, cut or followed by a break.
	flushing bool
}

// run answers the request and returns how it ended.
func (x *exchange) run() End {
	c := &call{op: operationAt(x.r.URL.Path), seq: x.entry.rec.ID, n: 1, promptWords: 1}
	x.entry.update(func(rec *Record) { rec.RequestID = c.requestID() })
	if c.op == "" {
		return x.play(c, failures["model_not_found"].withMessage("Unknown request URL: "+x.r.Method+" "+x.r.URL.Path).answer(c), &Script{})
	}
	if s, source, found := x.earlyScript(); found {
		x.entry.update(func(rec *Record) { rec.Script = source })
		return x.play(c, render(c, &s), &s)
	}
	raw, err := x.readBody()
	if err != nil {
		return x.left()
	}
	digest := x.entry.keepBody(raw)
	parsed, refusal := x.accept(c, raw)
	if refusal != nil {
		return x.play(c, refusal.answer(c), &Script{})
	}
	switch parsed.op {
	case opStored:
		return x.playStored(parsed, raw)
	case opFiles:
		return x.playFile(parsed, len(raw))
	}
	s, source, err := x.chooseScript(parsed)
	if err != nil {
		return x.play(c, failures["bad_request"].withMessage("fake provider: "+err.Error()).answer(c), &Script{})
	}
	if s.EchoBody {
		x.w.Header().Set("X-Fake-Body-Sha256", digest)
	}
	x.entry.update(func(rec *Record) { rec.Model, rec.Stream, rec.Script = parsed.model, parsed.stream, source })
	a := render(parsed, &s)
	if parsed.op == opResponses && a.status == http.StatusOK && !parsed.transient && !s.Forgets {
		x.face.keep(parsed, s)
	}
	return x.play(parsed, a, &s)
}

// withMessage returns f with another message.
func (f failure) withMessage(message string) *failure {
	f.message = message
	return &f
}

func (x *exchange) readBody() ([]byte, error) {
	var buf bytes.Buffer
	if x.r.ContentLength > 0 {
		buf.Grow(int(x.r.ContentLength) + bytes.MinRead)
	}
	_, err := io.Copy(&buf, x.r.Body)
	return buf.Bytes(), err
}

// accept checks what a provider checks first: method, credential, version, body.
func (x *exchange) accept(c *call, raw []byte) (*call, *failure) {
	anyMethod := c.op == opStored || c.op == opFiles
	if x.r.Method != http.MethodPost && !anyMethod {
		f := failures["bad_request"].withMessage("Method not allowed.")
		f.status = http.StatusMethodNotAllowed
		return nil, f
	}
	if !x.face.accepts(x.r, c.op) {
		f := failures["invalid_api_key"]
		return nil, &f
	}
	if c.op.anthropic() && len(x.r.Header.Values("Anthropic-Version")) != 1 {
		return nil, failures["bad_request"].withMessage("anthropic-version: exactly one header is required")
	}
	if anyMethod {
		return c, nil
	}
	parsed, err := x.parse(c.op, raw)
	if err != nil {
		return nil, failures["bad_request"].withMessage(err.Error())
	}
	parsed.seq = c.seq
	return parsed, nil
}

// parse reads the body by its content type.
func (x *exchange) parse(op operation, raw []byte) (*call, error) {
	if kind := x.r.Header.Get("Content-Type"); strings.HasPrefix(kind, "multipart/") {
		return parseForm(op, kind, raw)
	}
	return parseCall(op, raw)
}

// accepts reports whether r carries the face's credential, once, in a carrier
// of its dialect, and no other credential anywhere.
func (f *Face) accepts(r *http.Request, op operation) bool {
	if f.options.WantKey == "" {
		return true
	}
	found := 0
	for _, carrier := range []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Xi-Api-Key"} {
		found += len(r.Header.Values(carrier))
	}
	if found != 1 || r.URL.Query().Has("key") {
		return false
	}
	// Anthropic takes an API key in either carrier; its newest SDKs send it as a bearer.
	if (op.anthropic() || r.Header.Get("Anthropic-Version") != "") && r.Header.Get("X-Api-Key") == f.options.WantKey {
		return true
	}
	return r.Header.Get("Authorization") == "Bearer "+f.options.WantKey
}

const scriptHeader = "X-Fake-Script"

// earlyScript finds a script that answers before the body.
func (x *exchange) earlyScript() (s Script, source string, found bool) {
	if raw := x.r.Header.Get(scriptHeader); raw != "" {
		s, err := ParseScript([]byte(raw))
		return s, "header", err == nil && s.Early && s.appliesTo(x.face)
	}
	return x.face.next(func(s Script) bool { return s.Early })
}

func (s *Script) appliesTo(f *Face) bool { return s.OnlyFace == "" || s.OnlyFace == f.options.Name }

// chooseScript finds the request's script in the order that the package documents.
func (x *exchange) chooseScript(c *call) (s Script, source string, err error) {
	marked, err := markedScript(c.lastUser)
	if err != nil {
		return Script{}, "", err
	}
	name, suffix := splitModel(c.model)
	c.model = name
	for _, candidate := range []struct {
		source string
		raw    []byte
	}{
		{"header", []byte(x.r.Header.Get(scriptHeader))}, {"marker", marked}, {"model", suffix},
	} {
		if len(candidate.raw) == 0 {
			continue
		}
		s, err := ParseScript(candidate.raw)
		if err != nil {
			return Script{}, "", fmt.Errorf("read script from %s: %w", candidate.source, err)
		}
		if s.appliesTo(x.face) {
			return s, candidate.source, nil
		}
	}
	s, source, _ = x.face.next(func(Script) bool { return true })
	return s, source, nil
}

// play sends a as s says.
func (x *exchange) play(c *call, a answer, s *Script) End {
	fin := s.finale()
	if !x.wait(s.DelayHeadersMs) {
		return x.left()
	}
	if fin.beforeHeaders {
		return x.end(fin)
	}
	frames := a.frames
	if s.Gzip {
		frames = compress(frames)
	}
	writes := plan(frames, s)
	for range s.EarlyHints {
		x.w.WriteHeader(http.StatusEarlyHints)
	}
	x.setHeaders(c, a, s)
	x.setLength(a, s, totalBytes(frames))
	now := time.Now()
	x.entry.update(func(rec *Record) { rec.Status, rec.HeadersAt, rec.Usage = a.status, now, a.usage })
	x.w.WriteHeader(a.status)
	// A plain body leaves with its headers in one packet.
	x.flushing = a.stream || len(writes) != 1 || s.DelayFirstByteMs > 0 || fin.end != EndCompleted || fin.hang
	if x.flushing && !x.flush() {
		return x.left()
	}
	if !x.wait(s.DelayFirstByteMs) {
		return x.left()
	}
	for i, wr := range writes {
		if !x.wait(wr.waitMs) || !x.write(wr) {
			return x.left()
		}
		if i == 0 {
			at := time.Now()
			x.entry.update(func(rec *Record) { rec.FirstByteAt = at })
		}
	}
	for name, value := range s.Trailers {
		x.w.Header().Set(http.TrailerPrefix+name, value)
	}
	return x.end(fin)
}

// end carries out what follows the last write, as far as the body goes.
func (x *exchange) end(fin finale) End {
	if fin.hang {
		<-x.r.Context().Done()
		return x.left()
	}
	return fin.end
}

// write sends one piece; false when the peer is gone.
func (x *exchange) write(wr write) bool {
	if len(wr.data) > 0 { // an empty write fails where the status allows no body
		if _, err := x.w.Write(wr.data); err != nil {
			return false
		}
	}
	x.entry.sent(wr.data)
	x.entry.frames.Store(int64(wr.frames))
	return !x.flushing || x.flush()
}

func (x *exchange) flush() bool { return http.NewResponseController(x.w).Flush() == nil }

// wait passes ms milliseconds; false when the peer left meanwhile.
func (x *exchange) wait(ms int) bool {
	ctx := x.r.Context()
	if ms <= 0 {
		return ctx.Err() == nil
	}
	d := time.Duration(ms) * time.Millisecond
	if x.timer == nil {
		x.timer = time.NewTimer(d)
	} else {
		x.timer.Reset(d)
	}
	select {
	case <-x.timer.C:
		return true
	case <-ctx.Done():
		x.timer.Stop()
		return false
	}
}

// left is the end of a request whose peer is gone, or whose server is.
func (x *exchange) left() End {
	if x.face.server.stopping() {
		return EndStopped
	}
	return EndPeerLeft
}

// setHeaders writes the headers a provider sends, then the script's over them.
func (x *exchange) setHeaders(c *call, a answer, s *Script) {
	h := x.w.Header()
	h.Set("Content-Type", a.contentType)
	h.Set("Set-Cookie", "__fake=1; path=/")
	if strings.HasPrefix(a.contentType, "text/event-stream") {
		h.Set("Cache-Control", "no-cache")
	}
	if c.op.anthropic() {
		h.Set("Request-Id", c.requestID())
		h.Set("Anthropic-Organization-Id", "fake-organization")
		h.Set("Anthropic-Ratelimit-Requests-Limit", "1000")
		h.Set("Anthropic-Ratelimit-Requests-Remaining", "999")
	} else {
		h.Set("X-Request-Id", c.requestID())
		h.Set("Openai-Organization", "fake-organization")
		h.Set("Openai-Processing-Ms", "1")
		h.Set("Openai-Version", "2020-10-01")
		h.Set("X-Ratelimit-Limit-Requests", "1000")
		h.Set("X-Ratelimit-Remaining-Requests", "999")
		h.Set("X-Ratelimit-Reset-Requests", "60ms")
	}
	if s.Gzip {
		h.Set("Content-Encoding", "gzip")
	}
	if s.RetryAfter != nil {
		s.RetryAfter.setHeaders(h, c, time.Now())
	}
	for name, values := range s.Headers {
		h[http.CanonicalHeaderKey(name)] = nil // or Go guesses a content type
		for _, v := range values {
			h.Add(name, v)
		}
	}
}

// setLength sets content-length for a body of size bytes.
func (x *exchange) setLength(a answer, s *Script, size int) {
	switch s.ContentLength {
	case "none":
		return
	case "long":
		size += 10
	case "set":
	default:
		if a.stream {
			return
		}
	}
	x.w.Header().Set("Content-Length", strconv.Itoa(size))
}

// watch notes the peer's leaving the moment the context says so; the returned
// function ends the watch.
func (x *exchange) watch() (stop func() bool) {
	return context.AfterFunc(x.r.Context(), func() { x.entry.peerLeft(time.Now()) })
}
