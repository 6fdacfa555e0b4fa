package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
	"keyway/store/storetest"
)

// inBackground is what is known of a request whose response goes on.
func inBackground(d domain.Decision) domain.Settlement {
	s := ends(d, 7, 0)
	s.Stored = domain.StoredID{Identity: d.Identity, ID: "resp_" + d.RequestID, Channel: d.Candidates[0].Channel, Model: d.Model}
	return s
}

// told is s as it comes out of the store: limits do not travel.
func told(t *testing.T, s domain.Settlement) domain.Settlement {
	t.Helper()
	raw, err := keywayv1.MarshalSettlement(s)
	require.NoError(t, err)
	out, err := keywayv1.UnmarshalSettlement(raw)
	require.NoError(t, err)
	return out
}

// A response in the background has one follower at a time: the one that holds its
// lease, and after it whoever takes over, with all that the first one knew.
func TestFollowing(t *testing.T) {
	t.Parallel()
	s, ctx := begun(t, storetest.Start(t).URL), context.Background()
	o := newTenant()
	decide := func(lease time.Duration) domain.Settlement {
		d := o.decide(o.hold(domain.LimitInFlight, 10, 1))
		d.Lease = lease
		admit(t, s, d)
		return inBackground(d)
	}
	follow := func(by string, list ...domain.Settlement) []domain.Following {
		t.Helper()
		got, err := s.Follow(ctx, by, list)
		require.NoError(t, err)
		return got
	}
	handOver := func(by string, list ...domain.Settlement) []domain.Following {
		t.Helper()
		got, err := s.HandOver(ctx, by, list)
		require.NoError(t, err)
		return got
	}
	takeOver := func(by string, most int) []domain.Settlement {
		t.Helper()
		got, err := s.TakeOver(ctx, by, time.Hour, most)
		require.NoError(t, err)
		return got
	}
	one := decide(time.Hour)
	held, ended, unknown, elsewhere := domain.FollowingHeld, domain.FollowingEnded, domain.FollowingUnknown, domain.FollowingElsewhere
	assert.Equal(t, []domain.Following{held}, follow("a", one))
	assert.Equal(t, []domain.Following{held}, follow("a", one), "again")
	assert.Equal(t, []domain.Following{elsewhere}, follow("b", one))
	assert.Empty(t, takeOver("b", 10), "its lease lives")
	assert.Equal(t, []domain.Following{elsewhere}, handOver("b", one), "only its holder gives it away")
	assert.Empty(t, takeOver("b", 10))
	expires, err := s.client.PTTL(ctx, followedKey(domain.ShardOf(o.identity))).Result()
	require.NoError(t, err)
	assert.InDelta(t, keepClosed, expires, float64(time.Minute))

	assert.Equal(t, []domain.Following{held}, handOver("a", one))
	assert.Equal(t, []domain.Following{held}, handOver("a", one), "nobody has come yet")
	assert.Equal(t, []domain.Settlement{told(t, one)}, takeOver("b", 10))
	assert.Empty(t, takeOver("c", 10), "once")
	assert.Equal(t, []domain.Following{elsewhere}, handOver("a", one), "the former one learns of it")
	assert.Equal(t, []domain.Following{elsewhere}, follow("a", one))

	// A lease that ends without a word is free for anyone, but only its half: the
	// sweeper has nothing to do until the rest is over.
	dying := decide(600 * time.Millisecond)
	follow("a", dying)
	var taken []domain.Settlement
	eventually(t, "the lease of the dead ends", func() bool {
		taken = takeOver("b", 10)
		return len(taken) > 0
	})
	assert.Equal(t, []domain.Settlement{told(t, dying)}, taken)
	time.Sleep(700 * time.Millisecond)
	expired, err := s.Expired(ctx, 10)
	require.NoError(t, err)
	assert.Empty(t, expired, "who takes over keeps the reservation open, for the region's lease")

	// Nothing is left of what has ended, and a late word does not bring it back.
	_, err = s.Settle(ctx, one)
	require.NoError(t, err)
	_, err = s.Settle(ctx, dying)
	require.NoError(t, err)
	assert.Equal(t, []domain.Following{ended, ended}, follow("b", one, dying))
	assert.Equal(t, []domain.Following{ended, ended}, handOver("b", one, dying))
	assert.Empty(t, takeOver("c", 10))
	fields, err := s.client.HKeys(ctx, reservationKey(domain.ShardOf(o.identity), one.Decision.RequestID)).Result()
	require.NoError(t, err)
	assert.Equal(t, []string{"state"}, fields)
	left, err := s.client.Exists(ctx, followedKey(domain.ShardOf(o.identity))).Result()
	require.NoError(t, err)
	assert.Zero(t, left)

	nobody := o.decide()
	assert.Equal(t, []domain.Following{unknown}, follow("a", inBackground(nobody)))
	left, err = s.client.Exists(ctx, reservationKey(domain.ShardOf(o.identity), nobody.RequestID)).Result()
	require.NoError(t, err)
	assert.Zero(t, left)
}

