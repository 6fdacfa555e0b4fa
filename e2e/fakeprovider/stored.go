package fakeprovider

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// maxKept is how many responses a face stores; the oldest go first.
const maxKept = 2000

// kept is a response that a face has stored.
type kept struct {
	call   call
	script Script
}

// keep stores the response of c. The id that it answered with names it.
func (f *Face) keep(c *call, s Script) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kept == nil {
		f.kept = map[string]kept{}
	}
	f.kept[c.responseID()] = kept{call: *c, script: s}
	f.keptIDs = append(f.keptIDs, c.responseID())
	if len(f.keptIDs) > maxKept {
		delete(f.kept, f.keptIDs[0])
		f.keptIDs = f.keptIDs[1:]
	}
}

func (f *Face) recall(id string) (kept, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.kept[id]
	return k, ok
}

func (f *Face) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.kept, id)
}

// playStored answers what is asked of a stored response: of one that this face
// made, as an account knows its own only.
func (x *exchange) playStored(c *call, raw []byte) End {
	_, rest, _ := strings.Cut(x.r.URL.Path, "/responses/")
	id, action, _ := strings.Cut(rest, "/")
	k, ok := x.face.recall(id)
	if !ok {
		return x.play(c, failures["model_not_found"].withMessage("Response with id '"+id+"' not found.").answer(c), &Script{})
	}
	body := func(text string) answer {
		return answer{status: http.StatusOK, contentType: "application/json", frames: [][]byte{[]byte(text)}}
	}
	// OpenAI's Go SDK asks for the stream in the body of the GET, the others in the query.
	var asked struct{ Stream bool }
	_ = json.Unmarshal(raw, &asked) // there is rarely one
	k.call.stream = asked.Stream || x.r.URL.Query().Get("stream") == "true"
	switch request := x.r.Method + " " + action; request {
	case "GET ":
		a := render(&k.call, &k.script)
		if after, err := strconv.Atoi(x.r.URL.Query().Get("starting_after")); err == nil && k.call.stream {
			a.frames = a.frames[min(after+1, len(a.frames)):]
		}
		return x.play(c, a, &k.script)
	case "DELETE ":
		x.face.forget(id)
		return x.play(c, body(`{"id":"`+id+`","object":"response.deleted","deleted":true}`), &Script{})
	case "POST cancel":
		return x.play(c, body(newRendering(&k.call, &k.script).response("cancelled")), &Script{})
	case "GET input_items":
		return x.play(c, body(`{"object":"list","data":[{"id":"msg_in","type":"message","role":"user","status":"completed","content":[{"type":"input_text","text":`+
			quote(k.call.lastUser)+`}]}],"first_id":"msg_in","last_id":"msg_in","has_more":false}`), &Script{})
	}
	f := failures["bad_request"].withMessage("Method not allowed.")
	f.status = http.StatusMethodNotAllowed
	return x.play(c, f.answer(c), &Script{})
}

// playFile answers a request to a path that no operation has: it says what came.
func (x *exchange) playFile(c *call, received int) End {
	s, source, _ := x.face.next(func(Script) bool { return true })
	x.entry.update(func(rec *Record) { rec.Script = source })
	a := answer{status: statusOr(&s, http.StatusOK), contentType: "application/json", frames: [][]byte{[]byte(
		`{"object":"file","method":` + quote(x.r.Method) + `,"path":` + quote(x.r.URL.Path) + `,"bytes":` + strconv.Itoa(received) + `}`)}}
	if s.Fail != "" || s.Status >= http.StatusBadRequest {
		a = renderFailure(c, &s)
	}
	return x.play(c, a, &s)
}
