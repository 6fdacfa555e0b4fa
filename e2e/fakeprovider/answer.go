package fakeprovider

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"

	"keyway/domain"
)

// answer is a rendered response before a script's cuts and ends apply.
type answer struct {
	status      int
	contentType string
	stream      bool
	// frames are the events of a stream, or the one body.
	frames [][]byte
	// usage is what the answer reports; nil when it reports none.
	usage *Usage
}

// vocabulary is what generated answers are made of; none of it needs escaping.
var vocabulary = strings.Fields("The gateway sends each request on its way and counts every token exactly once")

// Text is the generated answer of count words.
func Text(count int) string { return strings.Join(generate(count), "") }

// generate returns count words; all but the first begin with a space.
func generate(count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = " " + vocabulary[i%len(vocabulary)]
	}
	if count > 0 {
		out[0] = out[0][1:]
	}
	return out
}

// render makes the answer that the script describes.
func render(c *call, s *Script) answer {
	switch {
	case s.Chunks != nil:
		frames := make([][]byte, len(s.Chunks))
		for i, chunk := range s.Chunks {
			frames[i] = chunk
		}
		return answer{status: statusOr(s, 200), contentType: "text/event-stream", stream: true, frames: frames}
	case s.Body != nil:
		return answer{status: statusOr(s, 200), contentType: "application/json", frames: [][]byte{*s.Body}}
	case s.Fail != "" || s.Status >= 400:
		return renderFailure(c, s)
	}
	r := newRendering(c, s)
	var frames [][]byte
	switch c.op {
	case opChat:
		frames = r.chat()
	case opCompletions:
		frames = r.completions()
	case opResponses:
		frames = r.responses()
	case opCompact:
		frames = r.compaction()
	case opMessages:
		frames = r.messages()
	case opEmbeddings:
		frames = r.embeddings()
	case opCountTokens:
		frames = [][]byte{[]byte(`{"input_tokens":` + strconv.FormatInt(c.promptWords, 10) + `}`)}
	case opInputTokens:
		frames = [][]byte{[]byte(`{"object":"response.input_tokens","input_tokens":` + strconv.FormatInt(c.promptWords, 10) + `}`)}
	case opRerank:
		frames = r.rerank()
	case opSpeech:
		frames = r.speech()
	case opTranscriptions, opTranslations:
		frames = r.transcript()
	case opImages, opImageEdits:
		frames = r.images()
	}
	a := answer{status: statusOr(s, 200), contentType: "application/json", frames: frames, usage: r.reported}
	switch {
	case c.op == opSpeech:
		a.contentType = "audio/mpeg"
	case c.plainText():
		a.contentType = "text/plain; charset=utf-8"
	}
	if r.streams() {
		a.contentType, a.stream = "text/event-stream", true
		a.frames = dress(r.withError(frames), s)
	}
	return a
}

func statusOr(s *Script, status int) int {
	if s.Status != 0 {
		return s.Status
	}
	return status
}

// rendering is the making of one generated answer.
type rendering struct {
	c *call
	s *Script
	// words are the content, one delta each; tool is set instead for a call.
	words  []string
	tool   string
	finish finish
	usage  Usage
	// reported is usage once it was written into the answer.
	reported *Usage
	// model is the name as JSON.
	model string
}

// finish is why the generation ended.
type finish int

const (
	finishStop finish = iota
	finishLength
	finishTool
)

func newRendering(c *call, s *Script) *rendering {
	r := &rendering{c: c, s: s, model: quote(c.model)}
	switch {
	case s.AnswerText != "":
		r.words = splitWords(s.AnswerText)
	case s.Count > 0:
		r.words = generate(s.Count)
	default:
		r.words = generate(DefaultCount)
	}
	if c.outputCap > 0 && c.outputCap < len(r.words) && s.Count == 0 {
		r.words, r.finish = r.words[:c.outputCap], finishLength
	}
	if c.tool != "" && (s.ToolCall || c.toolForced) {
		r.tool, r.finish = c.tool, finishTool
	}
	if s.DeltaBytes > len(r.words[0]) {
		r.words[0] += strings.Repeat("x", s.DeltaBytes-len(r.words[0]))
	}
	r.usage = Usage{InputUncached: c.promptWords, Output: int64(len(r.words) * c.n)}
	if c.op == opEmbeddings || c.op == opRerank {
		r.usage.Output = 0
	}
	switch {
	case s.UsageForm == UsageZero:
		r.usage = Usage{}
	case s.Usage != nil:
		r.usage = *s.Usage
	}
	return r
}

func (r *rendering) streams() bool {
	switch r.c.op {
	case opEmbeddings, opCountTokens, opInputTokens, opCompact, opRerank:
		return false
	}
	return r.c.stream
}

// toolArguments are the call's arguments as JSON, in the pieces of a stream.
func toolArguments() []string { return []string{`{"city":`, `"Pa`, `ris"}`} }

// text is the whole content.
func (r *rendering) text() string { return strings.Join(r.words, "") }

// report returns u in the operation's form and remembers it as what the answer
// says: the last report counts.
func (r *rendering) report(u Usage) string {
	switch {
	case r.s.UsageRaw != nil:
		return string(r.s.UsageRaw)
	case r.s.UsageForm == UsageEmpty:
		return "{}"
	case r.s.UsageForm == UsageNull:
		return "null"
	}
	r.reported = &u
	return usageJSON(r.c.op, u)
}

