package main

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/ledger"
	"keyway/store/storetest"
)

// Whoever knows of a request's end settles it: its watch, the access log, the
// journal that replays the watch's word, and the sweepers of two workers once its
// lease is over. They race for each request here; one of them makes its row and
// its charge, and the others change nothing.
func TestCase099OneOwnerOfSettlement(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	s, err := openStore(server.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	book, err := ledger.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, book.Close()) })
	runWorkerOn(t, s, book, "one")
	runWorkerOn(t, s, book, "two")

	const (
		requests = 150
		// late is how many of them nobody ends before a sweeper has.
		late   = 10
		budget = 10_000_000
		lease  = 300 * time.Millisecond
	)
	day := time.Now().UTC().Format(time.DateOnly)
	decide := func(id string, micros int64) domain.Decision {
		return domain.Decision{
			RequestID: id, KeyID: "key_1", Identity: "acme", API: domain.APIChat, Model: "m", AdmittedAt: time.Now(), Lease: lease,
			Candidates: []domain.Candidate{{Channel: "a", Slots: requests}},
			Holds: []domain.Hold{
				{Kind: domain.LimitInFlight, Scope: domain.ScopeKey, ID: "key_1", Limit: requests, Amount: 1},
				{Kind: domain.LimitBudgetDay, Scope: domain.ScopeKey, ID: "key_1", Window: day, Limit: budget, Amount: micros},
			},
		}
	}
	// remaining is what the windows still give.
	remaining := func() []int64 {
		a, err := s.Admit(t.Context(), decide("probe", 2*budget))
		require.NoError(t, err)
		require.NotNil(t, a.Refusal)
		return a.Remaining
	}
	require.Eventually(t, func() bool {
		a, err := s.Admit(t.Context(), decide("probe", 2*budget))
		return err == nil && !a.BudgetsUnknown && a.Refusal != nil
	}, 20*time.Second, 10*time.Millisecond, "no worker has looked at the store")

	var (
		mu    sync.Mutex
		owner = map[string][]string{}
		race  sync.WaitGroup
	)
	admit := func(i int) domain.Decision {
		d := decide(fmt.Sprintf("request-%d", i), 1000)
		a, err := s.Admit(t.Context(), d)
		require.NoError(t, err)
		require.Nil(t, a.Refusal)
		return d
	}
	// settle lets all but the sweepers settle a request at once, some time.
	settle := func(d domain.Decision, at time.Time) {
		for _, w := range []struct {
			name    string
			micros  int64
			outcome domain.Outcome
		}{
			{"watch", 301, domain.OutcomeSuccess}, {"access log", 202, domain.OutcomeUpstreamCut}, {"journal", 301, domain.OutcomeSuccess},
		} {
			race.Go(func() {
				time.Sleep(time.Until(at))
				result, err := s.Settle(t.Context(), domain.Settlement{Decision: d, Channel: "a", Record: domain.UsageRecord{
					RequestID: d.RequestID, KeyID: d.KeyID, Identity: d.Identity, API: d.API, Model: d.Model,
					Outcome: w.outcome, Source: domain.SourceUpstream, CostMicros: w.micros, AdmittedAt: d.AdmittedAt, EndedAt: time.Now(),
				}})
				if assert.NoError(t, err) && result == domain.SettleDone {
					mu.Lock()
					defer mu.Unlock()
					owner[d.RequestID] = append(owner[d.RequestID], w.name)
				}
			})
		}
	}
	allEnded := func() bool {
		stats, err := s.Stats(t.Context())
		return err == nil && stats.OpenReservations == 0 && stats.OutboxLen == 0
	}
	for i := range requests - late {
		// From long before the end of the lease, when the sweepers come, to long after it.
		d := admit(i)
		settle(d, d.AdmittedAt.Add(2*lease*time.Duration(i)/requests))
	}
	race.Wait()
	require.Eventually(t, allEnded, 20*time.Second, 10*time.Millisecond)
	swept := make([]domain.Decision, late)
	for i := range swept {
		swept[i] = admit(requests - late + i)
	}
	require.Eventually(t, allEnded, 20*time.Second, 10*time.Millisecond)
	for _, d := range swept {
		settle(d, time.Now())
	}
	race.Wait()
	for _, d := range swept {
		assert.Empty(t, owner[d.RequestID], "a sweeper has settled it")
	}

	rows := map[string][]domain.UsageRecord{}
	var charged int64
	require.NoError(t, book.Records(t.Context(), ledger.Query{KeyID: "key_1"}, func(r domain.UsageRecord) error {
		rows[r.RequestID] = append(rows[r.RequestID], r)
		charged += r.CostMicros
		return nil
	}))
	require.Len(t, rows, requests)
	won := map[domain.Outcome]int{}
	for id, all := range rows {
		require.Len(t, all, 1, id)
		won[all[0].Outcome]++
		if all[0].Outcome == domain.OutcomeAbandoned {
			assert.Empty(t, owner[id], "the sweeper settled it")
		} else {
			assert.Len(t, owner[id], 1, "%s has one owner", id)
		}
	}
	t.Log(won)
	assert.GreaterOrEqual(t, won[domain.OutcomeAbandoned], late)
	left := remaining()
	assert.EqualValues(t, requests, left[0], "in flight")
	assert.Equal(t, budget-charged, left[1], "the budget is charged what the ledger says")
}
