package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// While the store is away, each replica of authz lets an optimistic policy spend
// its credit and no more, and what it let go is in its journal, also when it is
// killed. Afterwards each request is charged once: one row, and the budget's
// counter is what the rows cost.
func TestOptimisticSpendsItsCreditOnce(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	c := s.caller(t, "anyone", "--policy", "trusting")
	second := s.replicas(t, s.ready.RedisURL, []string{"other"}, "--journal", filepath.Join(s.dir, "other.journal"))
	warm(t, second, c.secret)
	other := second[0]
	require.Equal(t, http.StatusOK, c.ask(t, ask{model: "m"}).StatusCode, "the key is known from here on")
	require.True(t, other.admits(t, c.secret))
	hold := c.requireOneRowEach(t, 2)[0].PromptTokensEstimate + 64 // micro-units, at one a token
	const credit, tries = 1000, 40

	s.signal(t, "store", syscall.SIGSTOP)
	resumed := sync.OnceFunc(func() { s.signal(t, "store", syscall.SIGCONT) })
	t.Cleanup(resumed)
	// It outlives a lease and the sweeper's grace after the store's return.
	running, err := c.open(t.Context(), ask{model: "only-a", stream: true, script: `{"count":70,"delay_between_ms":200}`})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, running.StatusCode)
	_, err = running.event()
	require.NoError(t, err)
	var served, lent atomic.Int64
	var senders sync.WaitGroup
	for range 4 {
		senders.Go(func() {
			for range tries / 4 {
				l, err := c.open(t.Context(), ask{model: "m"})
				if !assert.NoError(t, err) {
					return
				}
				body, err := l.rest()
				assert.NoError(t, err)
				if l.StatusCode == http.StatusOK {
					served.Add(1)
				} else {
					assert.Equal(t, http.StatusServiceUnavailable, l.StatusCode, "%s", body)
					assert.NotEmpty(t, l.Header.Get("Retry-After"))
				}
				answer, err := other.client.Check(t.Context(), admission(c.secret))
				if !assert.NoError(t, err) {
					return
				}
				if answer.GetOkResponse() != nil {
					lent.Add(1)
				} else {
					assert.Equal(t, typev3.StatusCode_ServiceUnavailable, answer.GetDeniedResponse().GetStatus().GetCode())
				}
			}
		})
	}
	senders.Wait()
	// The bound: replicas times credit, and all of each was used.
	assert.EqualValues(t, credit/hold, served.Load()+1, "a request holds %d", hold)
	assert.EqualValues(t, credit/hold, lent.Load())
	s.signal(t, "authz", syscall.SIGKILL)
	eventually(t, func() bool { return strings.Contains(s.logs(), "journal holds admissions of an earlier run") },
		patience, 20*time.Millisecond, "its successor finds what it left")

	resumed()
	requests := 3 + int(served.Load()+lent.Load())
	eventually(t, func() bool { return len(s.recordsNow(t, c.keyID)) == requests-1 }, patience, 50*time.Millisecond, "all but the one that runs")
	body, err := running.rest()
	require.NoError(t, err)
	require.Contains(t, body, terminalOf(domain.APIChat))
	rows := c.requireOneRowEach(t, requests)
	assert.Equal(t, map[domain.Outcome]int{
		domain.OutcomeSuccess:   2 + int(served.Load()),
		domain.OutcomeAbandoned: 1 + int(lent.Load()), // the test asked, and sent nothing
	}, counted(rows))
	c.requireIdle(t)
	c.requireBalanced(t, rows)
	s.requireNothingOpen(t)
	s.requireNoDrift(t, c.keyID)
	require.EqualValues(t, served.Load()+1, s.metric(t, "authz", "keyway_authz_admissions_replayed_total"), "by the successor")
	require.Zero(t, s.metric(t, "authz", "keyway_authz_journal_entries"))
	require.Zero(t, s.metric(t, "authz", "keyway_authz_journal_bytes"))
}

// requireNoDrift compares the budgets of a key in store and ledger.
func (s *stack) requireNoDrift(t *testing.T, keyID string) {
	t.Helper()
	book, err := s.store.Budgets(t.Context())
	require.NoError(t, err)
	sums, err := s.ledger.BudgetSums(t.Context(), domain.MonthBegin(time.Now()), book.PendingRequests())
	require.NoError(t, err)
	compared := 0
	for _, d := range book.Compare(sums) {
		if strings.Contains(d.Name, keyID) {
			compared++
			assert.Zero(t, d.Micros(), "%+v", d)
		}
	}
	assert.Positive(t, compared)
}
