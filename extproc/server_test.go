package extproc

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
	"keyway/secret"
	"keyway/telemetry"
	"keyway/telemetry/telemetrytest"
	"keyway/wire"
)

// fakeStore settles each request once and remembers.
type fakeStore struct {
	mu       sync.Mutex
	err      error
	full     bool
	settled  map[string]domain.Settlement
	renewed  []domain.Lease
	gone     map[string]bool
	moves    []domain.SlotMove
	attempts int
	stored   []domain.StoredID
	// poison is a request whose settlement is refused for good.
	poison string
}

func (f *fakeStore) Remember(_ context.Context, made domain.StoredID, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.stored = append(f.stored, made)
	}
	return f.err
}

func (f *fakeStore) Settle(_ context.Context, s domain.Settlement) (domain.SettleResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempts++
	if f.err != nil {
		return 0, f.err
	}
	if s.Decision.RequestID == f.poison && f.poison != "" {
		return 0, domain.ErrRefused
	}
	if _, ok := f.settled[s.Decision.RequestID]; ok {
		return domain.SettleAlready, nil
	}
	f.settled[s.Decision.RequestID] = s
	return domain.SettleDone, nil
}

func (f *fakeStore) Renew(_ context.Context, leases []domain.Lease) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	open := make([]bool, len(leases))
	for i, l := range leases {
		f.renewed = append(f.renewed, l)
		open[i] = !f.gone[l.RequestID]
	}
	return open, nil
}

func (f *fakeStore) MoveSlot(_ context.Context, m domain.SlotMove) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moves = append(f.moves, m)
	return !f.full, f.err
}

func (f *fakeStore) get(t *testing.T, id string) domain.Settlement {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.settled[id]
	require.True(t, ok, "%s is not settled", id)
	return s
}

func (f *fakeStore) has(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.settled[id]
	return ok
}

func (f *fakeStore) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

type fakeSecrets struct{ err error }

func (f *fakeSecrets) Resolve(ref string) (secret.Secret, error) {
	return secret.New("sk-of-" + ref), f.err
}

var start = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// newOptions are those of a server that is not listening yet.
func newOptions(t *testing.T) (Options, *fakeStore) {
	t.Helper()
	store := &fakeStore{settled: map[string]domain.Settlement{}, gone: map[string]bool{}}
	holder := &config.Holder{}
	openai := domain.Provider{Authority: "api.example.com", BasePath: "/compat/v1", AnthropicVersion: "2023-06-01"}
	holder.Set(&config.Snapshot{Lease: domain.DefaultLease, Channels: map[string]domain.Channel{
		"a": {Name: "a", Provider: openai, SecretRef: "env:A", Organization: "org-a"},
		"b": {Name: "b", Provider: openai, SecretRef: "env:B"},
	}})
	return Options{
		Config: holder, Store: store, StoredIDs: store, Secrets: &fakeSecrets{}, Health: telemetry.NewHealth(telemetry.HealthOptions{}),
		Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
		JournalFile: filepath.Join(t.TempDir(), "journal"), Now: func() time.Time { return start },
	}, store
}

func newServer(t *testing.T) (*Server, *fakeStore) {
	t.Helper()
	o, store := newOptions(t)
	s, err := New(o)
	require.NoError(t, err)
	s.journal, err = openJournal(s.journalFile, s.journalSize)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.journal.Close())
		telemetrytest.Lint(t, o.Registerer.(*prometheus.Registry))
	})
	return s, store
}

func decisionOf(api domain.API) domain.Decision {
	return domain.Decision{
		RequestID: "req-1", KeyID: "key_1", Identity: "acme", API: api, Path: "/chat/completions", Model: "m", Stream: true,
		PromptTokens: 30, OutputCap: 100, BodyLen: 321, Lease: 30 * time.Second, AdmittedAt: start.Add(-time.Second),
		Price: domain.Price{Version: "v1", Input: 1_000_000, Output: 2_000_000},
		Candidates: []domain.Candidate{
			{Channel: "a", UpstreamModel: "m-a", Slots: 2},
			{Channel: "b", UpstreamModel: "m-b", Patches: []domain.Patch{{Offset: 1, Delete: 2, Insert: "x"}}},
		},
	}
}

func headersOf(list []wire.Header) map[string]string {
	out := map[string]string{}
	for _, h := range list {
		out[h.Name] = h.Value
	}
	return out
}

