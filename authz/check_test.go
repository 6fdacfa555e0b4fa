package authz

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
	"keyway/telemetry"
	"keyway/telemetry/telemetrytest"
)

// fakeKeys is a store of keys that counts look-ups.
type fakeKeys struct {
	mu    sync.Mutex
	byID  map[string]domain.VirtualKey
	err   error
	calls int
}

func (f *fakeKeys) Key(_ context.Context, hash string) (domain.VirtualKey, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.err != nil {
		return domain.VirtualKey{}, f.err
	}
	k, ok := f.byID[hash]
	if !ok {
		return domain.VirtualKey{}, domain.ErrNotFound
	}
	return k, nil
}

// fakeReservations answers every Admit alike and keeps what it was asked.
type fakeReservations struct {
	mu        sync.Mutex
	admission domain.Admission
	// full are channels without a free slot.
	full     []string
	err      error
	admitted []domain.Decision
	late     []domain.Decision
	// poison is a request whose late admission is refused for good.
	poison   string
	refunded chan domain.Decision
}

func (f *fakeReservations) Admit(_ context.Context, d domain.Decision) (domain.Admission, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.admitted = append(f.admitted, d)
	a := f.admission
	a.Remaining = make([]int64, len(d.Holds))
	a.Reset = make([]time.Duration, len(d.Holds))
	if len(f.full) > 0 {
		a.Skipped = slices.IndexFunc(d.Candidates, func(c domain.Candidate) bool {
			return !slices.Contains(f.full, c.Channel) && (!c.Trial || c.Channel == d.Candidates[0].Channel)
		})
		a.SlotRefused = a.Skipped < 0
	}
	return a, f.err
}

func (f *fakeReservations) AdmitLate(_ context.Context, d domain.Decision) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.RequestID == f.poison && f.poison != "" {
		return domain.ErrRefused
	}
	if f.err == nil {
		f.late = append(f.late, d)
	}
	return f.err
}

func (f *fakeReservations) Refund(_ context.Context, d domain.Decision) error {
	f.refunded <- d
	return nil
}

// fakeStoredIDs knows ids of acme.
type fakeStoredIDs struct {
	byID map[string]string // channel
	err  error
}

func (f *fakeStoredIDs) Recall(_ context.Context, identity, id string) (domain.StoredID, error) {
	channel, ok := f.byID[id]
	switch {
	case f.err != nil:
		return domain.StoredID{}, f.err
	case !ok || identity != "acme":
		return domain.StoredID{}, domain.ErrNotFound
	}
	return domain.StoredID{Identity: identity, ID: id, Channel: channel}, nil
}

type fixture struct {
	stored       *fakeStoredIDs
	server       *Server
	keys         *fakeKeys
	reservations *fakeReservations
	secret       string
}

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func newFixture(t testing.TB) *fixture {
	t.Helper()
	secret, err := domain.NewKeySecret()
	require.NoError(t, err)
	f := &fixture{
		secret:       secret,
		keys:         &fakeKeys{byID: map[string]domain.VirtualKey{}},
		stored:       &fakeStoredIDs{byID: map[string]string{"resp_1": "a", "conv_1": "a"}},
		reservations: &fakeReservations{refunded: make(chan domain.Decision, 8)},
	}
	f.setKey(domain.VirtualKey{ID: "key_1", Identity: "acme", Policy: "p", State: domain.KeyActive})
	provider := domain.Provider{Name: "p", Dialects: []domain.Dialect{domain.DialectOpenAI}, FirstByteLimit: 7 * time.Second}
	holder := &config.Holder{}
	holder.Set(&config.Snapshot{
		MaxRequestBytes: maxBody, Lease: 30 * time.Second,
		Models: map[string]domain.Model{
			"m":      {Name: "m", ContextWindow: 1000, MaxOutput: 400, Price: domain.Price{Version: "v", Input: 1_000_000, Output: 2_000_000}, Channels: []string{"b", "a"}},
			"lonely": {Name: "lonely", MaxOutput: 1, Channels: []string{"anthropic"}},
		},
		Channels: map[string]domain.Channel{
			"a":         {Name: "a", Provider: provider, Priority: 0, Weight: 1, Slots: 3, Models: map[string]string{"m": "m-upstream"}, InjectUsage: true},
			"b":         {Name: "b", Provider: provider, Priority: 1, Weight: 1, Models: map[string]string{"m": "m"}},
			"anthropic": {Name: "anthropic", Provider: domain.Provider{Dialects: []domain.Dialect{domain.DialectAnthropic}}, Models: map[string]string{"lonely": "lonely"}},
		},
		Policies:   map[string]domain.Policy{"p": {RPM: 10, TPM: 5000}, "shared": {BudgetDayMicros: 1_000_000}},
		Identities: map[string]string{"acme": "shared"},
	})
	registry := prometheus.NewRegistry()
	f.server, err = New(Options{
		Config: holder, Keys: f.keys, Reservations: f.reservations, StoredIDs: f.stored,
		Health: telemetry.NewHealth(telemetry.HealthOptions{}), Registerer: registry,
		Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }, Random: func() float64 { return 0.5 },
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		f.server.keys.close()
		telemetrytest.Lint(t, registry)
	})
	return f
}

