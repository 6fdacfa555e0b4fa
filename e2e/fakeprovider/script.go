package fakeprovider

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"keyway/domain"
)

// Script says how one request is answered. The zero value is the plain,
// correct answer; each field changes one thing. Durations are milliseconds.
// A frame is one SSE event, or the whole body when the answer is not a stream.
type Script struct {
	// OnlyFace limits the script to the face of this name; "" is any.
	OnlyFace string `json:"only_face,omitempty"`
	// Early answers before the request body is read. It works for the header,
	// the queue and the sticky script, which need no body to be found.
	Early bool `json:"early,omitempty"`

	DelayHeadersMs   int `json:"delay_headers_ms,omitempty"`
	DelayFirstByteMs int `json:"delay_first_byte_ms,omitempty"`
	// DelayBetweenMs passes before every write but the first.
	DelayBetweenMs int `json:"delay_between_ms,omitempty"`
	// PausesMs adds a wait before the frame of that index, counted from 0.
	PausesMs map[int]int `json:"pauses_ms,omitempty"`

	// Status replaces the HTTP status. From 400 on, the body becomes an error
	// in the request's dialect unless Body, Chunks or Fail say another.
	Status int `json:"status,omitempty"`
	// Headers replace those of the answer; an empty list takes one away.
	Headers map[string]Lines `json:"headers,omitempty"`
	// EarlyHints is how many answers with status 103 come first.
	EarlyHints int `json:"early_hints,omitempty"`
	// Trailers follow the body.
	Trailers map[string]string `json:"trailers,omitempty"`
	// Fail is a named failure with its status and body; see failures.
	Fail       string      `json:"fail,omitempty"`
	RetryAfter *RetryAfter `json:"retry_after,omitempty"`

	// Body is the whole body, byte for byte. Chunks is a stream, frame by frame.
	Body   *Bytes  `json:"body,omitempty"`
	Chunks []Bytes `json:"chunks,omitempty"`

	// Count is how many content frames, that is words, are generated; 0 is DefaultCount.
	Count int `json:"count,omitempty"`
	// AnswerText replaces the generated words; it is cut into words again.
	AnswerText string `json:"answer_text,omitempty"`
	// DeltaBytes pads the first word to this size, for frames of megabytes.
	DeltaBytes int `json:"delta_bytes,omitempty"`
	// ToolCall answers with a call of the first tool.
	ToolCall bool `json:"tool_call,omitempty"`
	// FinishReason replaces finish_reason or stop_reason.
	FinishReason string `json:"finish_reason,omitempty"`
	// Terminal is how the stream ends by itself; see the Terminal constants.
	Terminal Terminal `json:"terminal,omitempty"`
	// Interleave is sent before every frame, such as ": keep-alive\n\n".
	Interleave *Bytes `json:"interleave,omitempty"`

	Usage *Usage `json:"usage,omitempty"`
	// UsageForm is where usage stands in the answer; see the UsageForm constants.
	UsageForm UsageForm `json:"usage_form,omitempty"`
	// UsageRaw takes the place of the usage object as it is.
	UsageRaw json.RawMessage `json:"usage_raw,omitempty"`

	// Error puts an in-band error into a stream.
	Error *InBandError `json:"error,omitempty"`

	// CutEvery cuts the stream into writes of n bytes, CutAt at these offsets.
	CutEvery int   `json:"cut_every,omitempty"`
	CutAt    []int `json:"cut_at,omitempty"`
	// Coalesce lets a cut write span frames; without it a frame always starts a write.
	Coalesce bool `json:"coalesce,omitempty"`
	// LineEnding is "lf" (default), "crlf" or "cr", for generated frames.
	LineEnding string `json:"line_ending,omitempty"`
	// Gzip compresses the body whatever accept-encoding says; cuts and points
	// then count compressed bytes.
	Gzip bool `json:"gzip,omitempty"`
	// ContentLength is "" (a body has it, a stream has not), "set", "none" or
	// "long": 10 bytes more than are sent.
	ContentLength string `json:"content_length,omitempty"`
	// PendingPolls is how many GETs find a response in the background not ended,
	// PendingMs for how long they do; it ends when both are over.
	PendingPolls int `json:"pending_polls,omitempty"`
	PendingMs    int `json:"pending_ms,omitempty"`
	// FailPolls is how many GETs before those are answered with 429, and with RetryAfter.
	FailPolls int `json:"fail_polls,omitempty"`
	// Forgets does not store the response: its id is unknown at once.
	Forgets bool `json:"forgets,omitempty"`
	// EchoBody answers with x-fake-body-sha256, the digest of what was received.
	EchoBody bool `json:"echo_body,omitempty"`

	// ResetAfter ends by a TCP RST on HTTP/1.1, by RST_STREAM on HTTP/2.
	ResetAfter *Point `json:"reset_after,omitempty"`
	// DropAfter closes the connection (FIN), on HTTP/2 with all its streams.
	DropAfter *Point `json:"drop_after,omitempty"`
	// CloseAfter ends the body properly though the answer is not complete.
	CloseAfter *Point `json:"close_after,omitempty"`
	// HangAfter sends nothing more and waits until the peer leaves.
	HangAfter *Point `json:"hang_after,omitempty"`
}