func TestPlanSetsExactlyOneCredential(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t)
	plan, err := s.plan(t.Context(), attempt{decision: decisionOf(domain.APIChat), number: 1, channel: "a", headers: map[string][]string{
		":path": {"/v1/chat/completions"}, "content-type": {"application/json"}, "x-api-key": {"kw_client"}, "cookie": {"s=1"},
		"xi-api-key": {"kw_client"}, "x-forwarded-for": {"10.0.0.1"}, "openai-organization": {"org-of-client"}, "openai-beta": {"x"},
		"x-stainless-lang": {"go"}, "authorization": {"Bearer kw_client"},
	}})
	require.NoError(t, err)
	set := headersOf(plan.set)
	require.Equal(t, "Bearer sk-of-env:A", set["authorization"])
	require.Equal(t, "/compat/v1/chat/completions", set[":path"])
	require.Equal(t, "api.example.com", set[":authority"])
	require.Equal(t, "identity", set["accept-encoding"])
	require.Equal(t, "321", set["content-length"])
	require.Equal(t, "org-a", set["openai-organization"])
	require.Subset(t, plan.remove, []string{"x-api-key", "xi-api-key", "cookie", "x-forwarded-for", "api-key", "x-goog-api-key"})
	require.NotContains(t, plan.remove, "authorization", "it is overwritten")
	for _, kept := range []string{"content-type", "openai-beta", "x-stainless-lang", ":path"} {
		require.NotContains(t, plan.remove, kept)
	}
}

func TestPlanForAnthropic(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t)
	d := decisionOf(domain.APIMessages)
	plan, err := s.plan(t.Context(), attempt{decision: d, number: 1, channel: "a", headers: map[string][]string{"anthropic-beta": {"one", "two"}}})
	require.NoError(t, err)
	set := headersOf(plan.set)
	require.Equal(t, "sk-of-env:A", set["x-api-key"])
	require.NotContains(t, set, "authorization")
	require.Contains(t, plan.remove, "authorization")
	require.Equal(t, "2023-06-01", set["anthropic-version"])
	require.Equal(t, "one,two", set["anthropic-beta"])
	plan, err = s.plan(t.Context(), attempt{decision: d, number: 1, channel: "a", headers: map[string][]string{"anthropic-version": {"2026-10-21"}}})
	require.NoError(t, err)
	require.NotContains(t, headersOf(plan.set), "anthropic-version", "the client's own passes")
	require.NotContains(t, plan.remove, "anthropic-version")
}

func TestSecondAttemptMovesTheSlot(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	d := decisionOf(domain.APIChat)
	plan, err := s.plan(t.Context(), attempt{decision: d, number: 2, channel: "b", headers: map[string][]string{"openai-organization": {"org-a"}}})
	require.NoError(t, err)
	require.Len(t, store.moves, 1)
	require.Equal(t, "a", store.moves[0].From.Channel)
	require.Equal(t, "b", store.moves[0].To.Channel)
	require.Contains(t, plan.remove, "openai-organization", "what the first attempt set must not go to the second")
	require.Len(t, plan.patches, 1)
	store.full = true
	_, err = s.plan(t.Context(), attempt{decision: d, number: 2, channel: "b"})
	require.ErrorIs(t, err, errNoSlot)
}

func TestPlanRefusesWhatTheDecisionDoesNotName(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t)
	for name, a := range map[string]attempt{
		"another channel":  {decision: decisionOf(domain.APIChat), number: 1, channel: "b"},
		"a third attempt":  {decision: decisionOf(domain.APIChat), number: 3, channel: "a"},
		"attempt zero":     {decision: decisionOf(domain.APIChat), number: 0, channel: "a"},
		"another provider": {decision: decisionOf(domain.APIChat), number: 1, channel: "a", baseURL: "https://elsewhere.example/v1"},
		"a missing secret": {decision: decisionOf(domain.APIChat), number: 1, channel: "a"},
	} {
		if name == "a missing secret" {
			s.secrets = &fakeSecrets{err: errors.New("not set")}
		}
		_, err := s.plan(t.Context(), a)
		require.Error(t, err, name)
	}
}

func sseAnswer() answer {
	return answer{status: 200, fromUpstream: true, attempts: 1, headers: map[string][]string{
		"content-type": {"text/event-stream; charset=utf-8"}, "x-request-id": {"up-1"}, "set-cookie": {"a=b"},
	}}
}

