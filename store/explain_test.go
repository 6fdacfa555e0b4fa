package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/lua"
)

func TestARequestIsExplainedWhileItRunsAndAfter(t *testing.T) {
	t.Parallel()
	s := shared(t)
	o := newTenant()
	_, err := s.Explain(t.Context(), unique("request"))
	require.ErrorIs(t, err, domain.ErrNotFound)

	d := o.decide(o.hold(domain.LimitRPM, 100, 1))
	d.Route = []domain.Standing{{Channel: "east", Model: "m", Score: 2.5}, {Channel: "west", Model: "m", LeftOut: "cooling for 3s (rate)"}}
	admit(t, s, d)
	e, err := s.Explain(t.Context(), d.RequestID)
	require.NoError(t, err)
	assert.False(t, e.Ended)
	assert.Equal(t, d.Route, e.Decision.Route)

	settlement := ends(d, 5, 7)
	settlement.Record.EndedAt = time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
	settlement.Record.Attempts = []domain.Attempt{{Channel: "east", Status: 429}, {Channel: "north", Status: 200}}
	settlement.Record.RawUsage = []byte(`{"prompt_tokens":` + strings.Repeat("1", 4000) + `}`)
	without := settlement
	without.Decision.Route = nil // it did not travel
	for range 2 {
		_, err = s.Settle(t.Context(), without)
		require.NoError(t, err)
		e, err = s.Explain(t.Context(), d.RequestID)
		require.NoError(t, err)
		assert.True(t, e.Ended)
		assert.Equal(t, d.Route, e.Decision.Route)
		assert.Equal(t, settlement.Record.Attempts, e.Record.Attempts)
		assert.Equal(t, settlement.Record.EndedAt, e.Record.EndedAt)
		assert.EqualValues(t, 7, e.Record.CostMicros)
		assert.Empty(t, e.Record.RawUsage, "what is long is in the ledger")
	}

	lost := ends(o.decide(), 1, 1) // the store does not know it
	lost.Record.EndedAt = time.Now()
	_, err = s.Settle(t.Context(), lost)
	require.NoError(t, err)
	e, err = s.Explain(t.Context(), lost.Record.RequestID)
	require.NoError(t, err)
	assert.True(t, e.Ended)
	assert.Zero(t, e.Decision)

	old := ends(o.decide(), 1, 1)
	old.Record.EndedAt = time.Now().Add(-25 * time.Hour)
	_, err = s.Settle(t.Context(), old)
	require.NoError(t, err)
	_, err = s.Explain(t.Context(), old.Record.RequestID)
	require.ErrorIs(t, err, domain.ErrNotFound, "a day later it is forgotten")
}

// A shard keeps so many requests and no more, the last ones.
func TestExplanationsAreBounded(t *testing.T) {
	t.Parallel()
	s := shared(t)
	tag := "{" + unique("shard") + "}"
	var calls []call
	for i := range 10 {
		request := fmt.Sprint("r", i)
		calls = append(calls, call{
			script: lua.Settle,
			keys:   []string{tag + request, tag + ":open", tag + ":outbox", tag + ":repair", tag + ":e", tag + ":o"},
			args:   []any{request, 60_000, "end", recordVersion, "", 4},
		})
	}
	calls = append(calls, calls[9], calls[8]) // again
	require.NoError(t, firstError(s.run(t.Context(), calls)))
	kept, err := s.client.HKeys(t.Context(), tag+":e").Result()
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"r6", "r7", "r8", "r9"}, kept)
	order, err := s.client.LRange(t.Context(), tag+":o", 0, -1).Result()
	require.NoError(t, err)
	assert.Equal(t, []string{"r6", "r7", "r8", "r9"}, order)
}

// What explains a request is no part of the books.
func TestASettlementDoesNotNeedToExplain(t *testing.T) {
	t.Parallel()
	s := shared(t)
	o := newTenant()
	shard := unique("shard")
	for name, broken := range map[string]string{"requests": ":e", "order": ":o"} {
		tag := "{" + shard + name + "}"
		require.NoError(t, s.client.Set(t.Context(), tag+broken, "of another type", 0).Err())
		cmds := s.run(t.Context(), []call{{
			script: lua.Settle,
			keys:   []string{tag + "r", tag + ":open", tag + ":outbox", tag + ":repair", tag + ":e", tag + ":o"},
			args:   []any{o.key, 60_000, "end", recordVersion, "", 4},
		}})
		require.NoError(t, firstError(cmds), name)
		assert.EqualValues(t, 1, s.client.XLen(t.Context(), tag+":outbox").Val(), name)
		assert.Equal(t, "settled", s.client.HGet(t.Context(), tag+"r", "state").Val(), name)
	}
}
