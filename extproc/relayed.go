package extproc

import (
	"context"
	"maps"
	"net/http"
	"strconv"
	"time"

	"keyway/domain"
	"keyway/wire"
)

// relayed is one request that goes through the relay. Its handler's goroutine
// owns it; what goes to the client, and everything below pulse, is guarded by
// the pulse.
type relayed struct {
	relay    *relay
	server   *Server
	decision domain.Decision
	request  *http.Request
	body     []byte
	freeBody func()
	// attempts is how many have begun, notes what they answered, as a verdict
	// script would note it.
	attempts int
	notes    string
	// reached: an attempt may have come to a provider.
	reached bool

	pulse  *pulse
	client http.ResponseWriter
	// committed: the head of the answer is out.
	committed bool
	// head is that of the answer in w, for the client.
	head http.Header
	// w watches the answer of the present attempt; nil while there is none.
	w *watch
	// held are the first bytes of that answer, until there is output: before it
	// another channel may still take over. open: there was some.
	held []byte
	open bool
	// silent ends the present attempt.
	silent context.CancelCauseFunc
}

// mostHeld bounds the bytes that wait for the first output, which as a rule
// follows within a few small events.
const mostHeld = 64 << 10

var (
	// errNoStart ends an attempt without headers in time.
	errNoStart = &domain.Error{Code: domain.CodeUpstreamTimeout, Message: "No provider began to answer in time. Try again."}
	errNoReply = &domain.Error{Code: domain.CodeUpstream, Message: "No provider could be reached for this request. Try again."}
	errBroken  = &domain.Error{Code: domain.CodeUpstream, Message: "The provider broke off the stream before the answer was complete. Send the request again."}
	errEvent   = &domain.Error{Code: domain.CodeUpstream, Message: "The provider reported an error. Try again."}
	errNotSSE  = &domain.Error{Code: domain.CodeUpstream, Message: "The provider answered in a form that cannot be streamed. Try again."}
)

// run goes from channel to channel until one serves.
func (x *relayed) run() {
	x.server.leases.hold(leaseOf(x.decision, x.decision.Last(1)), time.Time{})
	x.hold(x.pulse.start)
	defer x.hold(x.pulse.stop)
	var lost *domain.Error
	for n := range x.decision.Candidates {
		var done bool
		if lost, done = x.attempt(n + 1); done {
			return
		}
		if x.request.Context().Err() != nil {
			x.leave()
			return
		}
	}
	x.fail(lost)
}

// hold runs act with the way to the client in hand.
func (x *relayed) hold(act func()) {
	x.pulse.mu.Lock()
	defer x.pulse.mu.Unlock()
	act()
}

// last reports whether no channel follows the present one.
func (x *relayed) last() bool { return x.attempts == len(x.decision.Candidates) }

// dropBody frees the request once no further attempt can need it.
func (x *relayed) dropBody() {
	if x.freeBody != nil {
		x.freeBody()
		x.freeBody, x.body = nil, nil
	}
}

// beat implements answering.
func (x *relayed) beat() bool {
	if x.open && (!x.w.readable() || !x.w.watcher.AtBoundary()) {
		return false
	}
	x.write(wire.Heartbeat(x.decision.API))
	x.server.metrics.heartbeats.Inc()
	return true
}

// idle implements answering: the attempt ends, and its reader says how it goes on.
func (x *relayed) idle() {
	if x.w != nil {
		x.server.metrics.idleEnds.Inc()
		x.silent(errIdle)
	}
}

// write sends p to the client, behind the head of the answer. A client that
// has left ends the request by its context.
func (x *relayed) write(p []byte) {
	if !x.committed {
		x.committed = true
		header := x.client.Header()
		if x.head != nil {
			maps.Copy(header, x.head)
		} else {
			header.Set("Content-Type", "text/event-stream")
			header.Set("Cache-Control", "no-cache")
			x.setHeaders(wire.RequestIDHeaders(x.decision.API.Dialect(), x.decision.RequestID))
		}
		status := http.StatusOK
		if x.w != nil {
			status = x.w.answer.status
		}
		x.client.WriteHeader(status)
	}
	if _, err := x.client.Write(p); err != nil {
		return
	}
	_ = http.NewResponseController(x.client).Flush() // as above
}

func (x *relayed) setHeaders(list []wire.Header) {
	for _, h := range list {
		x.client.Header().Set(h.Name, h.Value)
	}
}

// fail ends a request that no channel served, in the client's dialect.
func (x *relayed) fail(e *domain.Error) {
	status := wire.Status(x.decision.API.Dialect(), e.Code)
	x.hold(func() {
		x.pulse.stop()
		if x.committed {
			status = http.StatusOK
			x.write(wire.ErrorFrame(x.decision.API, e, wire.FrameContext{RequestID: x.decision.RequestID}))
			return
		}
		x.refuse(e)
	})
	x.settle(domain.OutcomeFailed, status)
}

// given is the status that the client has already; 0 for none. A head that is
// out before an answer's own is that of a stream.
func (x *relayed) given() int {
	if x.committed {
		return http.StatusOK
	}
	return 0
}

// refuse writes e as the whole answer.
func (x *relayed) refuse(e *domain.Error) {
	dialect := x.decision.API.Dialect()
	x.committed = true
	body := wire.ErrorBody(dialect, e, x.decision.RequestID)
	x.setHeaders(wire.ErrorHeaders(dialect, e))
	x.setHeaders(wire.RequestIDHeaders(x.decision.API.Dialect(), x.decision.RequestID))
	x.client.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.client.WriteHeader(wire.Status(dialect, e.Code))
	_, _ = x.client.Write(body) // a client that has left needs none
}

// leave ends a request whose client has left before any answer was watched.
func (x *relayed) leave() {
	x.hold(x.pulse.stop)
	x.settle(domain.OutcomeCancelled, x.given())
}

// settle ends the reservation of a request that has no watch.
func (x *relayed) settle(outcome domain.Outcome, status int) {
	d, s := x.decision, x.server
	r := recordOf(d, attemptsOf(d, x.attempts, x.notes))
	r.Outcome, r.Source, r.Status, r.EndedAt = outcome, domain.SourceEstimate, status, s.now()
	if outcome == domain.OutcomeCancelled && x.reached {
		r.Usage = domain.Usage{InputUncached: d.PromptTokens, Tools: d.SentUnits()}
	}
	holder := d.Last(x.attempts)
	price := d.PriceOf(holder)
	r.CostMicros = price.CostMicros(r.Usage)
	s.evidence.undecided(d.RequestID, holder)
	s.settle(domain.Settlement{Decision: d, Channel: holder.Channel, Record: r})
}
