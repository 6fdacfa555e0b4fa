package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

// outboxOf lists the records of one tenant without reading them away.
func outboxOf(t testing.TB, s *Store, o tenant) []domain.UsageRecord {
	t.Helper()
	shard := domain.ShardOf(o.identity)
	messages, err := s.client.XRange(context.Background(), outboxKey(shard), "-", "+").Result()
	require.NoError(t, err)
	var records []domain.UsageRecord
	for _, e := range readEntries(shard, messages) {
		if e.Record.Identity == o.identity {
			require.NoError(t, e.Err)
			records = append(records, e.Record)
		}
	}
	return records
}

// private has a server of its own, because reading the outbox takes from everybody.
func private(t *testing.T, args ...string) (*Store, *storetest.Server) {
	t.Helper()
	server := storetest.Start(t, args...)
	return begun(t, server.URL), server
}

func settleMany(t *testing.T, s *Store, n int) map[string]bool {
	t.Helper()
	want := map[string]bool{}
	for range n {
		d := newTenant().decide()
		_, err := s.Settle(context.Background(), ends(d, 1, 1))
		require.NoError(t, err)
		want[d.RequestID] = true
	}
	return want
}

func TestTheOutboxDeliversUntilAcknowledged(t *testing.T) {
	t.Parallel()
	s, _ := private(t)
	ctx := context.Background()
	read := func(r domain.OutboxRead) []domain.OutboxEntry {
		entries, err := s.ReadOutbox(ctx, r)
		require.NoError(t, err)
		require.LessOrEqual(t, len(entries), r.Max)
		return entries
	}
	one := domain.OutboxRead{Consumer: "one", Max: 7}
	assert.Empty(t, read(one), "empty")
	want := settleMany(t, s, 100)
	stats, err := s.Stats(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 100, stats.OutboxLen)

	got := map[string]domain.OutboxEntry{}
	for range 100 {
		for _, e := range read(one) {
			require.NoError(t, e.Err)
			assert.EqualValues(t, 1, e.Deliveries)
			assert.NotContains(t, got, e.Record.RequestID, "delivered once")
			got[e.Record.RequestID] = e
		}
	}
	require.Len(t, got, len(want))
	var half, rest []domain.OutboxEntry
	for request, e := range got {
		assert.True(t, want[request])
		if half = append(half, e); len(half) > 50 {
			half, rest = half[:50], append(rest, e)
		}
	}
	require.NoError(t, s.AckOutbox(ctx, half))
	require.NoError(t, s.AckOutbox(ctx, half), "twice")
	require.NoError(t, s.AckOutbox(ctx, nil))

	// After a restart the first one has at once what it never acknowledged.
	resumed := read(domain.OutboxRead{Consumer: "one", Max: 100, Resume: true})
	assert.Len(t, resumed, len(rest))
	for _, e := range resumed {
		assert.EqualValues(t, 2, e.Deliveries)
		assert.Equal(t, got[e.Record.RequestID].ID, e.ID)
	}
	assert.Empty(t, read(domain.OutboxRead{Consumer: "none", Max: 100, Resume: true}), "it is another's")

	// Another consumer takes over what the first one never acknowledged.
	time.Sleep(20 * time.Millisecond)
	two := domain.OutboxRead{Consumer: "two", Max: 1000, ReclaimIdle: 10 * time.Millisecond}
	again := read(two)
	assert.Len(t, again, len(rest))
	for _, e := range again {
		assert.EqualValues(t, 3, e.Deliveries)
	}
	two.ReclaimIdle = time.Hour
	assert.Empty(t, read(two), "not idle for so long")
	require.NoError(t, s.AckOutbox(ctx, again))
	stats, err = s.Stats(ctx)
	require.NoError(t, err)
	assert.Zero(t, stats)
}

func TestAFullShardGetsTheWholeBatch(t *testing.T) {
	t.Parallel()
	s, _ := private(t)
	o := newTenant()
	for range 60 {
		_, err := s.Settle(context.Background(), ends(o.decide(), 1, 1))
		require.NoError(t, err)
	}
	entries, err := s.ReadOutbox(context.Background(), domain.OutboxRead{Consumer: "one", Max: 50})
	require.NoError(t, err)
	assert.Len(t, entries, 50)
}

