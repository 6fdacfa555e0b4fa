package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"keyway/domain"
)

// metadataIdentity is the field of a payment's metadata that names whose balance
// it is for.
const metadataIdentity = "keyway_identity"

// event is what is read of every event of the payment service.
type event struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	Data struct {
		// Object and PreviousAttributes are read for the types that are about money:
		// those of other types may look as they like.
		Object             json.RawMessage `json:"object"`
		PreviousAttributes json.RawMessage `json:"previous_attributes"`
	} `json:"data"`
}

// money is what is read of a checkout session, a payment intent or a charge;
// amounts are in the currency's minor unit.
type money struct {
	ID             string            `json:"id"`
	Currency       string            `json:"currency"`
	Metadata       map[string]string `json:"metadata"`
	PaymentIntent  string            `json:"payment_intent"`
	PaymentStatus  string            `json:"payment_status"`
	AmountTotal    int64             `json:"amount_total"`
	AmountReceived int64             `json:"amount_received"`
	// AmountRefunded is of all refunds of the charge so far, RefundedBefore of
	// those before this event.
	AmountRefunded int64 `json:"amount_refunded"`
	RefundedBefore int64 `json:"-"`
	// event is where it stands.
	event event
}

// readMoney reads the object of e.
func readMoney(e event) (money, error) {
	m := money{event: e}
	var before money
	err := json.Unmarshal(e.Data.Object, &m)
	if err == nil && len(e.Data.PreviousAttributes) > 0 {
		err = json.Unmarshal(e.Data.PreviousAttributes, &before)
	}
	if err != nil {
		return money{}, errEvent
	}
	m.RefundedBefore = before.AmountRefunded
	return m, nil
}

var errEvent = &refusal{http.StatusBadRequest, eventRefused, "the event is not the JSON that was expected"}

// entry is what the ledger learns from e; nil for an event that changes no
// balance. A payment is known by its intent, which the events of a checkout and
// of the payment itself share, so that both together are one entry.
func (h *Webhook) entry(ctx context.Context, e event) (*domain.BalanceEntry, error) {
	switch e.Type {
	case "checkout.session.completed", "checkout.session.async_payment_succeeded", "payment_intent.succeeded", "charge.refunded":
	default:
		return nil, nil
	}
	m, err := readMoney(e)
	switch {
	case err != nil:
		return nil, err
	case e.Type == "charge.refunded":
		return h.refund(ctx, m)
	case e.Type == "payment_intent.succeeded":
		return h.payment(m, m.ID, m.AmountReceived)
	case m.PaymentStatus != "paid":
		return nil, nil // it may be paid later, and another event tells
	}
	return h.payment(m, cmp.Or(m.PaymentIntent, m.ID), m.AmountTotal)
}

// payment is a top-up; nil for a payment that is for something else.
func (h *Webhook) payment(m money, reference string, amount int64) (*domain.BalanceEntry, error) {
	identity := m.Metadata[metadataIdentity]
	if identity == "" {
		return nil, nil
	}
	if err := h.knows(identity); err != nil {
		return nil, err
	}
	if amount < 0 {
		return nil, &refusal{http.StatusUnprocessableEntity, eventRefused, "the amount of the payment is below 0"}
	}
	return h.newEntry(m, identity, reference, amount)
}

// knows refuses identities that are not prepaid.
func (h *Webhook) knows(identity string) error {
	snap := h.opts.Config.Load()
	switch {
	case snap == nil:
		return &refusal{http.StatusServiceUnavailable, eventFailed, "the worker has no configuration yet; send it again"}
	case !snap.Prepaid[identity]:
		return &refusal{http.StatusUnprocessableEntity, eventRefused, fmt.Sprintf("no prepaid identity is called %q", identity)}
	}
	return nil
}

// refund takes back from whom the payment was for; nil where it was for something
// else. One that comes before its payment is to be sent again.
func (h *Webhook) refund(ctx context.Context, m money) (*domain.BalanceEntry, error) {
	paid, err := h.opts.Balances.BalanceEntry(ctx, SourceStripe, m.PaymentIntent)
	switch {
	case errors.Is(err, domain.ErrNotFound) && m.Metadata[metadataIdentity] == "":
		return nil, nil
	case errors.Is(err, domain.ErrNotFound):
		return nil, &refusal{http.StatusConflict, eventRefused, "the payment that is refunded is not known yet; send it again"}
	case err != nil:
		return nil, err
	}
	// The sum of all refunds so far tells one refund of a charge from the next.
	reference := fmt.Sprintf("%s:refunded:%d", m.ID, m.AmountRefunded)
	return h.newEntry(m, paid.Identity, reference, m.RefundedBefore-m.AmountRefunded)
}

// newEntry makes an entry of an amount in the currency's minor unit; nil for an
// amount of 0, which changes nothing.
func (h *Webhook) newEntry(m money, identity, reference string, amount int64) (*domain.BalanceEntry, error) {
	unit := microsPerMinor(h.opts.Currency)
	switch {
	case !strings.EqualFold(m.Currency, h.opts.Currency):
		return nil, &refusal{http.StatusUnprocessableEntity, eventRefused, fmt.Sprintf("the currency is %q; prices are in %q", m.Currency, h.opts.Currency)}
	case reference == "":
		return nil, &refusal{http.StatusBadRequest, eventRefused, "the event names no payment"}
	case max(amount, -amount) > domain.MaxEntryMicros/unit || amount == math.MinInt64:
		return nil, &refusal{http.StatusUnprocessableEntity, eventRefused, "the amount is too large"}
	case amount == 0:
		return nil, nil
	}
	return &domain.BalanceEntry{
		Identity: identity, AmountMicros: amount * unit, Source: SourceStripe, Reference: reference,
		Note: m.event.Type + " " + m.event.ID, At: h.opts.Now(),
	}, nil
}

// Currencies whose minor unit is not a hundredth, as the payment service counts.
var (
	withoutMinor = strings.Fields("bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf")
	ofThousands  = strings.Fields("bhd jod kwd omr tnd")
)

// microsPerMinor is how many millionths of a currency its minor unit is.
func microsPerMinor(currency string) int64 {
	switch currency = strings.ToLower(currency); {
	case slices.Contains(withoutMinor, currency):
		return 1_000_000
	case slices.Contains(ofThousands, currency):
		return 1_000
	}
	return 10_000
}
