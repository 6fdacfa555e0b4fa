package extproc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"keyway/domain"
	"keyway/envoy"
	"keyway/telemetry"
	"keyway/wire"
)

// readBytes is how much of an answer is read at once.
const readBytes = 16 << 10

// serve passes a good answer on. It returns the error that the next channel may
// make good; done says that the request has its answer.
func (x *relayed) serve(ctx context.Context, resp *http.Response) (lost *domain.Error, done bool) {
	a := x.answerOf(resp)
	_, read := readAs(x.decision.API, bodyFormat(a))
	if lost := a.worthless(); read && lost != nil {
		x.spoilt(a.status)
		return lost, false
	}
	streams := read && bodyFormat(a) != wire.FormatJSON && a.plain()
	x.hold(func() {
		if x.committed && !streams {
			lost = errNotSSE
			x.spoilt(a.status)
			return
		}
		a.committed = x.given()
		w, plan := x.server.begin(x.decision, a)
		x.w, x.head = w, clientHeader(resp.Header, plan)
		x.pulse.heardOf()
		if !streams {
			// There is nothing to hold back for: it passes as it comes.
			x.release()
			x.write(nil)
		}
		if w.watcher == nil {
			x.pulse.stop()
		}
	})
	switch {
	case lost != nil:
		return lost, false
	case x.w.watcher != nil:
		return x.stream(ctx, resp.Body)
	}
	x.passUnread(resp.Body)
	return nil, true
}

// passUnread passes on a good answer that nobody reads, and settles it by how that
// ended.
func (x *relayed) passUnread(body io.Reader) {
	n, err := io.Copy(x.client, body)
	x.w.forwarded = n
	switch {
	case err == nil:
		x.w.settle(domain.OutcomeSuccess)
		return
	case x.request.Context().Err() != nil:
		x.w.settle(domain.OutcomeCancelled)
	default:
		x.server.evidence.failed(x.w.slotHolder(), wire.Failure{})
		x.w.settle(domain.OutcomeUpstreamCut)
	}
	panic(http.ErrAbortHandler) // resets the client's stream, as its upstream was
}

// spoilt notes an attempt with a good status and a worthless answer.
func (x *relayed) spoilt(status int) {
	candidate := x.decision.Last(x.attempts)
	x.server.evidence.failed(candidate, wire.Failure{})
	x.notes += note{channel: candidate.Channel, status: status, at: x.server.now()}.line()
}

// copyRest passes on a body that is not watched.
func (x *relayed) copyRest(body io.Reader) {
	if _, err := io.Copy(x.client, body); err != nil {
		panic(http.ErrAbortHandler) // resets the client's stream, as its upstream was
	}
}

// stream reads the answer to its end, or to where the next channel takes over.
func (x *relayed) stream(ctx context.Context, body io.Reader) (lost *domain.Error, done bool) {
	buf := make([]byte, readBytes)
	for {
		n, err := body.Read(buf)
		over := err != nil
		x.hold(func() {
			if n > 0 {
				lost = x.chunk(buf[:n])
			}
			if lost == nil && err != nil {
				lost = x.ended(ctx, err)
			}
		})
		if lost != nil {
			x.giveUp()
			return lost, false
		}
		if over {
			x.close()
			return nil, true
		}
	}
}

// chunk passes the next bytes on. It returns what is wrong where the answer is
// an error before its first output, and another channel may take over.
func (x *relayed) chunk(p []byte) *domain.Error {
	out := x.w.chunk(p)
	if !x.open {
		x.held = append(x.held, out...)
		if !x.w.watcher.FirstOutput() && len(x.held) <= mostHeld {
			result := x.w.watcher.Result()
			if result.Failed && !x.last() {
				return errEvent
			}
			if !result.Terminal {
				x.pulse.heardOf()
				return nil
			}
		}
		out = x.release()
	}
	if len(out) > 0 {
		x.write(out)
	}
	x.pulse.passed()
	return nil
}

// release ends the time in which another channel may take over, and returns
// what was held back for it.
func (x *relayed) release() []byte {
	held := x.held
	x.held, x.open = nil, true
	x.dropBody()
	return held
}

// ended takes in the end of the body. It returns what is wrong where another
// channel may take over; else the client has what can be given.
func (x *relayed) ended(ctx context.Context, err error) *domain.Error {
	var broken *domain.Error
	switch {
	case errors.Is(err, io.EOF):
	case errors.Is(context.Cause(ctx), errIdle):
		broken = errIdle
	case x.request.Context().Err() != nil:
		x.w.left = true
		return nil
	default:
		broken = errBroken
		x.server.logger.Info("stream broke off", telemetry.RequestID(x.decision.RequestID), "channel", x.decision.Last(x.attempts).Channel, telemetry.Err(err))
	}
	if !x.open && !x.last() && !x.w.watcher.Result().Terminal {
		if broken == nil {
			broken = errBroken
		}
		return broken
	}
	x.pulse.stop()
	var tail []byte
	if broken != nil {
		tail = x.w.abort(broken)
	} else {
		tail = x.w.finish()
	}
	if !x.open {
		tail = append(x.release(), tail...)
	}
	if len(tail) > 0 {
		x.write(tail)
	}
	return nil
}

