package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"

	"keyway/domain"
)

var (
	admitted = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	now      = admitted.Add(31 * time.Second)
)

func decision(id string) domain.Decision {
	return domain.Decision{
		RequestID: id, KeyID: "key_1", Identity: "acme", API: domain.APIMessages, Model: "m",
		PromptTokens: 1500, OutputCap: 4000, AdmittedAt: admitted,
		Price:      domain.Price{Version: "v7", Input: 3_000_001, CacheRead: 300_000, CacheWrite: 3_750_000, Output: 15_000_000},
		Holds:      []domain.Hold{{Kind: domain.LimitInFlight, Scope: domain.ScopeKey, ID: "key_1", Amount: 1}},
		Candidates: []domain.Candidate{{Channel: "a"}, {Channel: "b"}},
	}
}

func TestAbandoned(t *testing.T) {
	t.Parallel()
	base := domain.UsageRecord{
		RequestID: "req_1", KeyID: "key_1", Identity: "acme", API: domain.APIMessages, Model: "m", ModelDispatched: "m",
		Outcome: domain.OutcomeAbandoned, Source: domain.SourceEstimate, PriceVersion: "v7",
		PromptTokensEstimate: 1500, AdmittedAt: admitted, EndedAt: now,
	}
	renewed := base
	renewed.Attempt, renewed.Channel = 1, "a"
	renewed.Attempts = []domain.Attempt{{Channel: "a"}}
	renewed.Usage = domain.Usage{InputUncached: 1500}
	renewed.CostMicros = 4501 // 1500 × 3.000001, rounded up
	bare := renewed
	bare.Attempt, bare.Channel, bare.Attempts = 0, "", nil

	noCandidates := decision("req_1")
	noCandidates.Candidates = nil
	tests := []struct {
		name    string
		given   domain.ExpiredReservation
		channel string
		want    domain.UsageRecord
	}{
		{name: "never ran", given: domain.ExpiredReservation{Decision: decision("req_1")}, channel: "a", want: base},
		{name: "ran", given: domain.ExpiredReservation{Decision: decision("req_1"), Renewed: true}, channel: "a", want: renewed},
		{name: "ran nowhere known", given: domain.ExpiredReservation{Decision: noCandidates, Renewed: true}, want: bare},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := abandoned(tt.given, now)
			assert.Equal(t, domain.Settlement{Decision: tt.given.Decision, Channel: tt.channel, Record: tt.want}, got)
		})
	}
}

func TestSweepSettlesAll(t *testing.T) {
	t.Parallel()
	store := &fakeStore{
		results: map[string]domain.SettleResult{"req_001": domain.SettleAlready, "req_002": domain.SettleUnknown},
		failing: map[string]bool{"req_003": true},
	}
	for i := range 250 {
		store.expired = append(store.expired, domain.ExpiredReservation{Decision: decision(fmt.Sprintf("req_%03d", i))})
	}
	opts := options(newOutbox(), newLedger(), store)
	opts.Now = func() time.Time { return now }
	w := newWorker(t, opts)
	stop := start(t, w)
	defer stop()
	eventually(t, func() bool { return store.settledCount() == 249 }, "one that fails does not hold up the others")
	store.mu.Lock()
	store.failing = nil
	store.mu.Unlock()
	eventually(t, func() bool { return store.settledCount() == 250 }, "and is tried again")
	stop()
	for result, want := range map[string]float64{"settled": 248, "already": 1, "unknown": 1} {
		assert.InDelta(t, want, testutil.ToFloat64(w.metrics.swept.WithLabelValues(result)), 0, result)
	}
	assert.Equal(t, now, store.settled[0].Record.EndedAt)
}

func TestSweepSurvivesTheStore(t *testing.T) {
	t.Parallel()
	store := &fakeStore{err: errAway, expired: []domain.ExpiredReservation{{Decision: decision("req_1")}}}
	w := newWorker(t, options(newOutbox(), newLedger(), store))
	stop := start(t, w)
	defer stop()
	eventually(t, func() bool { return testutil.ToFloat64(w.metrics.errors.WithLabelValues("expired")) > 2 }, "it keeps looking")
	assert.Zero(t, store.settledCount())
	store.mu.Lock()
	store.err = nil
	store.mu.Unlock()
	eventually(t, func() bool { return store.settledCount() == 1 }, "it settles")
}

// An owner that could not reach the store either comes before the sweeper.
func TestSweepWaitsForOwners(t *testing.T) {
	t.Parallel()
	store := &fakeStore{expired: []domain.ExpiredReservation{{Decision: decision("req_1")}}}
	opts := options(newOutbox(), newLedger(), store)
	opts.SweepGrace = time.Hour
	w := newWorker(t, opts)
	var a answering
	assert.Zero(t, w.sweepOnce(t.Context(), &a), "the start may follow an outage")
	a.since = time.Now().Add(-2 * time.Hour)
	store.err = errAway
	assert.Zero(t, w.sweepOnce(t.Context(), &a))
	store.err = nil
	assert.Zero(t, w.sweepOnce(t.Context(), &a), "the store has just come back")
	assert.Zero(t, store.settledCount())
	a.since = time.Now().Add(-2 * time.Hour)
	assert.Equal(t, 1, w.sweepOnce(t.Context(), &a))
}
