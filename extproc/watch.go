package extproc

import (
	"time"

	"keyway/domain"
	"keyway/wire"
)

// watchPlan is what to do with a response.
type watchPlan struct {
	set    []wire.Header
	remove []string
	// body is true when the body is to be watched.
	body bool
	// replace, when not nil, takes the place of the whole response.
	replace *domain.Error
	// unread: nobody reads the body, and its end is told by who passes it on.
	unread bool
}

// watch is one response being watched. One goroutine owns it.
type watch struct {
	server   *Server
	decision domain.Decision
	answer   answer
	watcher  *wire.Watcher
	begun    time.Time
	// status is what the client gets; the provider's own is the answer's.
	status int
	// firstByte is zero until the first body byte passed.
	firstByte time.Time
	// forwarded counts body bytes that went on to the client.
	forwarded int64
	finished  bool
	settled   bool
	// broken: it was ended before its end came.
	broken bool
	// left: the client is known to have left before the end.
	left bool
	// remembered: the id of what the provider keeps has been seen.
	remembered bool
	// unkept is that id where the store did not take it: the settlement brings it.
	unkept domain.StoredID
	// served: it has been reported that the channel works.
	served bool
	// resumed is what was known of a response in the background when its request
	// was over; nil for any other.
	resumed *domain.Settlement
	// lost: it went on in the background, and nobody can tell how it ended.
	lost bool
}

// begin reads the head of a response and says what to do with it. An error is
// settled here, and what has no body; a good answer that is not read stays open
// until its end is told.
func (s *Server) begin(d domain.Decision, a answer) (*watch, watchPlan) {
	w := &watch{server: s, decision: d, answer: a, begun: s.now(), status: a.shown(d.API.Dialect(), nil)}
	plan := watchPlan{set: w.ownHeaders()}
	plan.remove = strippedHeaders(a.headers, plan.set)
	if a.fromUpstream {
		s.evidence.limits(w.slotHolder(), a.headers)
	}
	format := bodyFormat(a)
	api, read := readAs(d.API, format)
	if !a.relayed {
		s.blameUnseen(d, a.attempts, a.notes)
	}
	switch {
	case a.status >= 300:
		plan.replace = replacement(a, w.failure().Judge(w.begun).Reason)
		w.status = a.shown(d.API.Dialect(), plan.replace)
		w.blame()
		w.settle(domain.OutcomeFailed)
	case read && a.worthless() != nil:
		plan.replace = a.worthless()
		w.status = a.shown(d.API.Dialect(), plan.replace)
		s.evidence.failed(w.slotHolder(), wire.Failure{})
		w.settle(domain.OutcomeFailed)
	case a.ended:
		w.praise()
		w.settle(domain.OutcomeSuccess)
	case !read:
		w.praise()
		plan.unread = true
		s.leases.keep(leaseOf(d, w.slotHolder()))
	default:
		plan.body = true
		w.watcher = wire.NewWatcher(wire.WatchOptions{
			API: api, Format: format, RequestID: d.RequestID, Streamed: d.Stream,
			StripUsage: d.StripUsage && !w.compressed(),
		})
		if format == wire.FormatSSE || d.Stream {
			// We may take out a chunk or add a frame: the length cannot stand.
			plan.remove = append(plan.remove, "content-length")
		}
		s.leases.hold(leaseOf(d, w.slotHolder()), time.Time{})
	}
	return w, plan
}

// ownHeaders are the headers of the answer that Keyway says: our request id
// where the dialect's SDKs read it, the provider's own one beside it.
func (w *watch) ownHeaders() []wire.Header {
	var set []wire.Header
	if id := w.upstreamRequestID(); id != "" {
		set = append(set, wire.Header{Name: headerUpstreamRequestID, Value: id})
	}
	set = append(set, wire.RequestIDHeaders(w.decision.API.Dialect(), w.decision.RequestID)...)
	if served := w.decision.ModelOf(w.slotHolder()); served != w.decision.AskedModel() {
		set = append(set, wire.Header{Name: headerModel, Value: served})
	}
	return append(set, wire.WaitHeaders(w.answer.headers, w.begun)...)
}

// headerModel names the model that serves, where the client asked for another
// name: an alias, or a model whose fallback had to step in.
const headerModel = "x-keyway-model"

// headerUpstreamRequestID carries the provider's request id to the client, for support cases.
const headerUpstreamRequestID = "x-keyway-upstream-request-id"

func (w *watch) upstreamRequestID() string {
	if !w.answer.fromUpstream {
		return ""
	}
	if id := w.answer.header("request-id"); id != "" {
		return id
	}
	return w.answer.header("x-request-id")
}

