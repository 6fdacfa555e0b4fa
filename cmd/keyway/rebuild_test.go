package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/ledger"
	"keyway/store"
	"keyway/store/storetest"
	"keyway/worker"
)

// A store is emptied, and one worker brings everything that the ledger knows
// back: budgets, images, and a balance with what was paid into it.
func TestAWorkerRebuildsEveryWindow(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	s, err := openStore(server.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	book, err := ledger.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, book.Close()) })
	_, _, err = book.AddBalance(t.Context(), domain.BalanceEntry{
		Identity: "acme", AmountMicros: 1000, Source: "test", Reference: "1", At: time.Now(),
	})
	require.NoError(t, err)
	runWorkerOn(t, s, book, "w")

	day := time.Now().UTC().Format(time.DateOnly)
	decide := func(id string, micros, images int64) domain.Decision {
		return domain.Decision{
			RequestID: id, KeyID: "key_1", Identity: "acme", API: domain.APIChat, Model: "m", AdmittedAt: time.Now(),
			Candidates: []domain.Candidate{{Channel: "a"}},
			Holds: []domain.Hold{
				domain.BalanceHold("acme", micros),
				{Kind: domain.LimitBudgetDay, Scope: domain.ScopeKey, ID: "key_1", Window: day, Limit: 900, Amount: micros},
				{Kind: domain.LimitBudgetDay, Scope: domain.ScopeKeyModel, ID: "key_1 m", Window: day, Limit: 800, Amount: micros},
				{Kind: domain.LimitImagesDay, Scope: domain.ScopeKey, ID: "key_1", Window: day, Limit: 10, Amount: images},
			},
		}
	}
	// left is what each window still gives, once a worker has looked at the store.
	left := func() []int64 {
		var a domain.Admission
		require.Eventually(t, func() bool {
			a, err = s.Admit(t.Context(), decide("probe", 2000, 0))
			return err == nil && !a.BudgetsUnknown && a.Remaining[0] > 0
		}, 20*time.Second, 10*time.Millisecond)
		require.NotNil(t, a.Refusal)
		return a.Remaining
	}
	require.Equal(t, []int64{1000, 900, 800, 10}, left())
	d := decide("one", 500, 4)
	a, err := s.Admit(t.Context(), d)
	require.NoError(t, err)
	require.Nil(t, a.Refusal)
	r := domain.UsageRecord{
		RequestID: d.RequestID, KeyID: d.KeyID, Identity: d.Identity, API: d.API, Model: "m", Outcome: domain.OutcomeSuccess,
		Source: domain.SourceUpstream, CostMicros: 300, AdmittedAt: d.AdmittedAt,
		EndedAt: time.Now().Add(time.Hour), // by a gateway's clock, which is wrong
	}
	r.Usage.Tools[domain.ToolImageGeneration] = 3
	_, err = s.Settle(t.Context(), domain.Settlement{Decision: d, Record: r})
	require.NoError(t, err)
	want := []int64{700, 600, 500, 7}
	require.Equal(t, want, left())
	require.Eventually(t, func() bool {
		newest, err := book.Newest(t.Context())
		return err == nil && !newest.IsZero()
	}, 20*time.Second, 10*time.Millisecond, "the ledger has it")

	// One that starts now, and has seen nothing yet, takes the store for no older than
	// the ledger.
	starting, err := openStore(server.URL)
	require.NoError(t, err)
	newest, err := book.Newest(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), newest, 5*time.Second)
	lost, err := starting.Advance(t.Context(), newest)
	require.NoError(t, err)
	require.Empty(t, lost)
	require.NoError(t, starting.Close())

	options, err := redis.ParseURL(server.URL)
	require.NoError(t, err)
	direct := redis.NewClient(options)
	defer direct.Close()
	require.NoError(t, direct.FlushAll(t.Context()).Err())
	a, err = s.Admit(t.Context(), decide("too early", 1, 0))
	require.NoError(t, err)
	if a.Refusal != nil || !a.BudgetsUnknown {
		// The worker may have been as quick; it is never admitted on empty windows.
		require.Equal(t, want[1], a.Remaining[1]+1)
		require.NoError(t, s.Refund(t.Context(), decide("too early", 1, 0)))
	}
	require.Equal(t, want, left())
}

// runWorkerOn runs a worker until the test ends.
func runWorkerOn(t *testing.T, s *store.Store, book *ledger.Ledger, consumer string) {
	t.Helper()
	w, err := worker.New(worker.Options{
		Outbox: s, Ledger: book, Reservations: s, Stats: s, Consumer: consumer, Registerer: prometheus.NewRegistry(),
		BudgetSums: book, Generations: s, Credits: book, CreditStore: s,
		PollInterval: 10 * time.Millisecond, AdvanceInterval: 20 * time.Millisecond, CreditInterval: 20 * time.Millisecond,
		SweepInterval: time.Millisecond, SweepGrace: time.Millisecond,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}
