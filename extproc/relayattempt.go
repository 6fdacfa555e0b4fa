package extproc

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"keyway/domain"
	"keyway/envoy"
	"keyway/telemetry"
)

// attempt calls the nth channel (1-based). It returns the error that the next
// one may make good; done says that the request is over.
func (x *relayed) attempt(n int) (lost *domain.Error, done bool) {
	x.attempts = n
	candidate := x.decision.Last(n)
	// What is given up ends apart from the request: see drop.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(x.request.Context()))
	unhook := context.AfterFunc(x.request.Context(), func() { cancel(context.Canceled) })
	defer unhook()
	x.hold(func() { x.silent = cancel })
	if err := x.server.takeSlot(ctx, attempt{decision: x.decision, number: n}); err != nil {
		cancel(nil)
		if !errors.Is(err, errNoSlot) {
			x.server.logger.Error("relay attempt has no slot", telemetry.RequestID(x.decision.RequestID), "channel", candidate.Channel, telemetry.Err(err))
		}
		return domain.AsError(err), false
	}
	late := time.AfterFunc(x.decision.FirstByteLimit, func() { cancel(errNoStart) })
	x.reached = true
	resp, err := x.relay.call(ctx, x, candidate)
	late.Stop()
	if err != nil {
		lost = x.uncalled(ctx, candidate, err)
		cancel(nil)
		return lost, false
	}
	defer func() {
		if !done {
			go drop(resp, cancel)
			return
		}
		cancel(nil)
		resp.Body.Close()
	}()
	return x.answered(ctx, candidate, resp)
}

// answered takes in the answer of an attempt.
func (x *relayed) answered(ctx context.Context, candidate domain.Candidate, resp *http.Response) (lost *domain.Error, done bool) {
	if reason := resp.Header.Get(envoy.HeaderReply); reason != "" {
		return x.unanswered(candidate, reason), false
	}
	if resp.StatusCode < 300 {
		return x.serve(ctx, resp)
	}
	detail := x.note(candidate, resp)
	if resp.Header.Get(envoy.HeaderRetry) != "" && !x.last() {
		x.server.blameEarlier(x.decision, x.attempts, x.notes)
		return errEvent, false
	}
	x.final(resp, detail)
	return nil, true
}

// uncalled is a call that came to no answer, of whomever.
func (x *relayed) uncalled(ctx context.Context, candidate domain.Candidate, err error) *domain.Error {
	switch {
	case x.request.Context().Err() != nil:
		return nil // the client has left
	case errors.Is(context.Cause(ctx), errNoStart):
		x.server.blameEarlier(x.decision, x.attempts, x.notes)
		return errNoStart
	}
	x.reached = false
	x.server.evidence.undecided(x.decision.RequestID, candidate)
	x.server.logger.Error("relay cannot call channels", telemetry.RequestID(x.decision.RequestID), "channel", candidate.Channel, telemetry.Err(err))
	return errNoReply
}

// unanswered is an attempt that Envoy itself answered, for a reason.
func (x *relayed) unanswered(candidate domain.Candidate, reason string) *domain.Error {
	if strings.HasPrefix(reason, detailsUnanswered) {
		x.server.blameEarlier(x.decision, x.attempts, x.notes)
		return errNoReply
	}
	x.reached = false
	x.server.evidence.undecided(x.decision.RequestID, candidate)
	x.server.logger.Error("relay attempt was refused", telemetry.RequestID(x.decision.RequestID), "channel", candidate.Channel, "reason", reason)
	return errNoReply
}

const (
	// detailBytes is how much of an error is read before it is passed on.
	detailBytes = 32 << 10
	// notedBytes is how much of its body is kept as evidence, as the verdict script keeps it.
	notedBytes = 1 << 10
)

// note takes down an error and returns the beginning of its body.
func (x *relayed) note(candidate domain.Candidate, resp *http.Response) []byte {
	// A body that breaks off says what it says.
	detail, _ := io.ReadAll(io.LimitReader(resp.Body, detailBytes))
	var text bytes.Buffer
	for _, h := range x.answerOf(resp).waitHeaders() {
		fmt.Fprintf(&text, "%s: %s\n", h.Name, h.Value)
	}
	text.WriteByte('\n')
	text.Write(detail[:min(len(detail), notedBytes)])
	x.notes += note{channel: candidate.Channel, status: resp.StatusCode, at: x.server.now(), detail: base64.StdEncoding.EncodeToString(text.Bytes())}.line()
	return detail
}

// errLongDecision: the egress listener would not take the decision.
var errLongDecision = errors.New("decision is too long for a header")

// call sends the request to one channel through the egress listener, which sets
// credential, path and body as it does for any attempt. What it needs of the
// decision is the one candidate.
func (r *relay) call(ctx context.Context, x *relayed, candidate domain.Candidate) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://egress"+x.request.URL.RequestURI(), bytes.NewReader(x.body))
	if err != nil {
		return nil, err
	}
	for name, values := range x.request.Header {
		lower := strings.ToLower(name)
		if !slices.Contains(hopHeaders, lower) && !strings.HasPrefix(lower, "x-keyway-") && lower != "content-length" {
			req.Header[name] = values
		}
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header["User-Agent"] = nil // else Go names itself
	}
	if err := aim(req, x.decision, candidate); err != nil {
		return nil, err
	}
	return r.egress.Do(req)
}

// aim has the egress listener send req to a candidate of d. What it needs of the
// decision is the one candidate.
func aim(req *http.Request, d domain.Decision, candidate domain.Candidate) error {
	candidate.Price = nil
	d.Price, d.Candidates = domain.Price{}, []domain.Candidate{candidate}
	encoded, err := envoy.EncodeDecision(d)
	if err != nil {
		return err
	}
	native, err := envoy.Native(d)
	if err != nil {
		return err
	}
	native = base64.StdEncoding.EncodeToString([]byte(native))
	if max(len(encoded), len(native)) > envoy.MaxEgressDecision {
		return errLongDecision
	}
	req.Header.Set(envoy.HeaderChannel, envoy.ClusterOf(candidate.Channel))
	req.Header.Set(envoy.HeaderDecision, encoded)
	req.Header.Set(envoy.HeaderNative, native)
	return nil
}
