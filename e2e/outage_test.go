package e2e

import (
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// While the store is away, a policy with an open window admits what its rate
// gives in that window and not one more; every other policy refuses. Afterwards
// the ledger has each request that went out.
func TestOpenWindowIsBounded(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	open := s.caller(t, "anyone", "--policy", "open")
	refusing := s.caller(t, "anyone", "--policy", "wide")
	for _, c := range []*caller{open, refusing} {
		require.Equal(t, http.StatusOK, c.ask(t, ask{model: "m"}).StatusCode, "the key is known from here on")
		s.records(t, c.keyID, 1)
	}

	s.signal(t, "store", syscall.SIGSTOP)
	resumed := sync.OnceFunc(func() { s.signal(t, "store", syscall.SIGCONT) })
	t.Cleanup(resumed)
	const allowance, tries = 40, 100 // 80 a minute for 30 s
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
	open.requireIdle(t)
	s.requireNothingOpen(t)
	untilServed(t, refusing)
}