// chunk watches p and returns what goes on to the client.
func (w *watch) chunk(p []byte) []byte {
	if len(p) > 0 && w.firstByte.IsZero() {
		w.firstByte = w.server.now()
		w.server.metrics.ttft.Observe(w.firstByte.Sub(w.decision.AdmittedAt).Seconds())
	}
	if w.compressed() {
		w.forwarded += int64(len(p))
		return p
	}
	out := w.watcher.Write(p)
	w.remember()
	if !w.served && w.watcher.FirstOutput() {
		w.praise()
	}
	w.forwarded += int64(len(out))
	return out
}

// finish is the upstream's clean end. It returns what is still to go to the
// client; end settles once that has been sent.
func (w *watch) finish() []byte {
	w.finished = true
	if w.compressed() {
		return nil
	}
	return w.watcher.Close()
}

// abort ends an answer whose rest will not come. It returns what is still to go
// to the client, which says e where the answer is one that can.
func (w *watch) abort(e *domain.Error) []byte {
	w.finished, w.broken = true, true
	if w.compressed() {
		return nil
	}
	return w.watcher.Abort(e)
}

// readable: the body is a stream of events that the watcher reads.
func (w *watch) readable() bool { return w.isStream() && !w.compressed() }

// compressed: the provider ignored accept-encoding, so the body cannot be read.
func (w *watch) compressed() bool { return !w.answer.plain() }

// end settles a watched response, whatever ended it.
func (w *watch) end() {
	if w.settled || w.watcher == nil {
		return
	}
	result := w.watcher.Result()
	if w.goesOn(result) {
		w.follow(result.UpstreamID)
		return
	}
	channel, evidence := w.slotHolder(), w.server.evidence
	switch {
	case result.Failed:
		evidence.failed(channel, wire.Failure{Status: w.answer.status, Headers: w.answer.waitHeaders(), Error: result.Error})
		w.settle(domain.OutcomeFailed)
	case result.Cancelled:
		w.praise()
		w.settle(domain.OutcomeCancelled)
	case result.Terminal, w.finished && !w.broken && (w.compressed() || result.Unread):
		// On a cut stream that had its end marker only the closing was not waited for.
		w.praise()
		w.settle(domain.OutcomeSuccess)
	case w.finished:
		evidence.failed(channel, wire.Failure{})
		if w.firstByte.IsZero() && !w.broken {
			w.settle(domain.OutcomeFailed) // nothing came at all
			return
		}
		w.settle(domain.OutcomeUpstreamCut)
	case w.left:
		if !w.served {
			evidence.undecided(w.decision.RequestID, channel)
		}
		w.settle(domain.OutcomeCancelled)
	default:
		w.settle(w.whoCut())
	}
}

// whoCut asks who left before the upstream's own end: the access log tells
// within its flush interval. Only its word is evidence against the channel.
func (w *watch) whoCut() domain.Outcome {
	end, told := w.server.ends.wait(w.decision.RequestID, endWait)
	if told && !end.byClient {
		w.server.evidence.failed(w.slotHolder(), wire.Failure{})
	} else if !w.served {
		w.server.evidence.undecided(w.decision.RequestID, w.slotHolder())
	}
	if told && end.byClient {
		return domain.OutcomeCancelled
	}
	return domain.OutcomeUpstreamCut
}

// praise reports, once, that the channel of the last attempt serves.
func (w *watch) praise() {
	if w.served {
		return
	}
	w.served = true
	ttft := time.Duration(0)
	if w.answer.attempts == 1 && w.isStream() && !w.firstByte.IsZero() {
		ttft = w.firstByte.Sub(w.decision.AdmittedAt)
	}
	w.server.evidence.worked(w.slotHolder(), ttft)
}

// failure is what the provider of the last attempt answered in place of an answer.
func (w *watch) failure() wire.Failure {
	if noted, ok := noteOf(w.decision, w.answer.attempts, readNotes(w.answer.notes)); ok {
		return noted.failure()
	}
	return wire.Failure{Status: w.answer.status}
}

// blame reports the last attempt of an answer that is an error.
func (w *watch) blame() {
	channel, evidence := w.slotHolder(), w.server.evidence
	switch {
	case w.answer.fromUpstream:
		evidence.failed(channel, w.failure())
	case w.answer.unanswered:
		evidence.failed(channel, wire.Failure{})
	default:
		// Nobody upstream had a part in it.
		evidence.undecided(w.decision.RequestID, channel)
	}
}

// isStream: the client can be told of an error behind what it has got.
func (w *watch) isStream() bool { return w.watcher != nil && w.watcher.Streams() }

