package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85/webhook"

	"keyway/config"
	"keyway/domain"
)

// fakeBalances is the ledger's book of entries.
type fakeBalances struct {
	mu      sync.Mutex
	entries []domain.BalanceEntry
	err     error
}

func (f *fakeBalances) AddBalance(_ context.Context, e domain.BalanceEntry) (domain.BalanceEntry, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return domain.BalanceEntry{}, false, f.err
	}
	for _, have := range f.entries {
		if have.Source != e.Source || have.Reference != e.Reference {
			continue
		}
		if have.Identity != e.Identity || have.AmountMicros != e.AmountMicros {
			return domain.BalanceEntry{}, false, fmt.Errorf("add: %w", domain.ErrReferenceTaken)
		}
		return have, false, nil
	}
	e.Seq = int64(len(f.entries) + 1)
	f.entries = append(f.entries, e)
	return e, true, nil
}

func (f *fakeBalances) BalanceEntry(_ context.Context, source, reference string) (domain.BalanceEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.entries {
		if e.Source == source && e.Reference == reference {
			return e, nil
		}
	}
	return domain.BalanceEntry{}, domain.ErrNotFound
}

// desk is a webhook with the book that it writes.
type desk struct {
	*Webhook
	book    *fakeBalances
	secrets []string
}

var payday = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func newDesk(t *testing.T, change func(*WebhookOptions)) *desk {
	t.Helper()
	d := &desk{book: &fakeBalances{}, secrets: []string{"whsec_new", "whsec_old"}}
	holder := new(config.Holder)
	holder.Set(&config.Snapshot{Version: 1, Prepaid: map[string]bool{"acme": true}})
	o := WebhookOptions{
		Balances: d.book, Config: holder, Secrets: func() ([]string, error) { return d.secrets, nil },
		Currency: "usd", Registerer: prometheus.NewRegistry(), Now: func() time.Time { return payday },
	}
	if change != nil {
		change(&o)
	}
	var err error
	d.Webhook, err = NewWebhook(o)
	require.NoError(t, err)
	return d
}

// send signs body as the payment service does and returns the answer.
func (d *desk) send(t *testing.T, body, secret string, at time.Time) (status int, answer map[string]string) {
	t.Helper()
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret, Timestamp: at})
	return d.post(t, body, signed.Header)
}

func (d *desk) post(t *testing.T, body, signature string) (status int, answer map[string]string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, WebhookPath, strings.NewReader(body))
	if signature != "" {
		r.Header.Set("Stripe-Signature", signature)
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), "%s", w.Body)
	return w.Code, answer
}

func (d *desk) count(result string) float64 {
	return testutil.ToFloat64(d.events.WithLabelValues(result))
}

// eventOf is an event with an object, both as JSON.
func eventOf(kind, object string) string {
	return fmt.Sprintf(`{"id":"evt_%s","object":"event","type":%q,"api_version":"2019-01-01","data":{"object":%s}}`, kind, kind, object)
}

const (
	paidIntent   = `{"id":"pi_1","object":"payment_intent","amount":2500,"amount_received":2500,"currency":"usd","metadata":{"keyway_identity":"acme"}}`
	paidCheckout = `{"id":"cs_1","object":"checkout.session","amount_total":2500,"currency":"usd","payment_status":"paid","payment_intent":"pi_1","metadata":{"keyway_identity":"acme"}}`
)

