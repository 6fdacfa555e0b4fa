package store

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

// A new store has no generation: what a window limits waits for a worker's look,
// and nothing else does.
func TestWindowsNeedALookFirst(t *testing.T) {
	t.Parallel()
	s, o := open(t, Options{URL: storetest.Start(t).URL}), newTenant()
	region := newCeiling()
	d := o.decide(o.hold(domain.LimitRPM, 10, 1), o.hold(domain.LimitBudgetDay, 100, 30), region.hold(domain.LimitInFlight, 5, 1))
	d.Candidates[0].Slots = 1
	a, err := s.Admit(t.Context(), d)
	require.NoError(t, err)
	require.Equal(t, domain.Admission{BudgetsUnknown: true}, a)
	assert.Empty(t, counters(t, s, o, d.Candidates[0].Channel), "nothing stays charged")
	assert.Empty(t, region.counters(t, s))
	admit(t, s, o.decide(o.hold(domain.LimitRPM, 10, 1), o.hold(domain.LimitInFlight, 5, 1), region.hold(domain.LimitInFlight, 5, 1)))
	_, err = s.Settle(t.Context(), ends(o.decide(), 1, 1))
	require.NoError(t, err)
	entries, err := s.ReadOutbox(t.Context(), domain.OutboxRead{Consumer: "c", Max: 10})
	require.NoError(t, err)
	assert.Empty(t, entries, "what will be summed stays where it is")

	require.NoError(t, rebuild(s))
	admit(t, s, d)
	entries, err = s.ReadOutbox(t.Context(), domain.OutboxRead{Consumer: "c", Max: 10})
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	lost, err := s.Advance(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.Empty(t, lost)
}

// book is a store and what a ledger says of one tenant.
type book struct {
	*Store
	tenant
	sums domain.BudgetSums
}

// spend admits and settles one request and delivers its record where it is told to.
func (b *book) spend(t *testing.T, micros, images int64, to delivery) domain.Decision {
	t.Helper()
	d := b.holding(100, 2)
	admit(t, b.Store, d)
	s := ends(d, 1, micros)
	s.Record.Usage.Tools[domain.ToolImageGeneration] = images
	_, err := b.Settle(t.Context(), s)
	require.NoError(t, err)
	if to == toLedger {
		entries, err := b.ReadOutbox(t.Context(), domain.OutboxRead{Consumer: "c", Max: 10})
		require.NoError(t, err)
		require.Len(t, entries, 1)
		b.write(entries[0].Record)
		require.NoError(t, b.AckOutbox(t.Context(), entries))
	}
	return d
}

type delivery int

const (
	toLedger delivery = iota
	toOutbox
)

func (b *book) write(r domain.UsageRecord) {
	b.sums.Settled[r.RequestID] = true
	for _, name := range r.Budgets {
		b.sums.Spent[name] += chargeOf(name, r)
		b.sums.Owner[name] = r.Identity
	}
}

// holding is a decision over every kind of window, of a key, a model and an identity.
func (b *book) holding(micros, images int64) domain.Decision {
	model := b.hold(domain.LimitBudgetDay, 1000, micros)
	model.Scope, model.ID = domain.ScopeKeyModel, b.key+" m"
	day := b.hold(domain.LimitImagesDay, 20, images)
	day.Window = "2026-11-29"
	return b.decide(b.hold(domain.LimitBudgetDay, 1000, micros), model, day, b.own(b.hold(domain.LimitBudgetMonth, 1000, micros)))
}

func (b *book) ledger(context.Context, []string) (domain.BudgetSums, error) { return b.sums, nil }

func newBook(t *testing.T) *book {
	tenant := newTenant()
	for domain.ShardOf(tenant.identity) == domain.ShardOf("somebody else") {
		tenant = newTenant()
	}
	return &book{Store: begun(t, storetest.Start(t).URL), tenant: tenant, sums: domain.BudgetSums{
		Since: domain.MonthBegin(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)),
		Spent: map[string]int64{"budget:day:key:other:2026-11-29": 7, "budget:day:key:old:2026-10-01": 9},
		Owner: map[string]string{"budget:day:key:other:2026-11-29": "somebody else", "budget:day:key:old:2026-10-01": "x"}, Settled: map[string]bool{},
	}}
}

// windows reads the tenant's windows by kind and scope.
func (b *book) windows(t *testing.T) map[string]int64 {
	t.Helper()
	got := map[string]int64{}
	for _, h := range b.holding(0, 0).Holds {
		value, err := b.values(t.Context(), bucketKey(b.identity, h))
		require.NoError(t, err)
		got[string(h.Kind)+" "+string(h.Scope)] = value[0]
	}
	return got
}

func windows(micros, images int64) map[string]int64 {
	return map[string]int64{
		"budget_day key": micros, "budget_day key_model": micros, "images_day key": images, "budget_month identity": micros,
	}
}

