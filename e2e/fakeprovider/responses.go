package fakeprovider

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// responses renders a Responses answer.
func (r *rendering) responses() [][]byte {
	if !r.c.stream {
		if r.c.background {
			return [][]byte{[]byte(r.response("queued"))}
		}
		return [][]byte{[]byte(r.response(r.finalStatus()))}
	}
	st := &responseStream{r: r}
	st.add("response.created", `"response":`+r.response("in_progress"))
	st.add("response.in_progress", `"response":`+r.response("in_progress"))
	if r.tool != "" {
		st.toolItem()
	} else {
		st.messageItem()
	}
	if r.s.Terminal != TerminalNone {
		status := r.finalStatus()
		st.add("response."+status, `"response":`+r.response(status))
	}
	return st.frames
}

// finalStatus is the status a finished response has.
func (r *rendering) finalStatus() string {
	switch {
	case r.s.Terminal == TerminalFailed:
		return "failed"
	case r.s.Terminal == TerminalIncomplete, r.finish == finishLength:
		return "incomplete"
	}
	return "completed"
}

// responseStream numbers the events of one stream.
type responseStream struct {
	r      *rendering
	frames [][]byte
}

// add appends one event; members come after type and sequence_number.
func (st *responseStream) add(event, members string) {
	st.frames = append(st.frames, eventFrame(event,
		`{"type":"`+event+`","sequence_number":`+strconv.Itoa(len(st.frames))+`,`+members+`}`))
}

func (r *rendering) itemID() string { return fmt.Sprintf("msg_fake_%d", r.c.seq) }

// messageItem streams one output message with one text part.
func (st *responseStream) messageItem() {
	r := st.r
	at := `"item_id":"` + r.itemID() + `","output_index":0,"content_index":0`
	st.add("response.output_item.added", `"output_index":0,"item":`+r.messageItemJSON("in_progress"))
	st.add("response.content_part.added", at+`,"part":{"type":"output_text","annotations":[],"logprobs":[],"text":""}`)
	for i, word := range r.words {
		usage := ""
		if r.s.UsageForm == UsageEvery {
			usage = `,"usage":` + r.report(r.partial(i+1))
		}
		st.add("response.output_text.delta", at+`,"delta":`+quote(word)+`,"logprobs":[]`+usage)
	}
	st.add("response.output_text.done", at+`,"text":`+quote(r.text())+`,"logprobs":[]`)
	st.add("response.content_part.done", at+`,"part":`+r.textPart())
	st.add("response.output_item.done", `"output_index":0,"item":`+r.messageItemJSON("completed"))
}

// toolItem streams one function call.
func (st *responseStream) toolItem() {
	r := st.r
	at := fmt.Sprintf(`"item_id":"fc_fake_%d","output_index":0`, r.c.seq)
	st.add("response.output_item.added", `"output_index":0,"item":`+r.toolItemJSON("in_progress"))
	for _, piece := range toolArguments() {
		st.add("response.function_call_arguments.delta", at+`,"delta":`+quote(piece))
	}
	st.add("response.function_call_arguments.done", at+`,"name":`+quote(r.tool)+`,"arguments":`+quote(strings.Join(toolArguments(), "")))
	st.add("response.output_item.done", `"output_index":0,"item":`+r.toolItemJSON("completed"))
}

// compaction renders a compacted conversation: the user's message, and one item
// that stands for all others.
func (r *rendering) compaction() [][]byte {
	usage := ""
	if r.s.UsageForm != UsageNone {
		usage = `,"usage":` + r.report(r.usage)
	}
	return [][]byte{[]byte(`{"id":"` + r.c.responseID() + `","object":"response.compaction","created_at":1764547200,"output":[` +
		`{"id":"` + r.itemID() + `","type":"message","status":"completed","role":"user","content":[{"type":"input_text","text":` + quote(r.c.lastUser) + `}]},` +
		fmt.Sprintf(`{"id":"cmp_fake_%d","type":"compaction","encrypted_content":%s}]`, r.c.seq, quote(base64.StdEncoding.EncodeToString([]byte(r.text())))) +
		usage + `}`)}
}

func (r *rendering) textPart() string {
	return `{"type":"output_text","annotations":[],"logprobs":[],"text":` + quote(r.text()) + `}`
}

func (r *rendering) messageItemJSON(status string) string {
	content := ""
	if status != "in_progress" {
		content = r.textPart()
	}
	return `{"id":"` + r.itemID() + `","type":"message","status":"` + status + `","role":"assistant","content":[` + content + `]}`
}

func (r *rendering) toolItemJSON(status string) string {
	arguments := ""
	if status != "in_progress" {
		arguments = strings.Join(toolArguments(), "")
	}
	return fmt.Sprintf(`{"id":"fc_fake_%d","type":"function_call","status":%q,"call_id":"call_fake_%d","name":%s,"arguments":%s}`,
		r.c.seq, status, r.c.seq, quote(r.tool), quote(arguments))
}

// response is the response object in a given status.
func (r *rendering) response(status string) string {
	output, usage, errorJSON, details := "", "null", "null", "null"
	ended := status != "in_progress" && status != "queued"
	if ended {
		output = r.messageItemJSON("completed")
		if r.tool != "" {
			output = r.toolItemJSON("completed")
		}
	}
	early := r.s.UsageForm == UsageEarly
	switch {
	case r.s.UsageForm == UsageNone:
	case early && r.c.stream && ended:
	case ended, early:
		usage = r.report(r.usage)
	}
	switch status {
	case "failed":
		output, errorJSON = "", `{"code":"server_error","message":"The model failed to generate a response."}`
	case "incomplete":
		details = `{"reason":` + quote(r.incompleteReason()) + `}`
	}
	return `{"id":"` + r.c.responseID() + `","object":"response","created_at":` + created +
		`,"status":"` + status + `","background":` + strconv.FormatBool(r.c.background) + `,"error":` + errorJSON + `,"incomplete_details":` + details +
		`,"instructions":null,"max_output_tokens":null,"model":` + r.model +
		`,"output":[` + output + `],"parallel_tool_calls":true,"previous_response_id":null,"store":true` +
		`,"temperature":1.0,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":1.0` +
		`,"truncation":"disabled","usage":` + usage + `,"metadata":{}}`
}

func (r *rendering) incompleteReason() string {
	if r.s.FinishReason != "" {
		return r.s.FinishReason
	}
	return "max_output_tokens"
}