// What nobody takes over is the sweeper's: it counts as one that ran.
func TestWhatNobodyFollowsIsSwept(t *testing.T) {
	t.Parallel()
	s, ctx := begun(t, storetest.Start(t).URL), context.Background()
	o := newTenant()
	d := o.decide(o.hold(domain.LimitInFlight, 10, 1))
	d.Lease = short
	admit(t, s, d)
	_, err := s.Follow(ctx, "a", []domain.Settlement{inBackground(d)})
	require.NoError(t, err)
	eventually(t, "the sweeper sees it", func() bool {
		expired, err := s.Expired(ctx, 10)
		require.NoError(t, err)
		return len(expired) == 1 && expired[0].Renewed && expired[0].Decision.RequestID == d.RequestID
	})
}

// Many are shared out among those who ask; each goes to one.
func TestTakingOverIsBounded(t *testing.T) {
	t.Parallel()
	s, ctx := begun(t, storetest.Start(t).URL), context.Background()
	want := map[string]bool{}
	var list []domain.Settlement
	for range 2*renewBatch + 10 {
		o := newTenant()
		d := o.decide(o.hold(domain.LimitInFlight, 10, 1))
		admit(t, s, d)
		want[d.RequestID] = true
		list = append(list, inBackground(d))
	}
	states, err := s.Follow(ctx, "a", list)
	require.NoError(t, err)
	require.Len(t, states, len(list))
	_, err = s.HandOver(ctx, "a", list)
	require.NoError(t, err)
	for _, by := range []string{"b", "c", "b", "c", "b"} {
		taken, err := s.TakeOver(ctx, by, time.Hour, 150)
		require.NoError(t, err)
		require.LessOrEqual(t, len(taken), 150)
		for _, one := range taken {
			require.True(t, want[one.Decision.RequestID], "it was taken before")
			delete(want, one.Decision.RequestID)
		}
	}
	assert.Empty(t, want)
}

// What cannot be read does not come up again and again: the sweeper ends it.
func TestAnUnreadableFollowingIsLeftToTheSweeper(t *testing.T) {
	t.Parallel()
	s, ctx := begun(t, storetest.Start(t).URL), context.Background()
	o := newTenant()
	good, bad := o.decide(), o.decide()
	admit(t, s, good)
	admit(t, s, bad)
	list := []domain.Settlement{inBackground(good), inBackground(bad)}
	_, err := s.Follow(ctx, "a", list)
	require.NoError(t, err)
	_, err = s.HandOver(ctx, "a", list)
	require.NoError(t, err)
	shard := domain.ShardOf(o.identity)
	require.NoError(t, s.client.HSet(ctx, reservationKey(shard, bad.RequestID), "following", "\xff").Err())
	taken, err := s.TakeOver(ctx, "b", 50*time.Millisecond, 10)
	require.Error(t, err)
	require.Len(t, taken, 1)
	assert.Equal(t, good.RequestID, taken[0].Decision.RequestID)
	_, err = s.HandOver(ctx, "b", taken)
	require.NoError(t, err)
	eventually(t, "its lease is over", func() bool {
		expired, err := s.Expired(ctx, 10)
		require.NoError(t, err)
		return len(expired) == 1 && expired[0].Decision.RequestID == bad.RequestID
	})
	taken, err = s.TakeOver(ctx, "b", time.Hour, 10)
	require.NoError(t, err)
	assert.Len(t, taken, 1)
}