const (
	deltaFrame = `data: {"choices":[{"index":0,"delta":{"content":"hello there my friend"}}]}` + "\n\n"
	stopFrame  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usageFrame = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":9,"total_tokens":49}}` + "\n\n"
	doneFrame  = "data: [DONE]\n\n"
)

func TestWatchSettlesAStreamOnce(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	d := decisionOf(domain.APIChat)
	d.StripUsage = true
	w, plan := s.begin(d, sseAnswer())
	require.True(t, plan.body)
	require.Contains(t, plan.remove, "set-cookie")
	require.Equal(t, "up-1", headersOf(plan.set)[headerUpstreamRequestID])
	var got strings.Builder
	for _, frame := range []string{deltaFrame, stopFrame, usageFrame, doneFrame} {
		got.Write(w.chunk([]byte(frame)))
	}
	got.Write(w.finish())
	require.Equal(t, deltaFrame+stopFrame+doneFrame, got.String())
	w.end()
	w.end()
	r := store.get(t, "req-1").Record
	require.Equal(t, 1, store.attempts)
	require.Equal(t, domain.OutcomeSuccess, r.Outcome)
	require.Equal(t, domain.SourceUpstream, r.Source)
	require.Equal(t, domain.Usage{InputUncached: 40, Output: 9}, r.Usage)
	require.Equal(t, int64(40+18), r.CostMicros)
	require.Equal(t, "up-1", r.UpstreamRequestID)
	require.Equal(t, "a", store.get(t, "req-1").Channel)
	require.Zero(t, s.leases.len())
}

func TestWatchTellsEndsApart(t *testing.T) {
	t.Parallel()
	const errorFrame = `data: {"error":{"message":"` + "overloaded" + `","type":"server_error"}}` + "\n\n"
	for _, tc := range []struct {
		name     string
		frames   []string
		clean    bool
		byClient bool
		want     domain.Outcome
		source   domain.Source
		output   bool
	}{
		{"client left", []string{deltaFrame}, false, true, domain.OutcomeCancelled, domain.SourceEstimate, true},
		{"upstream cut", []string{deltaFrame}, false, false, domain.OutcomeUpstreamCut, domain.SourceEstimate, true},
		{"client left after the end marker", []string{deltaFrame, stopFrame, usageFrame, doneFrame}, false, true, domain.OutcomeSuccess, domain.SourceUpstream, true},
		{"clean end without a terminal", []string{deltaFrame}, true, false, domain.OutcomeUpstreamCut, domain.SourceEstimate, true},
		{"error in the stream", []string{deltaFrame, errorFrame}, true, false, domain.OutcomeFailed, domain.SourceEstimate, false},
		{"error in the stream, cut", []string{errorFrame}, false, false, domain.OutcomeFailed, domain.SourceEstimate, false},
		{"finished without usage", []string{deltaFrame, stopFrame, doneFrame}, true, false, domain.OutcomeSuccess, domain.SourceEstimate, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			w, _ := s.begin(decisionOf(domain.APIChat), sseAnswer())
			for _, f := range tc.frames {
				w.chunk([]byte(f))
			}
			s.ends.expect("req-1")
			s.ends.tell("req-1", ending{byClient: tc.byClient})
			if tc.clean {
				w.finish()
			}
			w.end()
			r := store.get(t, "req-1").Record
			require.Equal(t, tc.want, r.Outcome)
			require.Equal(t, tc.source, r.Source)
			require.Equal(t, tc.output, r.Usage.Output > 0, "%+v", r.Usage)
			if tc.want == domain.OutcomeFailed {
				require.Zero(t, r.CostMicros)
			}
		})
	}
}