// giveUp leaves the answer to the next channel.
func (x *relayed) giveUp() {
	candidate, result := x.decision.Last(x.attempts), x.w.watcher.Result()
	failure := wire.Failure{}
	if result.Failed {
		failure = wire.Failure{Status: x.w.answer.status, Headers: x.w.answer.waitHeaders(), Error: result.Error}
	}
	x.server.evidence.failed(candidate, failure)
	x.notes += note{
		channel: candidate.Channel, status: x.w.answer.status, at: x.server.now(), detail: detailOf(result.Error),
	}.line()
	x.hold(func() { x.w, x.head, x.held = nil, nil, nil })
}

// detailOf is an error event as the note of an attempt has it; "" for none.
func detailOf(e wire.StreamError) string {
	if e == (wire.StreamError{}) {
		return ""
	}
	body, err := json.Marshal(map[string]wire.StreamError{"error": e})
	if err != nil {
		return "" // three strings always marshal
	}
	return base64.StdEncoding.EncodeToString(append([]byte("\n"), body...))
}

// dropTime is how long the rest of an answer that was given up may take: one
// that is reset at once counts, for Envoy, against all of the connection.
const dropTime = 2 * time.Second

// drop reads the rest of an answer that was given up.
func drop(resp *http.Response, cancel context.CancelCauseFunc) {
	late := time.AfterFunc(dropTime, func() { cancel(nil) })
	defer late.Stop()
	defer cancel(nil)
	defer resp.Body.Close()
	// It ends as it ends.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, mostHeld))
}

// close settles an answer that is over.
func (x *relayed) close() {
	x.hold(x.pulse.stop)
	x.w.end()
	if x.w.broken && !x.w.readable() {
		panic(http.ErrAbortHandler) // nothing can be added to such an answer: it breaks
	}
}

// final passes on an error that no other channel makes good.
func (x *relayed) final(resp *http.Response, detail []byte) {
	a := x.answerOf(resp)
	x.hold(func() {
		x.pulse.stop()
		a.committed = x.given()
	})
	_, plan := x.server.begin(x.decision, a)
	switch {
	case x.committed:
		x.hold(func() { x.write(x.errorEvent(plan.replace, detail)) })
	case plan.replace != nil:
		x.refuse(plan.replace)
	default:
		x.committed = true
		header := x.client.Header()
		for name, values := range clientHeader(resp.Header, plan) {
			header[name] = values
		}
		x.client.WriteHeader(resp.StatusCode)
		x.copyRest(io.MultiReader(strings.NewReader(string(detail)), resp.Body))
	}
}

// errorEvent is the error of an answer with the body detail as an event.
func (x *relayed) errorEvent(replace *domain.Error, detail []byte) []byte {
	frame := wire.FrameContext{RequestID: x.decision.RequestID}
	if replace != nil {
		return wire.ErrorFrame(x.decision.API, replace, frame)
	}
	w := wire.NewWatcher(wire.WatchOptions{API: x.decision.API, Format: wire.FormatJSON})
	w.Write(detail)
	told := w.Result().Error
	if told.Message == "" {
		return wire.ErrorFrame(x.decision.API, errEvent, frame)
	}
	return wire.UpstreamErrorFrame(x.decision.API, told, frame)
}

// answerOf is the head of resp as the watch takes it.
func (x *relayed) answerOf(resp *http.Response) answer {
	a := answer{
		status: resp.StatusCode, headers: make(map[string][]string, len(resp.Header)), ended: resp.ContentLength == 0,
		fromUpstream: true, relayed: true, attempts: x.attempts, notes: x.notes,
	}
	for name, values := range resp.Header {
		a.headers[strings.ToLower(name)] = values
	}
	return a
}

// hopHeaders belong to one connection, or to us.
var hopHeaders = []string{"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te", envoy.HeaderRetry, envoy.HeaderReply}

// clientHeader is what the client gets of an upstream's headers.
func clientHeader(header http.Header, plan watchPlan) http.Header {
	out := header.Clone()
	for _, names := range [][]string{plan.remove, hopHeaders} {
		for _, name := range names {
			out.Del(name)
		}
	}
	for _, h := range plan.set {
		out.Set(h.Name, h.Value)
	}
	return out
}
