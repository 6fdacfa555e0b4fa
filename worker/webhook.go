package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stripe/stripe-go/v85/webhook"

	"keyway/config"
	"keyway/domain"
	"keyway/telemetry"
)

const (
	// WebhookPath is where the payment service sends its events, by POST.
	WebhookPath = "/webhooks/stripe"
	// WebhookTolerance is how old a signature may be: an event that somebody
	// recorded cannot be sent again later.
	WebhookTolerance = 5 * time.Minute
	// maxEventBytes bounds an event; those that are read have a few thousand.
	maxEventBytes = 1 << 20
	// SourceStripe is the source of the entries that the webhook makes.
	SourceStripe = "stripe"
)

// Balances is the ledger's book of what was paid in.
type Balances interface {
	// AddBalance writes an entry once for its source and reference; added is
	// false when it was there.
	AddBalance(ctx context.Context, e domain.BalanceEntry) (stands domain.BalanceEntry, added bool, err error)
	// BalanceEntry finds an entry; domain.ErrNotFound when there is none.
	BalanceEntry(ctx context.Context, source, reference string) (domain.BalanceEntry, error)
}

// WebhookOptions of NewWebhook; all are required, but for Logger and Now.
type WebhookOptions struct {
	Balances Balances
	// Config knows which identities are prepaid.
	Config *config.Holder
	// Secrets returns those with which an event may be signed now: one, and for
	// the time of a rotation several.
	Secrets func() ([]string, error)
	// Currency is that of the prices, such as "usd": money in another one is refused.
	Currency   string
	Registerer prometheus.Registerer
	// Logger defaults to one that discards.
	Logger *slog.Logger
	// Now is the clock of the entries; default time.Now.
	Now func() time.Time
}

// Webhook takes the events of a payment service in the manner of Stripe: signed
// JSON, sent again until it is answered with 200. Every payment becomes one entry
// of the ledger, however often and by however many events it is told.
type Webhook struct {
	opts   WebhookOptions
	events *prometheus.CounterVec // result
}

// The closed set of results of an event.
const (
	eventAdded    = "added"    // it made an entry
	eventKnown    = "known"    // its entry was there
	eventIgnored  = "ignored"  // it is not about money for a balance
	eventUnsigned = "unsigned" // its signature is missing, wrong or too old
	eventRefused  = "refused"  // it cannot become an entry
	eventFailed   = "failed"   // it could not be handled now
)

// NewWebhook returns a handler that has done no I/O yet.
func NewWebhook(o WebhookOptions) (*Webhook, error) {
	if o.Balances == nil || o.Config == nil || o.Secrets == nil || o.Currency == "" || o.Registerer == nil {
		return nil, errors.New("an option of the webhook is missing")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &Webhook{opts: o, events: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "keyway", Subsystem: "worker", Name: "webhook_events_total",
		Help: "Events of the payment service, by what became of them.",
	}, []string{"result"})}
	for _, result := range []string{eventAdded, eventKnown, eventIgnored, eventUnsigned, eventRefused, eventFailed} {
		h.events.WithLabelValues(result)
	}
	if err := o.Registerer.Register(h.events); err != nil {
		return nil, fmt.Errorf("register webhook metrics: %w", err)
	}
	return h, nil
}

// refusal is why an event is not answered with 200.
type refusal struct {
	status int
	result string
	reason string
}

func (r *refusal) Error() string { return r.reason }

// ServeHTTP takes one event.
func (h *Webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var e event
	result, err := h.handle(w, r, &e)
	status, answer := http.StatusOK, map[string]string{"result": result}
	log := h.opts.Logger.With(slog.String("event", e.ID), slog.String("type", e.Type))
	if err != nil {
		var no *refusal
		if !errors.As(err, &no) {
			no = &refusal{http.StatusServiceUnavailable, eventFailed, "it cannot be written at the moment; send it again"}
		}
		status, result = no.status, no.result
		answer = map[string]string{"error": no.reason}
		log.Error("webhook event refused", slog.Int("status", status), telemetry.Err(err))
	}
	h.events.WithLabelValues(result).Inc()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // who sent it may have gone
}

func (h *Webhook) handle(w http.ResponseWriter, r *http.Request, e *event) (result string, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxEventBytes))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return "", &refusal{http.StatusRequestEntityTooLarge, eventRefused, fmt.Sprintf("the event is larger than %d bytes", maxEventBytes)}
		}
		return "", &refusal{http.StatusBadRequest, eventRefused, "the event could not be read"}
	}
	if err := h.verify(body, r.Header.Get("Stripe-Signature")); err != nil {
		return "", err
	}
	if err := json.Unmarshal(body, e); err != nil {
		return "", errEvent
	}
	entry, err := h.entry(r.Context(), *e)
	if err != nil || entry == nil {
		return eventIgnored, err
	}
	stands, added, err := h.opts.Balances.AddBalance(r.Context(), *entry)
	switch {
	case errors.Is(err, domain.ErrReferenceTaken):
		return "", &refusal{http.StatusUnprocessableEntity, eventRefused, err.Error()}
	case err != nil:
		return "", err
	case !added:
		return eventKnown, nil
	}
	h.opts.Logger.Info("balance changed", slog.String("event", e.ID), slog.String("identity", stands.Identity),
		slog.Int64("amount_micros", stands.AmountMicros), slog.Int64("entry", stands.Seq))
	return eventAdded, nil
}

// verify checks that the event was signed with one of the secrets, and lately.
func (h *Webhook) verify(body []byte, signature string) error {
	secrets, err := h.opts.Secrets()
	if err != nil {
		return fmt.Errorf("read webhook secrets: %w", err)
	}
	err = webhook.ErrNoValidSignature
	for _, secret := range secrets {
		if err = webhook.ValidatePayloadWithTolerance(body, signature, secret, WebhookTolerance); err == nil {
			return nil
		}
	}
	return &refusal{http.StatusBadRequest, eventUnsigned, err.Error()}
}