// DefaultCount is the number of content frames of an answer.
const DefaultCount = 8

// Terminal is how a generated stream ends by itself.
type Terminal string

// The terminals. Incomplete and failed exist for responses.
const (
	TerminalNormal     Terminal = ""
	TerminalNoDone     Terminal = "no_done"    // finish_reason came, [DONE] did not
	TerminalNone       Terminal = "none"       // content only
	TerminalIncomplete Terminal = "incomplete" // responses: response.incomplete
	TerminalFailed     Terminal = "failed"     // responses: response.failed
)

// UsageForm is where usage stands in an answer.
type UsageForm string

// The forms.
const (
	UsageNormal UsageForm = ""
	// UsageNone leaves usage out, whatever the request asked.
	UsageNone UsageForm = "none"
	// UsageAlways sends the stream's usage frame although nobody asked.
	UsageAlways UsageForm = "always"
	// UsageEvery puts a growing, cumulative usage in every frame.
	UsageEvery UsageForm = "every"
	// UsageEarly sends it in the first frame and not again.
	UsageEarly UsageForm = "early"
	// UsageZero reports zeros, UsageEmpty an object without fields, UsageNull a null.
	UsageZero  UsageForm = "zero"
	UsageEmpty UsageForm = "empty"
	UsageNull  UsageForm = "null"
	// UsageWithFinish puts it in the frame of finish_reason; chat and completions.
	UsageWithFinish UsageForm = "with_finish"
	// UsageNoChoices omits the choices key of the usage frame; chat and completions.
	UsageNoChoices UsageForm = "no_choices"
	// UsageRepeat repeats every field of message_start in message_delta; messages.
	UsageRepeat UsageForm = "repeat"
)

// Usage is what the provider reports, counted as domain.Usage counts: the
// three input fields are disjoint, Reasoning is part of Output and
// CacheWrite1h part of CacheWrite.
type Usage struct {
	InputUncached int64 `json:"input_uncached"`
	CacheRead     int64 `json:"cache_read,omitempty"`
	CacheWrite    int64 `json:"cache_write,omitempty"`
	CacheWrite1h  int64 `json:"cache_write_1h,omitempty"`
	Output        int64 `json:"output"`
	Reasoning     int64 `json:"reasoning,omitempty"`

	// The rest is written only where it is not zero, by the operations that
	// have a field for it.
	CacheWrite30m int64 `json:"cache_write_30m,omitempty"`
	CacheWrite12h int64 `json:"cache_write_12h,omitempty"`
	InputAudio    int64 `json:"input_audio,omitempty"`
	InputImage    int64 `json:"input_image,omitempty"`
	OutputAudio   int64 `json:"output_audio,omitempty"`
	OutputImage   int64 `json:"output_image,omitempty"`
	// Tools are calls by domain.Tool; Messages counts searches and fetches.
	Tools [domain.ToolKinds]int64 `json:"tools,omitzero"`
	// Tier is the service tier of Messages; "" is written as "standard".
	Tier string `json:"tier,omitempty"`
}

func (u Usage) input() int64 { return u.InputUncached + u.CacheRead + u.CacheWrite }

// InBandError is an error frame inside a stream with status 200.
type InBandError struct {
	// AfterFrames is how many frames come before it.
	AfterFrames int    `json:"after_frames,omitempty"`
	Type        string `json:"type,omitempty"`
	Code        string `json:"code,omitempty"`
	Message     string `json:"message,omitempty"`
	// Form is "" (the dialect's own), "flat", "nested", "both" (responses) or
	// "bare": {"object":"error",…} as some servers send (chat).
	Form string `json:"form,omitempty"`
	// Continue lets the stream go on; otherwise the body ends after the error.
	Continue bool `json:"continue,omitempty"`
}

