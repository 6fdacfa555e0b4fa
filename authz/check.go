package authz

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"keyway/domain"
	"keyway/wire"
)

// maxCandidates bounds a ranked list: attempts beyond it would only prolong an
// outage that four accounts share, and each costs room in the decision.
const maxCandidates = 4

// Request is one client request as the check sees it.
type Request struct {
	// ID is the gateway's own request id.
	ID     string
	Method string
	// Target is the request target: path and query.
	Target string
	// Headers are lower-case names; several values of one name are joined by commas.
	Headers map[string]string
	Body    []byte
}

// Admitted is what the check answers for a request that may go out.
type Admitted struct {
	Decision domain.Decision
	// Headers are the limit headers for the client, in its dialect.
	Headers []wire.Header
	// Answer, when not nil, is the whole answer: JSON, and nothing goes out.
	Answer []byte
	// Relay: the request goes through the relay.
	Relay bool
}

// Keys resolves the hash of a secret to its record; domain.ErrNotFound when
// there is none, domain.ErrStoreDown when nobody can tell.
type Keys interface {
	Key(ctx context.Context, hash string) (domain.VirtualKey, error)
}

// Reservations takes and gives back what requests hold.
type Reservations interface {
	// Admit reserves d.Holds and a slot of the first candidate, all or nothing.
	Admit(ctx context.Context, d domain.Decision) (domain.Admission, error)
	// AdmitLate charges d.Holds whatever the limits say, for a request that went out
	// while the store was away; idempotent.
	AdmitLate(ctx context.Context, d domain.Decision) error
	// Refund undoes an Admit whose outcome is unknown; idempotent.
	Refund(ctx context.Context, d domain.Decision) error
}

// check decides about one request. Its errors are all *domain.Error, or become
// one by domain.AsError.
func (s *Server) check(ctx context.Context, r Request) (Admitted, error) {
	snap := s.config.Load()
	if snap == nil {
		return Admitted{}, errStarting
	}
	op, err := operationOf(snap, r)
	if err != nil {
		return Admitted{}, err
	}
	key, err := s.resolveKey(ctx, r)
	if err != nil {
		return Admitted{}, err
	}
	if err := checkForm(r, snap.MaxRequestBytes); err != nil {
		return Admitted{}, err
	}
	if op.api == domain.APIModels {
		answer, err := op.models(snap, key, r)
		return Admitted{Answer: answer}, err
	}
	peek, made, err := s.read(ctx, op, r, key)
	if err != nil {
		return Admitted{}, err
	}
	model, ok := resolve(snap, key, peek.Model)
	if !ok || op.api.IsRaw() != model.PassesRaw() {
		return Admitted{}, op.unknown(peek.Model)
	}
	if peek.Background && (op.api != domain.APIResponses || model.Background != domain.BackgroundPoll) {
		return Admitted{}, errBackground
	}
	a := ask{snap: snap, key: key, api: op.api, model: model, affinity: affinityOf(key, peek), session: sessionOf(key, r.Headers, peek), stored: made}
	if a.pinned, err = s.pinned(ctx, a, peek); err != nil {
		return Admitted{}, err
	}
	way := s.route(a)
	if len(way.picks) == 0 {
		return Admitted{}, a.unroutable(way, peek.Model, s.now())
	}
	z := sizing{snap, key, peek, way.models(), r.Body}
	d, terms := s.decide(z)
	d.RequestID, d.API, d.BodyLen = r.ID, op.api, int64(len(r.Body))
	d.Path, d.Background = op.target(r), peek.Background
	way.into(&d, candidateTerms{z, terms.inject})
	admission, err := s.reserveFirst(ctx, &d, terms)
	switch {
	case errors.Is(err, errOnTrial):
		return Admitted{}, resting(way.soonest, s.now(), len(way.picks))
	case err != nil:
		return Admitted{}, err
	}
	headers := append(wire.LimitHeaders(op.api.Dialect(), d.Holds, admission, s.now()), notices(model)...)
	if terms.inject > 0 {
		headers = append(headers, wire.Header{Name: headerOutputCap, Value: strconv.FormatInt(terms.inject, 10)})
	}
	// What is made in the background begins to answer at once, and must not be made twice.
	relay := model.EarlyHeartbeat && peek.Stream && !peek.Background && op.api.Streams()
	return Admitted{Decision: d, Headers: headers, Relay: relay}, nil
}