func (f *fixture) setKey(k domain.VirtualKey) {
	k.Hash = domain.HashKey(f.secret)
	f.keys.byID[k.Hash] = k
}

func (f *fixture) request(body string) Request {
	return Request{
		ID: "req-1", Method: "POST", Target: "/v1/chat/completions", Body: []byte(body),
		Headers: map[string]string{"authorization": "Bearer " + f.secret},
	}
}

// maxBody is the fixture's limit of a request body.
const maxBody = 4096

const hello = `{"model":"m","messages":[{"role":"user","content":"hello there"}],"stream":true,"max_tokens":100}`

func TestCheckDecides(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	got, err := f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	d := got.Decision
	require.Equal(t, "req-1", d.RequestID)
	require.Equal(t, "/chat/completions", d.Path)
	require.Equal(t, []string{"a", "b"}, []string{d.Candidates[0].Channel, d.Candidates[1].Channel}, "by priority")
	require.Equal(t, "m-upstream", d.Candidates[0].UpstreamModel)
	require.Len(t, d.Candidates[0].Patches, 2, "model name and include_usage")
	require.Empty(t, d.Candidates[1].Patches)
	require.True(t, d.StripUsage)
	require.Equal(t, int64(100), d.OutputCap)
	require.Equal(t, int64(len(hello)), d.BodyLen)
	require.Equal(t, 7*time.Second, d.FirstByteLimit)
	require.Equal(t, f.reservations.admitted[0].Holds, d.Holds)
	require.Equal(t, []domain.Hold{
		{Kind: domain.LimitRPM, Scope: domain.ScopeKey, ID: "key_1", Limit: 10, Amount: 1},
		{Kind: domain.LimitTPM, Scope: domain.ScopeKey, ID: "key_1", Limit: 5000, Amount: d.PromptTokens + 100},
		{Kind: domain.LimitBudgetDay, Scope: domain.ScopeIdentity, ID: "acme", Window: "2026-12-01", Limit: 1_000_000, Amount: d.PromptTokens + 200},
	}, d.Holds)
}

func TestOutputCapWithoutOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for body, want := range map[string]int64{
		`{"model":"m","messages":[]}`:                                                                400,
		`{"model":"m","messages":[],"n":2}`:                                                          800,
		`{"model":"m","messages":[],"max_tokens":1,"max_completion_tokens":300,"n":2}`:               600,
		`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("a b ", 450) + `"}]}`: -1,
	} {
		got, err := f.server.check(t.Context(), f.request(body))
		require.NoError(t, err)
		if want < 0 {
			want = 1000 - got.Decision.PromptTokens
			require.Less(t, want, int64(400), "the window leaves less than the model's maximum")
		}
		require.Equal(t, want, got.Decision.OutputCap, "%.60s", body)
	}
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*fixture, *Request)
		want   domain.Code
	}{
		{"no key", func(_ *fixture, r *Request) { r.Headers = nil }, domain.CodeInvalidKey},
		{"malformed key", func(_ *fixture, r *Request) { r.Headers["authorization"] = "Bearer kw_short" }, domain.CodeInvalidKey},
		{"basic auth", func(f *fixture, r *Request) { r.Headers["authorization"] = "Basic " + f.secret }, domain.CodeInvalidKey},
		{"unknown key", func(f *fixture, r *Request) { clear(f.keys.byID) }, domain.CodeInvalidKey},
		{"two keys", func(_ *fixture, r *Request) {
			other, _ := domain.NewKeySecret()
			r.Headers["x-api-key"] = other
		}, domain.CodeInvalidKey},
		{"disabled", func(f *fixture, _ *Request) { f.setKey(domain.VirtualKey{State: domain.KeyDisabled}) }, domain.CodeKeyDisabled},
		{"expired now", func(f *fixture, _ *Request) {
			f.setKey(domain.VirtualKey{State: domain.KeyActive, ExpiresAt: now})
		}, domain.CodeKeyExpired},
		{"store away for keys", func(f *fixture, _ *Request) { f.keys.err = domain.ErrStoreDown }, domain.CodeUnavailable},
		{"unknown path", func(_ *fixture, r *Request) { r.Target = "/v1/nothing" }, domain.CodeNotFound},
		{"wrong method", func(_ *fixture, r *Request) { r.Method = "GET" }, domain.CodeMethod},
		{"compressed", func(_ *fixture, r *Request) { r.Headers["content-encoding"] = "gzip" }, domain.CodeUnsupportedBody},
		{"two versions", func(_ *fixture, r *Request) { r.Headers["anthropic-version"] = "a,b" }, domain.CodeInvalidRequest},
		{"a byte too many", func(_ *fixture, r *Request) {
			// Envoy may have cut it: whatever stands in it is not read.
			r.Body = append(r.Body, bytes.Repeat([]byte(" "), maxBody+1-len(r.Body))...)
		}, domain.CodeTooLarge},
		{"bad JSON", func(_ *fixture, r *Request) { r.Body = []byte(`{`) }, domain.CodeInvalidRequest},
		{"in the background", func(_ *fixture, r *Request) {
			r.Target, r.Body = "/v1/responses", []byte(`{"model":"m","input":"x","background":true}`)
		}, domain.CodeInvalidRequest},
		{"unknown model", func(_ *fixture, r *Request) { r.Body = []byte(`{"model":"x","messages":[]}`) }, domain.CodeModelNotFound},
		{"the key as model", func(f *fixture, r *Request) { r.Body = []byte(`{"model":"` + f.secret + `","messages":[]}`) }, domain.CodeModelNotFound},
		{"model of another dialect", func(_ *fixture, r *Request) { r.Body = []byte(`{"model":"lonely","messages":[]}`) }, domain.CodeModelNotFound},
		{"model not allowed", func(f *fixture, _ *Request) {
			f.setKey(domain.VirtualKey{State: domain.KeyActive, Models: []string{"other"}})
		}, domain.CodeModelNotFound},
		{"no slot anywhere", func(f *fixture, _ *Request) { f.reservations.admission.SlotRefused = true }, domain.CodeRateLimited},
		{"limit", func(f *fixture, _ *Request) {
			f.reservations.admission.Refusal = &domain.Refusal{Kind: domain.LimitRPM, Scope: domain.ScopeKey, Limit: 10, RetryAfter: time.Hour}
		}, domain.CodeRateLimited},
		{"budget", func(f *fixture, _ *Request) {
			f.reservations.admission.Refusal = &domain.Refusal{Kind: domain.LimitBudgetDay, Scope: domain.ScopeIdentity}
		}, domain.CodeBudget},
		{"balance", func(f *fixture, _ *Request) {
			f.reservations.admission.Refusal = &domain.Refusal{Kind: domain.LimitBalance, Scope: domain.ScopeIdentity}
		}, domain.CodeBalance},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			r := f.request(hello)
			tc.change(f, &r)
			_, err := f.server.check(t.Context(), r)
			var refused *domain.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, tc.want, refused.Code, refused.Message)
			require.LessOrEqual(t, refused.RetryAfter, maxRetryAfter)
			require.NotContains(t, refused.Message, f.secret)
		})
	}
}