// RetryAfter is how long the provider says to wait, and in which form.
type RetryAfter struct {
	// Form is one of "seconds" (default), "date", "duration" (6m30s in
	// retry-after), "ms" (retry-after-ms), "epoch", "epoch_ms", "reset" (the
	// dialect's limit reset headers) and "body" (only in the message).
	Form    string  `json:"form,omitempty"`
	Seconds float64 `json:"seconds"`
}

func (a RetryAfter) wait() time.Duration {
	return time.Duration(a.Seconds * float64(time.Second))
}

// Point is a place in the body: after that many frames or bytes, or before the
// headers. The zero Point is right after the headers.
type Point struct {
	BeforeHeaders bool `json:"before_headers,omitempty"`
	Frames        int  `json:"frames,omitempty"`
	Bytes         int  `json:"bytes,omitempty"`
}

// Bytes are body bytes. In JSON: a string, {"base64":"…"}, or
// {"pattern":"x","size":N} for N bytes of a repeated pattern.
type Bytes []byte

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*b = Bytes(text)
		return nil
	}
	var form struct {
		Base64  string `json:"base64"`
		Pattern string `json:"pattern"`
		Size    int    `json:"size"`
	}
	if err := strictJSON(data, &form); err != nil {
		return fmt.Errorf("read bytes: %w", err)
	}
	if form.Base64 != "" {
		raw, err := base64.StdEncoding.DecodeString(form.Base64)
		if err != nil {
			return fmt.Errorf("decode bytes: %w", err)
		}
		*b = raw
		return nil
	}
	*b = Pattern(form.Pattern, form.Size)
	return nil
}

// MarshalJSON implements json.Marshaler; it keeps every byte.
func (b Bytes) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"base64": base64.StdEncoding.EncodeToString(b)})
}

// Pattern returns size bytes of pattern repeated; "x" when pattern is empty.
func Pattern(pattern string, size int) Bytes {
	if pattern == "" {
		pattern = "x"
	}
	out := bytes.Repeat([]byte(pattern), max(size, 0)/len(pattern)+1)
	return out[:max(size, 0)]
}

// Lines are the values of one header; in JSON a string or a list.
type Lines []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *Lines) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*l = Lines{one}
		return nil
	}
	var many []string
	if err := json.Unmarshal(data, &many); err != nil {
		return fmt.Errorf("read header values: %w", err)
	}
	*l = many
	return nil
}

// ParseScript reads a script from JSON. Unknown fields and values are errors.
func ParseScript(data []byte) (Script, error) {
	var s Script
	if err := strictJSON(data, &s); err != nil {
		return Script{}, fmt.Errorf("parse script: %w", err)
	}
	if err := s.validate(); err != nil {
		return Script{}, fmt.Errorf("check script: %w", err)
	}
	return s, nil
}

func strictJSON(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

func (s Script) validate() error {
	var retryForm, errorForm string
	if s.RetryAfter != nil {
		retryForm = s.RetryAfter.Form
	}
	if s.Error != nil {
		errorForm = s.Error.Form
	}
	for _, field := range []struct {
		name, value string
		allowed     []string
	}{
		{"terminal", string(s.Terminal), []string{"no_done", "none", "incomplete", "failed"}},
		{"usage_form", string(s.UsageForm), []string{"none", "always", "every", "early", "zero", "empty", "null", "with_finish", "no_choices", "repeat"}},
		{"line_ending", s.LineEnding, []string{"lf", "crlf", "cr"}},
		{"content_length", s.ContentLength, []string{"set", "none", "long"}},
		{"retry_after.form", retryForm, []string{"seconds", "date", "duration", "ms", "epoch", "epoch_ms", "reset", "body"}},
		{"error.form", errorForm, []string{"flat", "nested", "both", "bare"}},
		{"fail", s.Fail, failureNames()},
	} {
		if !oneOf(field.value, field.allowed) {
			return fmt.Errorf("%s: unknown value %q", field.name, field.value)
		}
	}
	if s.Status != 0 && (s.Status < 200 || s.Status > 599) {
		return fmt.Errorf("status: %d is not a final HTTP status", s.Status)
	}
	return s.validateEnds()
}

func oneOf(value string, allowed []string) bool {
	if value == "" {
		return true
	}
	for _, a := range allowed {
		if value == a {
			return true
		}
	}
	return false
}
