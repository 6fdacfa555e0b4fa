package store

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

// TestACluster proves what a single server does not notice: that every key of
// a script is declared and that they share a slot.
func TestACluster(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := begun(t, storetest.StartCluster(t, 3))
	s.Start(ctx)
	requests := map[string]bool{}
	for range 100 { // over all shards and nodes
		o := newTenant()
		d := o.decide(
			o.hold(domain.LimitRPM, 10, 1), o.hold(domain.LimitTPM, 1000, 10), o.hold(domain.LimitInFlight, 2, 1),
			o.hold(domain.LimitBudgetDay, 100, 30), o.own(o.hold(domain.LimitBudgetMonth, 100, 30)),
		)
		d.Candidates = []domain.Candidate{{Channel: unique("a"), Slots: 1}, {Channel: unique("b"), Slots: 1}}
		admit(t, s, d)
		other := d
		other.RequestID = unique("request")
		require.Equal(t, 1, admit(t, s, other).Skipped)
		require.NoError(t, s.Refund(ctx, other))
		moved, err := s.MoveSlot(ctx, domain.SlotMove{RequestID: d.RequestID, From: d.Candidates[0], To: d.Candidates[1]})
		require.NoError(t, err)
		require.True(t, moved)
		channel := d.Candidates[1].Channel
		open, err := s.Renew(ctx, []domain.Lease{{RequestID: d.RequestID, Identity: d.Identity, Holds: d.Holds, Channel: channel, TTL: domain.DefaultLease}})
		require.NoError(t, err)
		require.Equal(t, []bool{true}, open)
		settlement := ends(d, 5, 7)
		settlement.Channel = channel
		result, err := s.Settle(ctx, settlement)
		require.NoError(t, err)
		require.Equal(t, domain.SettleDone, result)
		held := counters(t, s, o, d.Candidates[0].Channel, channel)
		delete(held, "tpm:key") // it drains
		require.Equal(t, map[string]int64{"rpm:key": 1, "budget_day:key": 7, "budget_month:identity": 7}, held)
		requests[d.RequestID] = true
	}
	for range 5 {
		require.NoError(t, s.Probe(ctx))
	}
	requireCooldowns(t, s)
	expired, err := s.Expired(ctx, 10)
	require.NoError(t, err)
	assert.Empty(t, expired)
	for range 20 {
		entries, err := s.ReadOutbox(ctx, domain.OutboxRead{Consumer: "one", Max: 30, ReclaimIdle: 1})
		require.NoError(t, err)
		for _, e := range entries {
			require.NoError(t, e.Err)
			delete(requests, e.Record.RequestID)
		}
		if len(entries) > 0 {
			require.NoError(t, s.DeadLetter(ctx, entries[0], "a test"))
			require.NoError(t, s.AckOutbox(ctx, entries[1:]))
		}
	}
	assert.Empty(t, requests, "every record came out")
	stats, err := s.Stats(ctx)
	require.NoError(t, err)
	assert.Zero(t, stats)
	k := newKey()
	require.NoError(t, s.PutKey(ctx, k))
	keys, err := s.Keys(ctx)
	require.NoError(t, err)
	assert.Equal(t, []domain.VirtualKey{k}, keys)
	assert.True(t, s.Alive())
	requireNodeLoss(t, s)
	requireOnce(t, s)
}

// requireNodeLoss empties one node: its shards alone have lost writes, and only
// there budgets wait for a rebuild.
func requireNodeLoss(t *testing.T, s *Store) {
	t.Helper()
	cluster, ok := s.client.(*redis.ClusterClient)
	require.True(t, ok)
	var once sync.Once
	require.NoError(t, cluster.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) (err error) {
		once.Do(func() { err = node.FlushAll(ctx).Err() })
		return err
	}))
	lost, err := s.Advance(t.Context(), time.Time{})
	require.NoError(t, err)
	require.NotEmpty(t, lost)
	require.Less(t, len(lost), domain.Shards)
	var waiting []domain.Decision
	for range 50 {
		o := newTenant()
		d := o.decide(o.hold(domain.LimitBudgetDay, 100, 30))
		a, err := s.Admit(t.Context(), d)
		require.NoError(t, err)
		require.Equal(t, slices.Contains(lost, domain.ShardOf(o.identity)), a.BudgetsUnknown)
		if a.BudgetsUnknown {
			waiting = append(waiting, d)
		}
	}
	require.NotEmpty(t, waiting)
	require.NoError(t, rebuild(s))
	for _, d := range waiting {
		admit(t, s, d)
	}
}

// requireOnce expects that a command of a pipeline that has to follow its key
// runs once, also behind one that the client library would send again whole. It
// leaves a slot on its way.
func requireOnce(t *testing.T, s *Store) {
	ctx := t.Context()
	cluster, ok := s.client.(*redis.ClusterClient)
	require.True(t, ok)
	const stuck, gone = "{stuck}", "{gone-2}"
	from, err := cluster.MasterForKey(ctx, stuck)
	require.NoError(t, err)
	owner, err := cluster.MasterForKey(ctx, gone)
	require.NoError(t, err)
	require.Equal(t, from.Options().Addr, owner.Options().Addr, "both slots are on one node")
	to, err := cluster.MasterForKey(ctx, "{elsewhere}")
	require.NoError(t, err)
	require.NotEqual(t, from.Options().Addr, to.Options().Addr)
	slot := func(key string) int64 { return from.ClusterKeySlot(ctx, key).Val() }
	setSlot := func(node *redis.Client, args ...any) {
		require.NoError(t, node.Do(ctx, append([]any{"cluster", "setslot"}, args...)...).Err())
	}
	require.NoError(t, from.Set(ctx, stuck+"a", 1, 0).Err())
	setSlot(to, slot(stuck), "importing", from.ClusterMyID(ctx).Val())
	setSlot(from, slot(stuck), "migrating", to.ClusterMyID(ctx).Val())
	for _, node := range []*redis.Client{to, from} {
		setSlot(node, slot(gone), "node", to.ClusterMyID(ctx).Val())
	}

	pipe := cluster.Pipeline()
	waits := pipe.MGet(ctx, stuck+"a", stuck+"b")
	moves := pipe.Incr(ctx, gone+"n")
	_, err = pipe.Exec(ctx)
	require.Equal(t, "1", to.Get(ctx, gone+"n").Val())
	require.ErrorContains(t, err, "TRYAGAIN")
	require.Equal(t, err, waits.Err())
	require.NoError(t, moves.Err())
}