// A placeholder in one header must not hide the key in another.
func TestSecretIsFoundBesideAPlaceholder(t *testing.T) {
	t.Parallel()
	secret, err := domain.NewKeySecret()
	require.NoError(t, err)
	got, err := secretOf(map[string]string{"authorization": "Bearer dummy", "x-api-key": secret})
	require.NoError(t, err)
	require.Equal(t, secret, got)
}

func TestATokenRequestThatNeverFitsIsNotRetried(t *testing.T) {
	t.Parallel()
	e := refused(domain.Refusal{Kind: domain.LimitTPM, Limit: 100, Size: 100}, &domain.Decision{PromptTokens: 90, OutputCap: 11})
	require.True(t, e.NoRetry)
	require.Zero(t, e.RetryAfter)
	fits := refused(domain.Refusal{Kind: domain.LimitTPM, Limit: 101, Size: 101, RetryAfter: 2 * time.Second}, &domain.Decision{PromptTokens: 90, OutputCap: 11})
	require.False(t, fits.NoRetry)
	require.Equal(t, 2*time.Second, fits.RetryAfter)
}

// When nobody knows whether a hold was taken, it is given back.
func TestUncertainReservationIsRefunded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reservations.err = domain.ErrStoreDown
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.server.refunds.run(ctx) })
	_, err := f.server.check(t.Context(), f.request(hello))
	var refused *domain.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, domain.CodeUnavailable, refused.Code)
	require.Positive(t, refused.RetryAfter)
	require.Equal(t, "req-1", (<-f.reservations.refunded).RequestID)
	cancel()
	running.Wait()
}

func TestKeyCache(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 5 {
		_, err := f.server.check(t.Context(), f.request(hello))
		require.NoError(t, err)
	}
	require.Equal(t, 1, f.keys.calls, "one look-up serves the next requests")
	f.setKey(domain.VirtualKey{State: domain.KeyDisabled})
	f.server.keys.drop(domain.HashKey(f.secret))
	_, err := f.server.check(t.Context(), f.request(hello))
	require.Error(t, err, "a dropped entry is read again")
	f.server.keys.drop("")
	f.keys.err = errors.New("broken")
	_, err = f.server.check(t.Context(), f.request(hello))
	require.Error(t, err)
	f.keys.err = nil
	f.setKey(domain.VirtualKey{State: domain.KeyActive, Policy: "p", Identity: "acme"})
	_, err = f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err, "an error is not cached")
}

func TestBodyBudget(t *testing.T) {
	t.Parallel()
	b := &bodyBudget{limit: 100}
	require.True(t, b.take(150), "one body always fits")
	require.False(t, b.take(1))
	b.give(150)
	require.True(t, b.take(60))
	require.True(t, b.take(40), "exactly at the limit")
	require.False(t, b.take(1))
}
