package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// TestForgottenScriptsAreInvisible is the drill "SCRIPT FLUSH", much faster.
func TestForgottenScriptsAreInvisible(t *testing.T) {
	t.Parallel()
	s, _ := private(t)
	ctx, stop := context.WithCancel(context.Background())
	var flusher, workers sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			assert.NoError(t, s.client.ScriptFlush(context.Background()).Err())
			time.Sleep(5 * time.Millisecond)
		}
	})
	for range 8 {
		workers.Go(func() {
			o := newTenant()
			for range 100 {
				d := o.decide(o.hold(domain.LimitInFlight, 1, 1), o.hold(domain.LimitBudgetDay, 1e6, 10))
				d.Candidates[0].Slots = 1
				channel := d.Candidates[0].Channel
				a, err := s.Admit(context.Background(), d)
				if !assert.NoError(t, err) || !assert.Nil(t, a.Refusal) {
					return
				}
				open, err := s.Renew(context.Background(), []domain.Lease{{RequestID: d.RequestID, Identity: d.Identity, Holds: d.Holds, Channel: channel, TTL: time.Hour}})
				assert.NoError(t, err)
				assert.Equal(t, []bool{true}, open)
				settlement := ends(d, 1, 3)
				settlement.Channel = channel
				result, err := s.Settle(context.Background(), settlement)
				assert.NoError(t, err)
				assert.Equal(t, domain.SettleDone, result)
			}
			assert.Equal(t, map[string]int64{"budget_day:key": 300}, counters(t, s, o))
		})
	}
	workers.Wait()
	stop()
	flusher.Wait()
	require.Empty(t, openReservations(t, s))
}

func openReservations(t testing.TB, s *Store) []string {
	t.Helper()
	var all []string
	for shard := range domain.Shards {
		some, err := s.client.ZRange(context.Background(), openKey(shard), 0, -1).Result()
		require.NoError(t, err)
		all = append(all, some...)
	}
	return all
}
