package extproc

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

const created = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_7\",\"usage\":null}}\n\n"

func streamed(attempts int) answer {
	return answer{
		status: http.StatusOK, fromUpstream: true, attempts: attempts,
		headers: map[string][]string{"content-type": {"text/event-stream"}},
	}
}

// The client may use a response's id as soon as it has read it, so it is known
// before its first byte goes on.
func TestStoredIDsAreKnownBeforeTheClientHasThem(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		api  domain.API
		head string
		body string
		want []domain.StoredID
	}{
		{"a stream", domain.APIResponses, "text/event-stream", created, []domain.StoredID{{Identity: "acme", ID: "resp_7", Channel: "b", Model: "m"}}},
		{"a document", domain.APIResponses, "application/json", `{"id":"resp_8","usage":{"input_tokens":1,"output_tokens":1}}`, []domain.StoredID{{Identity: "acme", ID: "resp_8", Channel: "b", Model: "m"}}},
		{"another dialect's", domain.APIChat, "application/json", `{"id":"chatcmpl-1"}`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			a := streamed(2)
			a.headers["content-type"] = []string{tc.head}
			w, _ := s.begin(decisionOf(tc.api), a)
			w.chunk([]byte(tc.body))
			w.chunk([]byte(tc.body))
			require.Equal(t, tc.want, store.stored, "once, and of the channel that answered")
			w.finish()
			w.end()
			require.Zero(t, store.get(t, "req-1").Stored)
		})
	}
}

// What the store did not take waits with the settlement, across a restart too.
func TestStoredIDsWaitForTheStore(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	store.fail(domain.ErrStoreDown)
	w, _ := s.begin(decisionOf(domain.APIResponses), streamed(1))
	began := time.Now()
	w.chunk([]byte(created))
	require.Less(t, time.Since(began), time.Second)
	w.finish()
	w.end()
	require.Empty(t, store.stored)

	again, err := openJournal(copyOf(t, s.journalFile), s.journalSize)
	require.NoError(t, err)
	waiting, ok := again.Oldest()
	require.True(t, ok)
	require.NoError(t, again.Close())
	want := domain.StoredID{Identity: "acme", ID: "resp_7", Channel: "a", Model: "m"}
	require.Equal(t, want, waiting.Stored)

	store.fail(nil)
	s.newReplay().Drain(t.Context())
	require.Equal(t, []domain.StoredID{want}, store.stored)
}

// A fallback model is named to the client and settled at its own price.
func TestTheModelThatServesIsPricedAndNamed(t *testing.T) {
	t.Parallel()
	price := domain.Price{Version: "n1", Input: 5_000_000, Output: 7_000_000, Tiers: []domain.TierFactor{{Tier: "flex", FactorMicros: 500_000}}}
	for _, tc := range []struct {
		attempts int
		asked    string
		header   string
		cost     int64
		version  string
	}{
		{1, "", "", 10*1 + 4*2, "v1"},
		{1, "latest", "m", 10*1 + 4*2, "v1"},
		{2, "", "n", 10*5 + 4*7, "n1"},
		{2, "n", "", 10*5 + 4*7, "n1"},
	} {
		s, store := newServer(t)
		d := decisionOf(domain.APIResponses)
		d.Asked = tc.asked
		d.Candidates[1].Model, d.Candidates[1].Price = "n", &price
		w, plan := s.begin(d, streamed(tc.attempts))
		require.Equal(t, tc.header, headersOf(plan.set)["x-keyway-model"])
		w.chunk([]byte("event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"usage\":{\"input_tokens\":10,\"output_tokens\":4}}}\n\n"))
		w.finish()
		w.end()
		r := store.get(t, "req-1").Record
		require.Equal(t, tc.cost, r.CostMicros)
		require.Equal(t, tc.version, r.PriceVersion)
		require.Equal(t, d.AskedModel(), r.Model)
	}
}

func TestNotesGoToTheirAttempts(t *testing.T) {
	t.Parallel()
	d := domain.Decision{Candidates: []domain.Candidate{{Channel: "a"}, {Channel: "b"}, {Channel: "a"}, {Channel: "c"}}}
	require.Equal(t, []domain.Attempt{
		{Channel: "a", Status: 429, Reason: domain.ReasonRate, At: time.UnixMilli(1_764_590_400_123)},
		{Channel: "b", Reason: domain.ReasonUnanswered},
		{Channel: "a", Status: 500, Reason: domain.ReasonServer},
	}, attemptsOf(d, 3, "a=429@1764590400123;a=500;"), "a channel that serves two models has two attempts")
	require.Equal(t, []domain.Attempt{{Channel: "a", Reason: domain.ReasonUnanswered}, {Channel: "b", Status: 400}}, attemptsOf(d, 2, "b=400@x;"),
		"a fault of the request is no reason")
	require.Equal(t, []domain.Attempt{{Channel: "a"}}, attemptsOf(d, 1, ""), "what became of the last one its end tells")
}

// The last attempt's end is what the watch saw of it.
func TestTheLastAttemptHasItsReason(t *testing.T) {
	t.Parallel()
	failed := "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n"
	for _, tc := range []struct {
		name   string
		answer func(*answer)
		body   string
		want   domain.Attempt
	}{
		{"served", func(*answer) {}, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", domain.Attempt{Channel: "a", Status: 200, At: start}},
		{"failed inside", func(*answer) {}, failed, domain.Attempt{Channel: "a", Status: 200, Reason: domain.ReasonOverload, At: start}},
		{"not answered", func(a *answer) { a.status, a.fromUpstream, a.unanswered = 503, false, true }, "", domain.Attempt{Channel: "a", Reason: domain.ReasonUnanswered}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			a := streamed(1)
			tc.answer(&a)
			w, _ := s.begin(decisionOf(domain.APIMessages), a)
			if tc.body != "" {
				w.chunk([]byte(tc.body))
				w.finish()
				w.end()
			}
			require.Equal(t, []domain.Attempt{tc.want}, store.get(t, "req-1").Record.Attempts)
		})
	}
}