func TestWebhookEvents(t *testing.T) {
	t.Parallel()
	replaced := func(object, old, replacement string) string {
		require.Contains(t, object, old)
		return strings.Replace(object, old, replacement, 1)
	}
	for _, tt := range []struct {
		name, kind, object string
		currency           string
		status             int
		result             string // or a part of the error
		micros             int64  // of the entry; 0 is none
		reference          string
	}{
		{name: "a payment", kind: "payment_intent.succeeded", object: paidIntent, status: 200, result: "added", micros: 25_000_000, reference: "pi_1"},
		{name: "a checkout", kind: "checkout.session.completed", object: paidCheckout, status: 200, result: "added", micros: 25_000_000, reference: "pi_1"},
		{name: "a checkout that is paid later", kind: "checkout.session.async_payment_succeeded", object: paidCheckout, status: 200, result: "added", micros: 25_000_000, reference: "pi_1"},
		{name: "a checkout that is not paid yet", kind: "checkout.session.completed", object: replaced(paidCheckout, `"paid"`, `"unpaid"`), status: 200, result: "ignored"},
		{name: "a checkout without an intent", kind: "checkout.session.completed", object: replaced(paidCheckout, `"pi_1"`, `null`), status: 200, result: "added", micros: 25_000_000, reference: "cs_1"},
		{name: "nothing to pay", kind: "checkout.session.completed", object: replaced(paidCheckout, `2500`, `0`), status: 200, result: "ignored"},
		{name: "another kind", kind: "invoice.paid", object: paidIntent, status: 200, result: "ignored"},
		{name: "for something else", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"keyway_identity":"acme"`, ``), status: 200, result: "ignored"},
		{name: "an unknown identity", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"acme"`, `"acne"`), status: 422, result: `no prepaid identity is called "acne"`},
		{name: "another currency", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"usd"`, `"eur"`), status: 422, result: `the currency is "eur"`},
		{name: "no payment", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"pi_1"`, `""`), status: 400, result: "names no payment"},
		{name: "too much", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"amount_received":2500`, `"amount_received":9223372036854775807`), status: 422, result: "too large"},
		{name: "the most", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"amount_received":2500`, `"amount_received":100000000000`), status: 200, result: "added", micros: domain.MaxEntryMicros, reference: "pi_1"},
		{name: "a cent more", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"amount_received":2500`, `"amount_received":100000000001`), status: 422, result: "too large"},
		{name: "a negative payment", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"amount_received":2500`, `"amount_received":-1`), status: 422, result: "below 0"},
		{name: "no hundredths", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"usd"`, `"jpy"`), currency: "JPY", status: 200, result: "added", micros: 2_500_000_000, reference: "pi_1"},
		{name: "thousandths", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"usd"`, `"kwd"`), currency: "kwd", status: 200, result: "added", micros: 2_500_000, reference: "pi_1"},
		{name: "another kind of another shape", kind: "thing.happened", object: `{"payment_intent":{},"currency":7,"metadata":[]}`, status: 200, result: "ignored"},
		{name: "a payment of another shape", kind: "payment_intent.succeeded", object: replaced(paidIntent, `"pi_1"`, `7`), status: 400, result: "not the JSON"},
		{name: "no JSON of an event", kind: "payment_intent.succeeded", object: `[]`, status: 400, result: "not the JSON"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, func(o *WebhookOptions) {
				if tt.currency != "" {
					o.Currency = tt.currency
				}
			})
			status, answer := d.send(t, eventOf(tt.kind, tt.object), "whsec_new", time.Now())
			require.Equal(t, tt.status, status, "%v", answer)
			require.Contains(t, answer["result"]+answer["error"], tt.result)
			if tt.micros == 0 {
				require.Empty(t, d.book.entries)
				return
			}
			require.Equal(t, []domain.BalanceEntry{{
				Seq: 1, Identity: "acme", AmountMicros: tt.micros, Source: SourceStripe, Reference: tt.reference,
				Note: tt.kind + " evt_" + tt.kind, At: payday,
			}}, d.book.entries)
		})
	}
}

// A payment is one entry, however often and by however many events it is told.
func TestWebhookIsIdempotent(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	for i, want := range []string{eventAdded, eventKnown, eventKnown} {
		status, answer := d.send(t, eventOf("payment_intent.succeeded", paidIntent), "whsec_new", time.Now())
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, want, answer["result"], i)
	}
	_, answer := d.send(t, eventOf("checkout.session.completed", paidCheckout), "whsec_new", time.Now())
	require.Equal(t, eventKnown, answer["result"], "the checkout of the same payment")
	require.Len(t, d.book.entries, 1)

	status, answer := d.send(t, eventOf("payment_intent.succeeded", strings.Replace(paidIntent, `"amount_received":2500`, `"amount_received":9900`, 1)), "whsec_new", time.Now())
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Contains(t, answer["error"], domain.ErrReferenceTaken.Error())
	assert.InDelta(t, 1, d.count(eventAdded), 0)
	assert.InDelta(t, 3, d.count(eventKnown), 0)
	assert.InDelta(t, 1, d.count(eventRefused), 0)
}