// remove deletes every key of the shards that match, as a node that lost its data.
func (b *book) remove(t *testing.T, match string) {
	t.Helper()
	keys, err := b.scan(t.Context(), match)
	require.NoError(t, err)
	require.NoError(t, b.client.Del(t.Context(), keys...).Err())
}

// lostShard expects the tenant's shard alone to have lost writes.
func (b *book) lostShard(t *testing.T) []int {
	t.Helper()
	lost, err := b.Advance(t.Context(), time.Time{})
	require.NoError(t, err)
	require.Equal(t, []int{domain.ShardOf(b.identity)}, lost)
	return lost
}

// The windows alone are gone: ledger, outbox and open reservations add up to them.
func TestRebuildAddsUp(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.spend(t, 70, 1, toLedger)
	b.spend(t, 20, 2, toOutbox)
	running := b.holding(100, 2)
	admit(t, b.Store, running)
	require.Equal(t, windows(190, 5), b.windows(t))

	tag := identityTag(b.identity)
	b.remove(t, tag+":budget:*")
	b.remove(t, tag+":images:*")
	b.remove(t, tag+":generation")
	require.Equal(t, windows(0, 0), b.windows(t))
	require.NoError(t, b.Rebuild(t.Context(), b.lostShard(t), b.ledger))
	require.Equal(t, windows(190, 5), b.windows(t))
	keys, err := b.scan(t.Context(), "*:20??-*")
	require.NoError(t, err)
	assert.Len(t, keys, 4, "neither others' windows nor old ones: %v", keys)
	for _, key := range keys {
		ttl, err := b.client.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		assert.Greater(t, ttl, 30*24*time.Hour, key)
	}
	_, err = b.Settle(t.Context(), ends(running, 1, 10))
	require.NoError(t, err)
	require.Equal(t, windows(100, 3), b.windows(t))
	require.Equal(t, int64(900), refusal(t, b.Store, b.holding(901, 0)).Remaining)
}

// A whole shard is gone. Requests run on; one ends before the rebuild, one in
// the middle, one after, and each counts once.
func TestRebuildAfterAFlush(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.spend(t, 70, 1, toLedger)
	b.spend(t, 5, 1, toOutbox) // lost for good
	var running []domain.Decision
	for range 3 {
		d := b.holding(100, 2)
		admit(t, b.Store, d)
		running = append(running, d)
	}
	b.remove(t, identityTag(b.identity)+":*")
	settle := func(d domain.Decision) {
		result, err := b.Settle(t.Context(), ends(d, 1, 10))
		require.NoError(t, err)
		require.Equal(t, domain.SettleUnknown, result)
	}
	settle(running[0])
	a, err := b.Admit(t.Context(), b.holding(1, 0))
	require.NoError(t, err)
	require.True(t, a.BudgetsUnknown)
	require.NoError(t, b.Rebuild(t.Context(), b.lostShard(t), func(context.Context, []string) (domain.BudgetSums, error) {
		settle(running[1])
		return b.sums, nil
	}))
	settle(running[2])
	require.Equal(t, windows(100, 1), b.windows(t))
	require.Equal(t, int64(900), refusal(t, b.Store, b.holding(901, 0)).Remaining)
}

