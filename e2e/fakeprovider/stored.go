package fakeprovider

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxKept is how many responses a face stores; the oldest go first.
const maxKept = 2000

// kept is a response that a face has stored.
type kept struct {
	call   call
	script Script
	// pending is nil for one that was not made in the background.
	pending *pending
}

// pending is a response that is made in the background.
type pending struct {
	fails     int
	polls     int
	ends      time.Time
	cancelled bool
}

// standing is the status of a response after act, "" once it has ended by
// itself. A caller without an act is one who polls.
func (p *pending) standing(act string) string {
	switch {
	case p == nil:
		return ""
	case p.cancelled:
		return "cancelled"
	case p.polls <= 0 && !time.Now().Before(p.ends):
		return ""
	case act == "cancel":
		p.cancelled = true
		return "cancelled"
	case act != "":
		return "in_progress"
	}
	p.polls--
	return "in_progress"
}

// keep stores the response of c. The id that it answered with names it.
func (f *Face) keep(c *call, s Script) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kept == nil {
		f.kept = map[string]kept{}
	}
	k := kept{call: *c, script: s}
	if c.background {
		k.pending = &pending{fails: s.FailPolls, polls: s.PendingPolls, ends: time.Now().Add(time.Duration(s.PendingMs) * time.Millisecond)}
	}
	f.kept[c.responseID()] = k
	f.keptIDs = append(f.keptIDs, c.responseID())
	if len(f.keptIDs) > maxKept {
		delete(f.kept, f.keptIDs[0])
		f.keptIDs = f.keptIDs[1:]
	}
}

// recall finds a stored response and its status after act.
func (f *Face) recall(id, act string) (k kept, status string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok = f.kept[id]
	return k, k.pending.standing(act), ok
}

// failPoll reports whether a question of id fails, and the script that says so.
func (f *Face) failPoll(id, act string) (s Script, fails bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.kept[id]
	if act != "" || k.pending == nil || k.pending.fails == 0 {
		return s, false
	}
	k.pending.fails--
	return k.script, true
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
	if s, fails := x.face.failPoll(id, action); fails {
		return x.play(c, failures["rate_limit_exceeded"].answer(c), &Script{RetryAfter: s.RetryAfter})
	}
	k, status, ok := x.face.recall(id, action)
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
		if status != "" && !k.call.stream {
			return x.play(c, body(newRendering(&k.call, &k.script).response(status)), &Script{})
		}
		k.call.background = false // it is not queued again
		a := render(&k.call, &k.script)
		if after, err := strconv.Atoi(x.r.URL.Query().Get("starting_after")); err == nil && k.call.stream {
			a.frames = a.frames[min(after+1, len(a.frames)):]
		}
		return x.play(c, a, &k.script)
	case "DELETE ":
		x.face.forget(id)
		return x.play(c, body(`{"id":"`+id+`","object":"response.deleted","deleted":true}`), &Script{})
	case "POST cancel":
		if k.pending != nil && status == "" {
			return x.play(c, body(newRendering(&k.call, &k.script).response("completed")), &Script{})
		}
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
