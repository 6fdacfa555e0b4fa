package store

import (
	"context"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

// TestAFailoverIsSurvived kills the primary: calls fail until the sentinel has
// promoted the replica, which has never seen a script, and then go on.
func TestAFailoverIsSurvived(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	primary, url := storetest.StartSentinel(t)
	s := begun(t, url)
	s.Start(ctx)
	o := newTenant()
	d := o.decide(o.hold(domain.LimitBudgetDay, 100, 30), o.hold(domain.LimitInFlight, 5, 1))
	admit(t, s, d)
	written := offset(t, s, `master_repl_offset:(\d+)`)
	eventually(t, "the replica has it", func() bool { return offset(t, s, `slave0:.*,offset=(\d+)`) >= written })

	primary.Kill()
	_, err := s.Admit(ctx, o.decide(o.hold(domain.LimitBudgetDay, 100, 30)))
	require.ErrorIs(t, err, domain.ErrStoreDown)
	var result domain.SettleResult
	eventually(t, "the replica takes over", func() bool {
		result, err = s.Settle(ctx, ends(d, 1, 7))
		if err != nil {
			assert.ErrorIs(t, err, domain.ErrStoreDown)
		}
		return err == nil
	})
	assert.Equal(t, domain.SettleDone, result, "what was replicated is known")
	assert.Equal(t, map[string]int64{"budget_day:key": 7}, counters(t, s, o))
	assert.True(t, s.Alive())
}

// offset reads a position in the stream of replication.
func offset(t *testing.T, s *Store, pattern string) int {
	t.Helper()
	info, err := s.client.Info(context.Background(), "replication").Result()
	require.NoError(t, err)
	match := regexp.MustCompile(pattern).FindStringSubmatch(info)
	require.Len(t, match, 2, info)
	n, err := strconv.Atoi(match[1])
	require.NoError(t, err)
	return n
}