// endWait is how long a cut stream waits for the access log's word. Envoy
// writes it within 50 ms of the end, and a settlement may take a second.
const endWait = 700 * time.Millisecond

// settle ends the request's reservation. Only the first call counts.
func (w *watch) settle(outcome domain.Outcome) {
	if w.settled {
		return
	}
	w.settled = true
	s := w.server
	r := w.record()
	r.Outcome, r.EndedAt = outcome, s.now()
	w.use(&r)
	s.settle(domain.Settlement{Decision: w.decision, Channel: w.slotHolder().Channel, Record: r, Stored: w.unkept})
}

// use fills in what was used: the provider's word where there is one, an
// estimate of what passed where there is none.
func (w *watch) use(r *domain.UsageRecord) {
	r.Source = domain.SourceEstimate
	price := w.decision.PriceOf(w.slotHolder())
	switch {
	case w.lost:
		r.Usage = domain.Usage{InputUncached: w.decision.PromptTokens, Output: w.decision.OutputCap}
		r.CostMicros = charge(r, w.decision, price)
		return
	case w.watcher == nil:
		if r.Outcome != domain.OutcomeFailed {
			r.Usage = unread(w.decision, r.Outcome, w.forwarded)
		}
		r.CostMicros = price.CostMicros(r.Usage)
		return
	}
	result := w.watcher.Result()
	r.ModelServed = result.ModelServed
	if !w.decision.API.Free() {
		r.RawUsage = result.RawUsage
	}
	switch {
	case w.decision.API.Free():
		// Counted, and paid for, by the request that made it.
	case result.HasUsage && (result.Terminal || w.finished):
		r.Usage, r.Source = result.Count(w.decision.PromptTokens)
	case r.Outcome == domain.OutcomeFailed:
		// A failed attempt's text is not output, and costs nothing.
	case w.compressed(), result.Unread:
		r.Usage = domain.Usage{InputUncached: w.decision.PromptTokens, Output: min(w.forwarded/bytesPerToken, max(w.decision.OutputCap, 1))}
	case w.decision.API == domain.APISpeech:
		// Sound has no text that could be counted. In events it is written as base64.
		r.Usage = unread(w.decision, r.Outcome, w.forwarded*3/4)
	default:
		r.Usage, r.Source = result.Count(w.decision.PromptTokens)
	}
	r.CostMicros = charge(r, w.decision, price)
	// The estimate was made for the decision's own model, and corrects no other.
	if r.Source == domain.SourceUpstream && w.decision.Class != "" && w.slotHolder().Model == "" {
		w.server.metrics.estimateRatio.Observe(float64(w.decision.PromptTokens) / float64(max(r.Usage.Input(), 1)))
		w.server.calibration.learn(w.decision, r.Usage.Input())
	}
}

// charge adds to the usage of r what was asked for by the piece and the answer
// did not count, and returns the cost of all.
func charge(r *domain.UsageRecord, d domain.Decision, price domain.Price) int64 {
	counted := r.Source == domain.SourceUpstream
	if r.Outcome != domain.OutcomeFailed {
		for unit, n := range d.Units {
			// Sound is charged by tokens or by its length, never by both.
			if r.Usage.Tools[unit] == 0 && !(counted && d.API.Transcribes()) {
				r.Usage.Tools[unit] = n
			}
		}
	}
	if counted && d.API.MakesImages() {
		price.Tools = nil // the tokens of an image are its price
	}
	return price.CostMicros(r.Usage)
}

// bytesPerToken is the length of a token in text that could not be read; 4 is
// what vendors tell their users to reckon with.
const bytesPerToken = 4

// slotHolder is the candidate whose slot the request holds: that of the last
// attempt, or of the first candidate before any ran.
func (w *watch) slotHolder() domain.Candidate {
	return w.decision.Last(w.answer.attempts)
}

// recordOf begins the record of a request with what admission knew.
func recordOf(d domain.Decision, attempts []domain.Attempt) domain.UsageRecord {
	r := domain.UsageRecord{
		RequestID: d.RequestID, KeyID: d.KeyID, Identity: d.Identity, API: d.API, Model: d.AskedModel(),
		Attempt: len(attempts), Attempts: attempts, PriceVersion: d.PriceOf(d.Last(len(attempts))).Version, ModelDispatched: d.ModelOf(d.Last(len(attempts))),
		PromptTokensEstimate: d.PromptTokens, AdmittedAt: d.AdmittedAt,
	}
	if n := len(attempts); n > 0 {
		r.Channel = attempts[n-1].Channel
	}
	return r
}
