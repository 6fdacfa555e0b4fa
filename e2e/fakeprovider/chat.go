package fakeprovider

import (
	"fmt"
	"strconv"
	"strings"
)

// created is the fixed time stamp of every answer, in Unix seconds.
const created = "1767225600"

// openAIFinish is the finish_reason of chat and completions.
func (r *rendering) openAIFinish() string {
	if r.s.FinishReason != "" {
		return r.s.FinishReason
	}
	return map[finish]string{finishStop: "stop", finishLength: "length", finishTool: "tool_calls"}[r.finish]
}

// chat renders a chat completion.
func (r *rendering) chat() [][]byte {
	if r.c.stream {
		return r.openAIStream("chat.completion.chunk", r.chatFrames())
	}
	message := `{"role":"assistant","content":` + quote(r.text()) + `,"refusal":null}`
	if r.tool != "" {
		message = fmt.Sprintf(`{"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"call_fake_%d","type":"function","function":{"name":%s,"arguments":%s}}]}`,
			r.c.seq, quote(r.tool), quote(strings.Join(toolArguments(), "")))
	}
	return r.openAIBody("chat.completion", `"message":`+message)
}

// completions renders a legacy text completion.
func (r *rendering) completions() [][]byte {
	if r.c.stream {
		return r.openAIStream("text_completion", r.completionFrames())
	}
	return r.openAIBody("text_completion", `"text":`+quote(r.text()))
}

// openAIBody is the body of an answer that is not a stream; content is the
// member that carries the content of every choice.
func (r *rendering) openAIBody(object, content string) [][]byte {
	choices := make([]string, r.c.n)
	for i := range choices {
		choices[i] = fmt.Sprintf(`{"index":%d,%s,"logprobs":null,"finish_reason":%s}`, i, content, quote(r.openAIFinish()))
	}
	usage := ""
	if r.s.UsageForm != UsageNone {
		usage = `,"usage":` + r.report(r.usage)
	}
	return [][]byte{[]byte(r.envelope(object) + `"choices":[` + strings.Join(choices, ",") + `]` + usage + `}`)}
}

// envelope opens the object that carries choices and usage.
func (r *rendering) envelope(object string) string {
	return `{"id":"fake-` + strconv.FormatUint(r.c.seq, 10) + `","object":"` + object +
		`","created":` + created + `,"model":` + r.model + `,"system_fingerprint":"fp_fake",`
}

// choiceFrame is a stream frame before its envelope: the choices, and how many
// content frames are out once it is.
type choiceFrame struct {
	choices string
	done    int
}

// chatFrames lists the role, the content or tool call, and the finish; every
// step interleaves over all choices.
func (r *rendering) chatFrames() []choiceFrame {
	deltas := []string{`{"role":"assistant","content":"","refusal":null}`}
	firstContent := 1
	if r.tool != "" {
		firstContent = 2
		deltas = append(deltas, fmt.Sprintf(`{"tool_calls":[{"index":0,"id":"call_fake_%d","type":"function","function":{"name":%s,"arguments":""}}]}`, r.c.seq, quote(r.tool)))
		for _, piece := range toolArguments() {
			deltas = append(deltas, `{"tool_calls":[{"index":0,"function":{"arguments":`+quote(piece)+`}}]}`)
		}
	} else {
		for _, word := range r.words {
			deltas = append(deltas, `{"content":`+quote(word)+`}`)
		}
	}
	members := make([]string, len(deltas))
	for i, delta := range deltas {
		members[i] = `"delta":` + delta
	}
	return r.choiceFrames(members, choiceShape{firstContent: firstContent, finish: `"delta":{}`})
}

// completionFrames lists the text pieces and the finish.
func (r *rendering) completionFrames() []choiceFrame {
	members := make([]string, len(r.words))
	for i, word := range r.words {
		members[i] = `"text":` + quote(word)
	}
	return r.choiceFrames(members, choiceShape{finish: `"text":""`})
}

// choiceShape says where content begins in a list of members, and which member
// the finish carries.
type choiceShape struct {
	firstContent int
	finish       string
}

func (r *rendering) choiceFrames(members []string, shape choiceShape) []choiceFrame {
	out := make([]choiceFrame, 0, (len(members)+1)*r.c.n)
	done := 0
	for at, member := range members {
		for i := range r.c.n {
			if at >= shape.firstContent {
				done++
			}
			out = append(out, choiceFrame{done: done, choices: fmt.Sprintf(`{"index":%d,%s,"logprobs":null,"finish_reason":null}`, i, member)})
		}
	}
	if r.s.Terminal == TerminalNone {
		return out
	}
	for i := range r.c.n {
		out = append(out, choiceFrame{done: done, choices: fmt.Sprintf(`{"index":%d,%s,"logprobs":null,"finish_reason":%s}`, i, shape.finish, quote(r.openAIFinish()))})
	}
	return out
}

// openAIStream puts envelope, usage and [DONE] around the choices.
func (r *rendering) openAIStream(object string, frames []choiceFrame) [][]byte {
	head := r.envelope(object)
	out := make([][]byte, 0, len(frames)+2)
	for i, f := range frames {
		usage := r.frameUsage(f, placeOf(i, len(frames)))
		out = append(out, dataFrame(head+`"choices":[`+f.choices+`]`+usage+`}`))
	}
	if r.s.Terminal == TerminalNone {
		return out
	}
	if r.hasUsageFrame() {
		choices := `"choices":[],`
		if r.s.UsageForm == UsageNoChoices {
			choices = ""
		}
		out = append(out, dataFrame(head+choices+`"usage":`+r.report(r.usage)+`}`))
	}
	if r.s.Terminal == TerminalNoDone {
		return out
	}
	return append(out, []byte("data: [DONE]\n\n"))
}

// place is where a frame stands in its stream.
type place int

const (
	placeMiddle place = iota
	placeFirst
	placeLast
)

func placeOf(i, n int) place {
	switch i {
	case n - 1:
		return placeLast
	case 0:
		return placeFirst
	}
	return placeMiddle
}

// frameUsage is the usage member of one choice frame, with its comma.
func (r *rendering) frameUsage(f choiceFrame, at place) string {
	switch form := r.s.UsageForm; {
	case form == UsageNone, form == UsageAlways:
		return ""
	case form == UsageEvery && at == placeLast:
		return `,"usage":` + r.report(r.usage)
	case form == UsageEvery:
		return `,"usage":` + r.report(r.partial(f.done))
	case form == UsageEarly && at == placeFirst, form == UsageWithFinish && at == placeLast:
		return `,"usage":` + r.report(r.usage)
	case form == UsageEarly, form == UsageWithFinish:
		return ""
	case r.c.includeUsage:
		return `,"usage":null`
	}
	return ""
}

// hasUsageFrame reports whether usage comes in a frame of its own.
func (r *rendering) hasUsageFrame() bool {
	switch r.s.UsageForm {
	case UsageNone, UsageEvery, UsageEarly, UsageWithFinish:
		return false
	case UsageAlways, UsageNoChoices:
		return true
	}
	return r.c.includeUsage
}
