package e2e

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// While the store is away, a policy with an open window admits what its rate
// gives in that window and not one more, and one with leased rates what it has
// leased; every other policy refuses. Afterwards the ledger has each request that
// went out.
func TestOpenWindowIsBounded(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	open := s.caller(t, "anyone", "--policy", "open")
	refusing := s.caller(t, "anyone", "--policy", "wide")
	for _, c := range []*caller{open, refusing} {
		require.Equal(t, http.StatusOK, c.ask(t, ask{model: "m"}).StatusCode, "the key is known from here on")
		s.records(t, c.keyID, 1)
	}

	leased := s.caller(t, "anyone", "--policy", "leased")
	asked := 0
	for ; asked < 10 || s.metric(t, "authz", "keyway_authz_leased_admissions_total") < 10; asked++ {
		require.Less(t, asked, 1000, "nothing is leased")
		require.Equal(t, http.StatusOK, leased.ask(t, ask{model: "m-scoped"}).StatusCode)
	}

	s.signal(t, "store", syscall.SIGSTOP)
	resumed := sync.OnceFunc(func() { s.signal(t, "store", syscall.SIGCONT) })
	t.Cleanup(resumed)
	const onLease = 3
	for range onLease {
		got := leased.ask(t, ask{model: "m-scoped"})
		require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
		left, err := strconv.Atoi(got.Header.Get("x-ratelimit-remaining-requests"))
		require.NoError(t, err)
		assert.InDelta(t, 6000-asked, left, float64(asked), "limit headers show what is left")
	}
	requireAway(t, domain.APIChat, leased.ask(t, ask{model: "m"})) // its channels have slots
	const allowance, tries = 40, 100                               // 80 a minute for 30 s
	var admitted, refused atomic.Int64
	var senders sync.WaitGroup
	for range 10 {
		senders.Go(func() {
			for range tries / 10 {
				l, err := open.open(t.Context(), ask{model: "m"})
				if !assert.NoError(t, err) {
					return
				}
				body, err := l.rest()
				assert.NoError(t, err)
				switch l.StatusCode {
				case http.StatusOK:
					admitted.Add(1)
				case http.StatusServiceUnavailable:
					refused.Add(1)
				default:
					assert.Fail(t, "neither admitted nor refused", "%d %s", l.StatusCode, body)
				}
			}
		})
	}
	senders.Wait()
	assert.EqualValues(t, allowance, admitted.Load())
	assert.EqualValues(t, tries-allowance, refused.Load())
	requireAway(t, domain.APIChat, refusing.ask(t, ask{model: "m"}))

	resumed()
	var cost int64
	for _, r := range s.records(t, open.keyID, 1+allowance) {
		assert.Equal(t, domain.OutcomeSuccess, r.Outcome)
		cost += r.CostMicros
	}
	assert.Positive(t, cost)
	s.records(t, leased.keyID, asked+onLease)
	open.requireIdle(t)
	s.requireNothingOpen(t)
	untilServed(t, refusing)
}