func TestErrorsAreSettledAtTheHead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		answer  answer
		replace domain.Code
	}{
		{"the provider's own words pass", answer{
			status: 429, fromUpstream: true, attempts: 2, notes: "a=500;b=429;",
			headers: map[string][]string{"content-type": {"application/json"}, "retry-after": {"3600"}},
		}, ""},
		{"a refusal of our credential does not", answer{
			status: 401, fromUpstream: true, attempts: 2, notes: "a=500;b=401;",
			headers: map[string][]string{"content-type": {"application/json"}},
		}, domain.CodeUpstream},
		{"a page of HTML does not", answer{
			status: 502, fromUpstream: true, attempts: 2, notes: "a=500;b=502;",
			headers: map[string][]string{"content-type": {"text/html"}},
		}, domain.CodeUpstream},
		{"Envoy's own reply is in the dialect already", answer{
			status: 504, attempts: 2, notes: "a=500;",
			headers: map[string][]string{"content-type": {"application/json"}},
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			_, plan := s.begin(decisionOf(domain.APIChat), tc.answer)
			require.False(t, plan.body)
			if tc.replace == "" {
				require.Nil(t, plan.replace)
			} else {
				require.Equal(t, tc.replace, plan.replace.Code)
			}
			if tc.answer.status == 429 {
				require.Equal(t, "60", headersOf(plan.set)["retry-after"], "some SDKs wait as long as they are told")
			}
			r := store.get(t, "req-1").Record
			require.Equal(t, domain.OutcomeFailed, r.Outcome)
			if tc.replace == "" {
				require.Equal(t, tc.answer.status, r.Status)
			} else {
				require.Equal(t, wire.Status(domain.DialectOpenAI, tc.replace), r.Status, "what the client got")
			}
			if tc.answer.fromUpstream {
				require.Equal(t, tc.answer.status, r.Attempts[1].Status, "what the provider answered")
			}
			require.Zero(t, r.CostMicros)
			require.Equal(t, "a", r.Attempts[0].Channel)
			require.Equal(t, 500, r.Attempts[0].Status)
			require.Equal(t, "b", r.Channel)
		})
	}
}

func TestCompressedAnswerIsAnEstimate(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	a := sseAnswer()
	a.headers["content-encoding"] = []string{"gzip"}
	w, _ := s.begin(decisionOf(domain.APIChat), a)
	body := []byte(strings.Repeat("z", 200))
	require.Equal(t, body, w.chunk(body))
	require.Empty(t, w.finish())
	w.end()
	r := store.get(t, "req-1").Record
	require.Equal(t, domain.OutcomeSuccess, r.Outcome)
	require.Equal(t, domain.SourceEstimate, r.Source)
	require.Equal(t, domain.Usage{InputUncached: 30, Output: 50}, r.Usage)
}

func TestAccessLogSettlesWhatNobodyWatched(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		entry logEntry
		want  domain.Outcome
		input int64
	}{
		{"client left before the headers", logEntry{attempts: 1, reached: true, byClient: true}, domain.OutcomeCancelled, 30},
		{"client left before any provider", logEntry{byClient: true}, domain.OutcomeCancelled, 0},
		{"no answer at all", logEntry{attempts: 1, reached: true}, domain.OutcomeFailed, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			tc.entry.decision = decisionOf(domain.APIChat)
			s.ended(tc.entry)
			r := store.get(t, "req-1").Record
			require.Equal(t, tc.want, r.Outcome)
			require.Equal(t, tc.input, r.Usage.InputUncached)
			require.Equal(t, domain.SourceEstimate, r.Source)
			s.ended(tc.entry)
			require.Equal(t, 1, store.attempts, "an entry of a settled request costs the store nothing")
		})
	}
}

func TestAccessLogLeavesCleanEndsToTheirWatch(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	s.ended(logEntry{decision: decisionOf(domain.APIChat), status: 200, attempts: 1, reached: true, clean: true})
	require.Zero(t, store.attempts)
}

func TestLeasesAreRenewedUntilGone(t *testing.T) {
	t.Parallel()
	store := &fakeStore{gone: map[string]bool{"gone": true}}
	l := newLeases(store, slog.New(slog.DiscardHandler))
	for _, id := range []string{"kept", "gone"} {
		l.hold(domain.Lease{RequestID: id, TTL: 30 * time.Second}, time.Time{})
	}
	l.hold(domain.Lease{RequestID: "unwatched", TTL: 30 * time.Second}, time.Now().Add(time.Minute))
	require.Empty(t, l.takeDue(time.Now()), "a short request is never renewed")
	batch := l.takeDue(time.Now().Add(firstRenewal))
	require.Len(t, batch, 3)
	require.True(t, l.renew(t.Context(), batch))
	require.Equal(t, 2, l.len(), "what is no longer open is dropped")
	require.Empty(t, l.takeDue(time.Now().Add(firstRenewal)), "not due again so soon")
	require.Len(t, l.takeDue(time.Now().Add(2*time.Minute)), 1, "nobody came to watch the other")
	store.fail(domain.ErrStoreDown)
	require.False(t, l.renew(t.Context(), batch[:1]))
	l.drop("kept")
	require.Zero(t, l.len())
}