// checkForm refuses what could not be passed on as it is meant.
func checkForm(r Request, maxBytes int64) error {
	h := r.Headers
	if enc := h["content-encoding"]; enc != "" && !strings.EqualFold(enc, "identity") {
		return &domain.Error{
			Code: domain.CodeUnsupportedBody, NoRetry: true,
			Message: "Compressed request bodies are not accepted; send the body without content-encoding.",
		}
	}
	if strings.Contains(h["anthropic-version"], ",") {
		return &domain.Error{
			Code: domain.CodeInvalidRequest, NoRetry: true, Param: "anthropic-version",
			Message: "The header anthropic-version was sent twice; send exactly one value.",
		}
	}
	if int64(len(r.Body)) > maxBytes {
		// What is here may be the beginning only: nothing in it counts.
		return errTooLarge
	}
	return nil
}

// clip bounds a client's string before it goes into a message, and hides a key
// that was sent in the wrong place.
func clip(s string) string {
	const longest = 128
	if strings.Contains(s, domain.KeyPrefix) {
		return "(hidden, it looks like a key)"
	}
	if len(s) <= longest {
		return s
	}
	return strings.ToValidUTF8(s[:longest], "") + "…"
}

// reserve takes the holds and the first free slot of the ranked list. Channels
// before it, whose slots are all taken, leave d.Candidates. What is leased is
// taken here, and a request that needs no more goes out before its reservation
// is written. Without the store, what its policies allow then goes out unreserved.
func (s *Server) reserve(ctx context.Context, d *domain.Decision, t terms) (domain.Admission, error) {
	if r := s.lending.take(d); r != nil {
		return domain.Admission{}, refused(*r, d)
	}
	if alone(d) {
		// A store that was away may hear of its renewal before it hears of it.
		d.Unreserved = true
		s.metrics.leasedAdmissions.Inc()
		s.lending.note(*d)
		return s.lending.fill(domain.Admission{}, d.Holds), nil
	}
	admission, err := s.reservations.Admit(ctx, *d)
	if err == nil {
		s.outage.over(s.now())
	}
	switch {
	case errors.Is(err, domain.ErrStoreDown) && s.goesBlind(d, t.own, t.shared):
		// Should the hold have been written all the same, the settlement ends it.
		return domain.Admission{}, nil
	case err != nil:
		s.lending.putBack(d.Holds)
		// It may have been written all the same: give it back when the store answers again.
		s.refunds.add(*d)
		if errors.Is(err, domain.ErrStoreDown) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return domain.Admission{}, errStoreAway
		}
		return domain.Admission{}, fmt.Errorf("reserve: %w", err)
	case admission.BudgetsUnknown:
		s.lending.putBack(d.Holds)
		if s.unknown.due(s.now()) {
			s.logger.Error("budgeted requests are refused: the store is new or has lost writes, and no worker has rebuilt its budgets from the ledger yet; is one running?")
		}
		s.metrics.budgetsUnknown.Inc()
		return admission, errBudgetsUnknown
	case admission.Refusal != nil:
		s.lending.putBack(d.Holds)
		s.lending.remember(d.Holds, *admission.Refusal)
		return admission, refused(*admission.Refusal, d)
	case admission.SlotRefused:
		s.lending.putBack(d.Holds)
		return admission, errBusy
	}
	d.Candidates = d.Candidates[admission.Skipped:]
	return s.lending.fill(admission, d.Holds), nil
}