func TestAPoisonEntryHarmsNoOther(t *testing.T) {
	t.Parallel()
	s, _ := private(t)
	ctx := context.Background()
	o := newTenant()
	shard := domain.ShardOf(o.identity)
	for i, values := range []map[string]any{
		{fieldVersion: recordVersion, fieldRecord: "\xff\xff not a message"},
		{fieldVersion: "99", fieldRecord: ""},
		{fieldVersion: recordVersion, fieldRecord: ""},
		{"something": "else"},
	} {
		require.NoError(t, s.client.XAdd(ctx, &redis.XAddArgs{Stream: outboxKey(shard), ID: fmt.Sprintf("1-%d", i+1), Values: values}).Err())
	}
	d := o.decide()
	_, err := s.Settle(ctx, ends(d, 1, 1))
	require.NoError(t, err)
	entries, err := s.ReadOutbox(ctx, domain.OutboxRead{Consumer: "one", Max: 10})
	require.NoError(t, err)
	require.Len(t, entries, 5)
	for _, e := range entries[:4] {
		require.Error(t, e.Err)
		require.NoError(t, s.DeadLetter(ctx, e, "cannot be read"))
		require.NoError(t, s.DeadLetter(ctx, e, "twice"))
	}
	require.NoError(t, entries[4].Err)
	assert.Equal(t, d.RequestID, entries[4].Record.RequestID)
	dead, err := s.client.XRange(ctx, deadKey(shard), "-", "+").Result()
	require.NoError(t, err)
	require.Len(t, dead, 4)
	assert.Equal(t, map[string]any{"id": "1-1", "reason": "cannot be read", fieldVersion: "1", fieldRecord: "\xff\xff not a message"}, dead[0].Values)
	stats, err := s.Stats(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 1, stats.OutboxLen)
}

func TestStatsKnowTheAge(t *testing.T) {
	t.Parallel()
	s, _ := private(t)
	ctx := context.Background()
	o := newTenant()
	admit(t, s, o.decide(o.hold(domain.LimitBudgetDay, 10, 1)))
	old := time.Now().Add(-time.Hour).UnixMilli()
	require.NoError(t, s.client.XAdd(ctx, &redis.XAddArgs{
		Stream: outboxKey(5), ID: fmt.Sprintf("%d-0", old), Values: []any{fieldVersion, recordVersion},
	}).Err())
	stats, err := s.Stats(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 1, stats.OpenReservations)
	assert.EqualValues(t, 1, stats.OutboxLen)
	assert.InDelta(t, time.Hour, stats.OutboxOldest, float64(time.Minute))
}

func TestAFullStoreAdmitsNobodyAndStillSettles(t *testing.T) {
	t.Parallel()
	s, _ := private(t)
	ctx := context.Background()
	o := newTenant()
	d, refunded := o.decide(o.hold(domain.LimitBudgetDay, 100, 30)), o.decide(o.hold(domain.LimitBudgetDay, 100, 30))
	admit(t, s, d)
	admit(t, s, refunded)
	require.NoError(t, s.client.ConfigSet(ctx, "maxmemory", "1").Err())
	_, err := s.Admit(ctx, o.decide(o.hold(domain.LimitBudgetDay, 100, 1)))
	require.ErrorIs(t, err, domain.ErrStoreDown)
	require.ErrorIs(t, s.Probe(ctx), domain.ErrStoreDown)
	got, err := s.Settle(ctx, ends(d, 1, 7))
	require.NoError(t, err)
	assert.Equal(t, domain.SettleDone, got)
	require.NoError(t, s.Refund(ctx, refunded))
	assert.Equal(t, map[string]int64{"budget_day:key": 7}, counters(t, s, o))
	require.NoError(t, s.client.ConfigSet(ctx, "maxmemory", "0").Err())
	require.NoError(t, s.Probe(ctx))
	require.NoError(t, s.Ping(ctx))
}
