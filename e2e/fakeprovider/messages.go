package fakeprovider

import (
	"fmt"
	"strconv"
	"strings"
)

// stopReason is the stop_reason of a message.
func (r *rendering) stopReason() string {
	if r.s.FinishReason != "" {
		return r.s.FinishReason
	}
	return map[finish]string{finishStop: "end_turn", finishLength: "max_tokens", finishTool: "tool_use"}[r.finish]
}

// messages renders an Anthropic message.
func (r *rendering) messages() [][]byte {
	if r.c.stream {
		return r.messageStream()
	}
	usage := ""
	if r.s.UsageForm != UsageNone {
		usage = `,"usage":` + r.report(r.usage)
	}
	content := `{"type":"text","text":` + quote(r.text()) + `}`
	if r.tool != "" {
		content = r.toolUse(strings.Join(toolArguments(), ""))
	}
	return [][]byte{[]byte(r.messageHead() + `,"content":[` + content + `],"stop_reason":` + quote(r.stopReason()) + `,"stop_sequence":null` + usage + `}`)}
}

func (r *rendering) messageHead() string {
	return `{"id":"` + r.itemID() + `","type":"message","role":"assistant","model":` + r.model
}

func (r *rendering) toolUse(input string) string {
	return fmt.Sprintf(`{"type":"tool_use","id":"toolu_fake_%d","name":%s,"input":%s}`, r.c.seq, quote(r.tool), input)
}

// messageStream renders the events from message_start to message_stop.
func (r *rendering) messageStream() [][]byte {
	var out [][]byte
	add := func(event, members string) {
		if members != "" {
			members = "," + members
		}
		out = append(out, eventFrame(event, `{"type":"`+event+`"`+members+`}`))
	}
	add("message_start", `"message":`+r.messageHead()+`,"content":[],"stop_reason":null,"stop_sequence":null`+r.startUsage()+`}`)
	block, deltas := r.blockDeltas()
	add("content_block_start", `"index":0,"content_block":`+block)
	add("ping", "")
	for i, delta := range deltas {
		add("content_block_delta", `"index":0,"delta":`+delta)
		if r.s.UsageForm == UsageEvery {
			add("message_delta", `"delta":{"stop_reason":null,"stop_sequence":null},"usage":`+r.deltaUsage(r.partial(i+1)))
		}
	}
	if r.s.Terminal == TerminalNone {
		return out
	}
	add("content_block_stop", `"index":0`)
	delta := `"delta":{"stop_reason":` + quote(r.stopReason()) + `,"stop_sequence":null}`
	if r.s.UsageForm != UsageNone && r.s.UsageForm != UsageEarly {
		delta += `,"usage":` + r.deltaUsage(r.usage)
	}
	add("message_delta", delta)
	if r.s.Terminal != TerminalNoDone {
		add("message_stop", "")
	}
	return out
}

// blockDeltas returns the opening content block and its deltas.
func (r *rendering) blockDeltas() (block string, deltas []string) {
	if r.tool == "" {
		for _, word := range r.words {
			deltas = append(deltas, `{"type":"text_delta","text":`+quote(word)+`}`)
		}
		return `{"type":"text","text":""}`, deltas
	}
	for _, piece := range toolArguments() {
		deltas = append(deltas, `{"type":"input_json_delta","partial_json":`+quote(piece)+`}`)
	}
	return r.toolUse("{}"), deltas
}

// startUsage is the usage member of message_start: the whole input, and one
// output token, which message_delta replaces.
func (r *rendering) startUsage() string {
	first := r.usage
	switch r.s.UsageForm {
	case UsageNone:
		return ""
	case UsageEarly:
	default:
		first.Output = min(first.Output, 1)
	}
	return `,"usage":` + r.report(first)
}

// deltaUsage is the cumulative usage of a message_delta. What it reports
// overall includes the input that message_start gave.
func (r *rendering) deltaUsage(u Usage) string {
	if r.s.UsageForm == UsageRepeat || r.s.UsageRaw != nil || r.s.UsageForm == UsageEmpty || r.s.UsageForm == UsageNull {
		return r.report(u)
	}
	r.reported = &u
	return `{"output_tokens":` + strconv.FormatInt(u.Output, 10) + `}`
}