// A snapshot comes back that is older than what was given away since.
func TestRebuildAfterAnOldSnapshot(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.spend(t, 70, 1, toLedger)
	ghost, alive := b.holding(100, 2), b.holding(100, 2)
	admit(t, b.Store, ghost)
	admit(t, b.Store, alive)
	old := b.snapshot(t)

	time.Sleep(2 * time.Millisecond) // the generation is one of milliseconds
	lost, err := b.Advance(t.Context(), time.Time{})
	require.NoError(t, err)
	require.Empty(t, lost)
	r := ends(ghost, 1, 60)
	_, err = b.Settle(t.Context(), r)
	require.NoError(t, err)
	r.Record.Budgets = budgetNames(ghost)
	b.write(r.Record) // and drained
	b.restore(t, old)

	a, err := b.Admit(t.Context(), b.holding(1, 0))
	require.NoError(t, err)
	require.True(t, a.BudgetsUnknown, "this process has seen a higher generation")
	stranger := open(t, Options{URL: b.url(t)})
	lost, err = stranger.Advance(t.Context(), time.Now().Add(-time.Minute))
	require.NoError(t, err)
	require.Empty(t, lost, "a ledger that is older than the snapshot says nothing")
	b.restore(t, old)
	lost, err = stranger.Advance(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Len(t, lost, domain.Shards, "the ledger knows of later ends")
	require.NoError(t, stranger.Rebuild(t.Context(), lost, b.ledger))

	require.Equal(t, windows(230, 3), b.windows(t), "70 and 60 in the ledger, 100 held by the one that runs")
	_, err = b.Settle(t.Context(), ends(alive, 1, 10))
	require.NoError(t, err)
	require.Equal(t, windows(140, 1), b.windows(t))
	require.Equal(t, int64(860), refusal(t, b.Store, b.holding(861, 0)).Remaining)
	require.Empty(t, openReservations(t, b.Store))
}

// Of two that rebuild at once, one writes.
func TestOnlyOneRebuilds(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.spend(t, 70, 1, toLedger)
	running := b.holding(100, 2)
	admit(t, b.Store, running)
	b.remove(t, identityTag(b.identity)+":budget:*")
	b.remove(t, identityTag(b.identity)+":generation")
	lost := b.lostShard(t)
	err := b.Rebuild(t.Context(), lost, func(context.Context, []string) (domain.BudgetSums, error) {
		require.NoError(t, b.Rebuild(t.Context(), lost, b.ledger))
		admit(t, b.Store, b.holding(100, 2))
		return b.sums, nil
	})
	require.ErrorIs(t, err, ErrOvertaken)
	require.Equal(t, windows(270, 5), b.windows(t))

	// One that stopped half way leaves nothing that the next would count twice.
	b.remove(t, identityTag(b.identity)+":generation")
	require.Error(t, b.Rebuild(t.Context(), lost, func(context.Context, []string) (domain.BudgetSums, error) {
		return b.sums, context.DeadlineExceeded
	}))
	require.NoError(t, b.Rebuild(t.Context(), lost, b.ledger))
	require.Equal(t, windows(270, 5), b.windows(t))
}

// A request ends at the worst moment: after the last look and before what was
// reckoned from it is written.
func TestRebuildCommutesWithAnEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*book, domain.Decision) error{
		"settled": func(b *book, d domain.Decision) error {
			_, err := b.Settle(context.Background(), ends(d, 1, 10))
			return err
		},
		"refunded": func(b *book, d domain.Decision) error { return b.Refund(context.Background(), d) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBook(t)
			b.spend(t, 70, 1, toLedger)
			running := b.holding(100, 2)
			admit(t, b.Store, running)
			tag := identityTag(b.identity)
			for _, gone := range []string{":budget:*", ":images:*", ":generation"} {
				b.remove(t, tag+gone)
			}
			look, err := b.look(t.Context(), b.lostShard(t)[0])
			require.NoError(t, err)
			changes, err := b.reckon(t.Context(), look, b.sums)
			require.NoError(t, err)
			require.NoError(t, end(b, running))
			require.NoError(t, b.add(t.Context(), look, changes, b.seen(look.shard)))
			require.Equal(t, map[string]map[string]int64{"settled": windows(80, 1), "refunded": windows(70, 1)}[name], b.windows(t))
		})
	}
}

// A worker that had read a batch before drains it meanwhile: look again.
func TestRebuildSeesADrain(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.spend(t, 70, 1, toOutbox)
	entries, err := b.ReadOutbox(t.Context(), domain.OutboxRead{Consumer: "late", Max: 10})
	require.NoError(t, err)
	b.remove(t, identityTag(b.identity)+":generation")
	lost := b.lostShard(t)
	err = b.Rebuild(t.Context(), lost, func(context.Context, []string) (domain.BudgetSums, error) {
		before := domain.BudgetSums{Since: b.sums.Since}
		b.write(entries[0].Record)
		return before, b.AckOutbox(t.Context(), entries)
	})
	require.ErrorIs(t, err, ErrOvertaken)
	require.NoError(t, b.Rebuild(t.Context(), lost, b.ledger))
	require.Equal(t, windows(70, 1), b.windows(t))
}

// Many windows go in several scripts.
func TestRebuildsManyWindows(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	const many = 3*rebuildChunk + 1
	for range many {
		name := "budget:day:key:" + unique("key") + ":2026-11-29"
		b.sums.Spent[name], b.sums.Owner[name] = 3, b.identity
	}
	b.remove(t, identityTag(b.identity)+":generation")
	require.NoError(t, b.Rebuild(t.Context(), b.lostShard(t), b.ledger))
	keys, err := b.scan(t.Context(), identityTag(b.identity)+":budget:*")
	require.NoError(t, err)
	require.Equal(t, many, len(keys))
}

func (b *book) url(t *testing.T) string {
	t.Helper()
	client, ok := b.client.(*redis.Client)
	require.True(t, ok)
	return "redis://" + client.Options().Addr
}

// snapshot is every key, as DUMP writes it.
func (b *book) snapshot(t *testing.T) map[string]string {
	t.Helper()
	keys, err := b.scan(t.Context(), "*")
	require.NoError(t, err)
	all := map[string]string{}
	for _, key := range keys {
		all[key], err = b.client.Dump(t.Context(), key).Result()
		require.NoError(t, err)
	}
	return all
}

// restore replaces everything by a snapshot.
func (b *book) restore(t *testing.T, all map[string]string) {
	t.Helper()
	require.NoError(t, b.client.FlushAll(t.Context()).Err())
	for key, dump := range all {
		ttl := time.Duration(0)
		if strings.Contains(key, ":res:") {
			ttl = time.Hour
		}
		require.NoError(t, b.client.Restore(t.Context(), key, ttl, dump).Err())
	}
}