func TestWebhookRefunds(t *testing.T) {
	t.Parallel()
	refund := func(soFar, before int64, metadata string) string {
		return fmt.Sprintf(`{"id":"evt_r","object":"event","type":"charge.refunded","data":{
			"object":{"id":"ch_1","object":"charge","currency":"usd","payment_intent":"pi_1","amount":2500,"amount_refunded":%d,"metadata":{%s}},
			"previous_attributes":{"amount_refunded":%d}}}`, soFar, metadata, before)
	}
	d := newDesk(t, nil)
	status, answer := d.send(t, refund(1000, 0, ""), "whsec_new", time.Now())
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, eventIgnored, answer["result"], "of a payment for something else")
	status, _ = d.send(t, refund(1000, 0, `"keyway_identity":"acme"`), "whsec_new", time.Now())
	require.Equal(t, http.StatusConflict, status, "before its payment, it has to come again")
	require.Empty(t, d.book.entries)

	d.send(t, eventOf("payment_intent.succeeded", paidIntent), "whsec_new", time.Now())
	for _, step := range []struct {
		soFar, before int64
		want          string
	}{{1000, 0, eventAdded}, {1000, 0, eventKnown}, {2500, 1000, eventAdded}, {2500, 1000, eventKnown}} {
		status, answer := d.send(t, refund(step.soFar, step.before, ""), "whsec_new", time.Now())
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, step.want, answer["result"])
	}
	var sum int64
	for _, e := range d.book.entries {
		require.Equal(t, "acme", e.Identity)
		sum += e.AmountMicros
	}
	require.Len(t, d.book.entries, 3)
	require.Zero(t, sum)
}

func TestWebhookSignatures(t *testing.T) {
	t.Parallel()
	body := eventOf("payment_intent.succeeded", paidIntent)
	sign := func(secret string, at time.Time) string {
		return webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret, Timestamp: at}).Header
	}
	for _, tt := range []struct {
		name, body, signature string
		status                int
		want                  string
	}{
		{"one secret", body, sign("whsec_new", time.Now()), 200, eventAdded},
		{"the one before it", body, sign("whsec_old", time.Now()), 200, eventAdded},
		{"nearly too old", body, sign("whsec_new", time.Now().Add(-WebhookTolerance+20*time.Second)), 200, eventAdded},
		{"too old", body, sign("whsec_new", time.Now().Add(-WebhookTolerance-time.Second)), 400, webhook.ErrTooOld.Error()},
		{"another secret", body, sign("whsec_other", time.Now()), 400, webhook.ErrNoValidSignature.Error()},
		{"none", body, "", 400, webhook.ErrNotSigned.Error()},
		{"no signature at all", body, "nonsense", 400, webhook.ErrInvalidHeader.Error()},
		{"of another scheme", body, strings.Replace(sign("whsec_new", time.Now()), "v1=", "v0=", 1), 400, webhook.ErrNoValidSignature.Error()},
		{"of another body", strings.Replace(body, "2500", "9900", 1), sign("whsec_new", time.Now()), 400, webhook.ErrNoValidSignature.Error()},
		{"of another time", body, strings.Replace(sign("whsec_new", time.Now()), "t=", "t=1", 1), 400, webhook.ErrNoValidSignature.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, nil)
			status, answer := d.post(t, tt.body, tt.signature)
			require.Equal(t, tt.status, status)
			require.Equal(t, tt.want, answer["result"]+answer["error"])
			if status != http.StatusOK {
				require.Empty(t, d.book.entries)
				assert.InDelta(t, 1, d.count(eventUnsigned), 0)
			}
		})
	}
}

func TestWebhookAtItsEdges(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	body := eventOf("payment_intent.succeeded", paidIntent)
	full := body + strings.Repeat(" ", maxEventBytes-len(body))
	status, _ := d.send(t, full, "whsec_new", time.Now())
	require.Equal(t, http.StatusOK, status)
	status, answer := d.send(t, full+" ", "whsec_new", time.Now())
	require.Equal(t, http.StatusRequestEntityTooLarge, status)
	require.Contains(t, answer["error"], "1048576")

	d.book.err = errAway
	status, answer = d.send(t, body, "whsec_new", time.Now())
	require.Equal(t, http.StatusServiceUnavailable, status, "the payment service sends it again")
	require.NotContains(t, answer["error"], errAway.Error(), "what went wrong is for the log")
	assert.InDelta(t, 1, d.count(eventFailed), 0)

	early := newDesk(t, func(o *WebhookOptions) { o.Config = new(config.Holder) })
	status, _ = early.send(t, body, "whsec_new", time.Now())
	require.Equal(t, http.StatusServiceUnavailable, status, "no configuration yet")
	mute := newDesk(t, func(o *WebhookOptions) { o.Secrets = func() ([]string, error) { return nil, errAway } })
	status, _ = mute.send(t, body, "whsec_new", time.Now())
	require.Equal(t, http.StatusServiceUnavailable, status)
	bare := newDesk(t, func(o *WebhookOptions) { o.Secrets = func() ([]string, error) { return nil, nil } })
	status, _ = bare.send(t, body, "", time.Now())
	require.Equal(t, http.StatusBadRequest, status, "no secret signs nothing")
	require.Empty(t, bare.book.entries)

	_, err := NewWebhook(WebhookOptions{})
	require.ErrorContains(t, err, "missing")
}
