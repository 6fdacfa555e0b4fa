package e2e

import (
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// A store that was emptied admits nothing on budgets that it does not know: not
// before a worker has rebuilt them from the ledger, and then exactly what is left.
// So it is with a balance. What neither limits is served all the while, and a
// stream that ran over the loss is charged once.
func TestBudgetsAreRebuiltAfterALoss(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	options, err := redis.ParseURL(s.ready.RedisURL)
	require.NoError(t, err)
	direct := redis.NewClient(options)
	t.Cleanup(func() { _ = direct.Close() })
	budgeted := s.caller(t, "anyone", "--policy", "budget1000")
	free := s.caller(t, "anyone", "--policy", "flight5")
	for range 3 {
		require.Equal(t, http.StatusOK, budgeted.ask(t, ask{model: "m"}).StatusCode)
	}
	require.Equal(t, http.StatusOK, free.ask(t, ask{model: "m"}).StatusCode)
	budgeted.requireBalanced(t, budgeted.requireOneRowEach(t, 3))
	prepaid := s.caller(t, "prepaid-lost")
	s.topUp(t, prepaid.identity, 1000)
	s.awaitCredit(t, prepaid.identity, 1000)
	require.Equal(t, http.StatusOK, prepaid.ask(t, ask{model: "m"}).StatusCode)
	prompt := prepaid.requireOneRowEach(t, 1)[0].PromptTokensEstimate
	running, err := budgeted.open(t.Context(), ask{model: "only-a", stream: true, script: `{"count":30,"delay_between_ms":150}`})
	require.NoError(t, err)
	_, err = running.event()
	require.NoError(t, err)

	s.signal(t, "worker", syscall.SIGSTOP)
	resume := sync.OnceFunc(func() { s.signal(t, "worker", syscall.SIGCONT) })
	t.Cleanup(resume)
	keys := dumpKeys(t, direct)
	require.NoError(t, direct.FlushAll(t.Context()).Err())
	restoreKeys(t, direct, keys) // as from an append-only file or a backup
	var last received
	for i := range 6 {
		a := ask{api: []domain.API{domain.APIChat, domain.APIMessages}[i%2], model: "m", nonce: newNonce()}
		last = budgeted.ask(t, a)
		requireAway(t, a.api, last)
		require.Empty(t, s.attempts(a.nonce), "a refused request reached the provider")
		require.Equal(t, http.StatusOK, free.ask(t, ask{model: "m"}).StatusCode, "no budget limits it")
	}
	require.Contains(t, string(last.body), "rebuilding its budgets")
	requireAway(t, domain.APIChat, prepaid.ask(t, ask{model: "m"}))
	require.Contains(t, s.logs(), "no worker has rebuilt its budgets")
	require.GreaterOrEqual(t, s.metric(t, "authz", "keyway_authz_budgets_unknown_total"), 6.0)

	resume()
	resumed := time.Now()
	untilServed(t, budgeted)
	t.Logf("served %s after the worker went on", time.Since(resumed))
	body, err := running.rest()
	require.NoError(t, err)
	require.Contains(t, body, terminalOf(domain.APIChat))
	rows := budgeted.requireOneRowEach(t, 5)
	require.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: 5}, counted(rows))
	budgeted.requireBalanced(t, rows)
	var spent int64
	for _, r := range rows {
		spent += r.CostMicros
	}
	// The hold of a request is its prompt and its cap, at one micro-unit a token.
	left := 1000 - spent
	refused := budgeted.ask(t, ask{model: "m", cap: int(left-prompt) + 1})
	assert.Equal(t, http.StatusTooManyRequests, refused.StatusCode, "%s", refused.body)
	assert.Equal(t, http.StatusOK, budgeted.ask(t, ask{model: "m", cap: int(left - prompt)}).StatusCode, "all that is left")
	budgeted.requireBalanced(t, budgeted.requireOneRowEach(t, 6))

	left = s.balance(t, prepaid.identity).ClosingMicros
	require.Less(t, left, int64(1000))
	refused = prepaid.ask(t, ask{model: "m", cap: int(left-prompt) + 1})
	assert.Equal(t, http.StatusPaymentRequired, refused.StatusCode, "%s", refused.body)
	assert.Equal(t, http.StatusOK, prepaid.ask(t, ask{model: "m", cap: int(left - prompt)}).StatusCode, "all of the balance")
	prepaid.requireOneRowEach(t, 2)
	s.requireNothingOpen(t)
	require.Zero(t, s.metric(t, "worker", "keyway_worker_lost_shards"))
	require.EqualValues(t, 2*domain.Shards, s.metric(t, "worker", "keyway_worker_shards_rebuilt_total"), "at the first start, and now")
}

// dumpKeys keeps the records of keys, which lie in the store and nowhere else.
func dumpKeys(t *testing.T, direct *redis.Client) map[string]string {
	t.Helper()
	dumps := map[string]string{}
	iter := direct.Scan(t.Context(), 0, "key*", 1000).Iterator()
	for iter.Next(t.Context()) {
		dump, err := direct.Dump(t.Context(), iter.Val()).Result()
		require.NoError(t, err)
		dumps[iter.Val()] = dump
	}
	require.NoError(t, iter.Err())
	require.NotEmpty(t, dumps)
	return dumps
}

func restoreKeys(t *testing.T, direct *redis.Client, dumps map[string]string) {
	t.Helper()
	for key, dump := range dumps {
		require.True(t, key == "keys" || strings.HasPrefix(key, "key:"), key)
		require.NoError(t, direct.Restore(t.Context(), key, 0, dump).Err())
	}
}