var (
	errStarting       = &domain.Error{Code: domain.CodeUnavailable, RetryAfter: time.Second, Message: "The gateway is starting; try again in a second."}
	errStoreAway      = &domain.Error{Code: domain.CodeUnavailable, RetryAfter: time.Second, Message: "The gateway cannot check limits at the moment; try again in a second."}
	errBudgetsUnknown = &domain.Error{Code: domain.CodeUnavailable, RetryAfter: time.Second, Message: "The gateway is rebuilding its budgets; try again in a second."}
	errTooLarge       = &domain.Error{Code: domain.CodeTooLarge, NoRetry: true, Message: "The request body is larger than this gateway accepts. Send a smaller one."}
	errBusy           = &domain.Error{Code: domain.CodeRateLimited, RetryAfter: time.Second, Message: "Every channel of this model is busy; try again in a second."}
	errOverload       = &domain.Error{Code: domain.CodeUnavailable, RetryAfter: time.Second, Message: "The gateway holds too many request bodies at the moment; try again in a second."}
)

// errBackground refuses what goes on, and costs, when its request is over: no
// answer passes here that could tell how much.
var errBackground = &domain.Error{
	Code: domain.CodeInvalidRequest, Param: "background", NoRetry: true,
	Message: "This gateway does not take responses of this model in the background. Send the request without background, as a stream if it may take long.",
}

// maxRetryAfter caps what a client is told to wait: some SDKs wait as long as they are told.
const maxRetryAfter = time.Minute

// owners name whose limit it is.
var owners = map[domain.Scope]string{
	domain.ScopeKey: "API key", domain.ScopeKeyModel: "API key for this model",
	domain.ScopeIdentity: "account", domain.ScopeIdentityModel: "account for this model",
}

// refused words the refusal of one limit.
func refused(r domain.Refusal, d *domain.Decision) *domain.Error {
	owner := owners[r.Scope]
	if r.Kind == domain.LimitBalance {
		return &domain.Error{
			Code: domain.CodeBalance, NoRetry: true, Limit: &r,
			Message: "The balance of this account does not cover this request. Top it up, or lower the output cap.",
		}
	}
	if r.Kind.IsBudget() {
		period := map[domain.LimitKind]string{domain.LimitBudgetDay: "daily", domain.LimitBudgetMonth: "monthly"}[r.Kind]
		return &domain.Error{
			Code: domain.CodeBudget, NoRetry: true, Limit: &r,
			Message: fmt.Sprintf("The %s budget of this %s does not cover this request. Lower the output cap, wait for the next period, or ask your operator to raise it.", period, owner),
		}
	}
	what := map[domain.LimitKind]string{
		domain.LimitRPM: "requests per minute", domain.LimitTPM: "tokens per minute", domain.LimitInFlight: "requests in flight",
		domain.LimitImagesDay: "images per day", domain.LimitCountTokens: "token counts per minute",
	}[r.Kind]
	e := &domain.Error{Code: domain.CodeRateLimited, Limit: &r, RetryAfter: min(r.RetryAfter, maxRetryAfter)}
	tokens := d.PromptTokens + d.OutputCap
	switch {
	case r.Kind == domain.LimitImagesDay:
		// The day is rarely over within the time that a client may be told to wait.
		e.NoRetry, e.RetryAfter = true, 0
		e.Message = fmt.Sprintf("This %s has reached its limit of %d %s. Try again tomorrow.", owner, r.Limit, what)
		if !d.API.MakesImages() {
			e.Message = strings.TrimSuffix(e.Message, ".") + ", or without the tool image_generation."
		}
	case r.Kind == domain.LimitTPM && tokens > r.Size:
		e.NoRetry, e.RetryAfter = true, 0
		e.Message = fmt.Sprintf("This request needs %d tokens and the limit of this %s is %d at once. Shorten the prompt or lower the output cap.", tokens, owner, r.Size)
		if r.Scope == domain.ScopeRegion {
			e.Message = fmt.Sprintf("This request needs %d tokens, more than this gateway ever lets through at once. Shorten the prompt or lower the output cap.", tokens)
		}
	case r.Scope == domain.ScopeRegion:
		e.RetryAfter = max(e.RetryAfter, time.Second)
		e.Message = fmt.Sprintf("This gateway has reached its limit of %s for everyone together. Try again later.", what)
	default:
		if e.RetryAfter <= 0 {
			e.RetryAfter = time.Second
		}
		e.Message = fmt.Sprintf("This %s has reached its limit of %d %s. Try again later.", owner, r.Limit, what)
	}
	return e
}