// partial is the usage after done of all frames, for cumulative forms.
func (r *rendering) partial(done int) Usage {
	u := r.usage
	share := int64(done) * u.Output / int64(max(len(r.words)*r.c.n, 1))
	u.Output = min(share, u.Output)
	u.Reasoning = min(u.Reasoning, u.Output)
	return u
}

// usageJSON is u as the operation's provider writes it.
func usageJSON(op operation, u Usage) string {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	switch op {
	case opResponses, opCompact:
		return `{"input_tokens":` + n(u.input()) +
			`,"input_tokens_details":{"cached_tokens":` + n(u.CacheRead) + `,"cache_write_tokens":` + n(u.CacheWrite) +
			writesByTTL(u) + `},"output_tokens":` + n(u.Output) +
			`,"output_tokens_details":{"reasoning_tokens":` + n(u.Reasoning) +
			`},"total_tokens":` + n(u.input()+u.Output) + `}`
	case opMessages:
		return `{` + anthropicInput(u) + `,"output_tokens":` + n(u.Output) + serverTools(u) +
			`,"service_tier":` + quote(cmp.Or(u.Tier, "standard")) + `}`
	case opSpeech, opTranscriptions, opTranslations, opImages, opImageEdits:
		return mediaUsageJSON(op, u)
	case opEmbeddings, opRerank:
		return `{"prompt_tokens":` + n(u.input()) + `,"total_tokens":` + n(u.input()) + `}`
	}
	return `{"prompt_tokens":` + n(u.input()) + `,"completion_tokens":` + n(u.Output) +
		`,"total_tokens":` + n(u.input()+u.Output) +
		`,"prompt_tokens_details":{"cached_tokens":` + n(u.CacheRead) + `,"cache_write_tokens":` + n(u.CacheWrite) +
		member("audio_tokens", u.InputAudio) + member("image_tokens", u.InputImage) +
		`},"completion_tokens_details":{"reasoning_tokens":` + n(u.Reasoning) +
		member("audio_tokens", u.OutputAudio) + member("image_tokens", u.OutputImage) + `}}`
}

// member is a further member of an object; nothing for 0.
func member(name string, v int64) string {
	if v == 0 {
		return ""
	}
	return `,"` + name + `":` + strconv.FormatInt(v, 10)
}

func writesByTTL(u Usage) string {
	if u.CacheWrite30m == 0 && u.CacheWrite12h == 0 {
		return ""
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return `,"cache_write_tokens_details":{"ttl_30m_tokens":` + n(u.CacheWrite30m) + `,"ttl_12h_tokens":` + n(u.CacheWrite12h) + `}`
}

func serverTools(u Usage) string {
	searches, fetches := u.Tools[domain.ToolWebSearch], u.Tools[domain.ToolWebFetch]
	if searches == 0 && fetches == 0 {
		return ""
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return `,"server_tool_use":{"web_search_requests":` + n(searches) + `,"web_fetch_requests":` + n(fetches) + `}`
}

// anthropicInput is the input side of a Messages usage, without braces.
func anthropicInput(u Usage) string {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return `"input_tokens":` + n(u.InputUncached) +
		`,"cache_creation_input_tokens":` + n(u.CacheWrite) +
		`,"cache_read_input_tokens":` + n(u.CacheRead) +
		`,"cache_creation":{"ephemeral_5m_input_tokens":` + n(u.CacheWrite-u.CacheWrite1h) +
		`,"ephemeral_1h_input_tokens":` + n(u.CacheWrite1h) + `}`
}

// quote is s as a JSON string.
func quote(s string) string {
	out, _ := json.Marshal(s) // a string never fails
	return string(out)
}

// splitWords cuts text before every space, so that the pieces join to text.
func splitWords(text string) []string {
	var out []string
	for text != "" {
		next := strings.IndexByte(text[1:], ' ')
		if next < 0 {
			return append(out, text)
		}
		out = append(out, text[:next+1])
		text = text[next+1:]
	}
	return out
}

func dataFrame(json string) []byte { return []byte("data: " + json + "\n\n") }

func eventFrame(event, json string) []byte {
	return []byte("event: " + event + "\ndata: " + json + "\n\n")
}

// dress applies what a script does to every frame: other line ends, and bytes
// in front of each.
func dress(frames [][]byte, s *Script) [][]byte {
	ending := map[string]string{"crlf": "\r\n", "cr": "\r"}[s.LineEnding]
	if ending == "" && s.Interleave == nil {
		return frames
	}
	out := make([][]byte, len(frames))
	for i, frame := range frames {
		if ending != "" {
			frame = []byte(strings.ReplaceAll(string(frame), "\n", ending))
		}
		if s.Interleave != nil {
			frame = append(append([]byte{}, *s.Interleave...), frame...)
		}
		out[i] = frame
	}
	return out
}

// withError puts the script's in-band error after its frames.
func (r *rendering) withError(frames [][]byte) [][]byte {
	e := r.s.Error
	if e == nil {
		return frames
	}
	at := min(e.AfterFrames, len(frames))
	out := append(append([][]byte{}, frames[:at]...), r.errorFrame(*e, at))
	if e.Continue {
		return append(out, frames[at:]...)
	}
	r.reported = nil
	return out
}
