package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

// rotation makes a new secret with a grace of an hour.
func rotation() domain.KeyRotation {
	return domain.KeyRotation{
		Hash: domain.HashKey(unique("secret")), At: time.UnixMilli(1_790_000_100_000).UTC(), Grace: time.Hour,
	}
}

// requireKey expects want under every hash and in the list, and nothing under gone.
func requireKey(t testing.TB, s *Store, want domain.VirtualKey, gone ...string) {
	t.Helper()
	ctx := context.Background()
	hashes := []string{want.Hash}
	if want.PreviousHash != "" {
		hashes = append(hashes, want.PreviousHash)
	}
	for _, hash := range hashes {
		got, err := s.Key(ctx, hash)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, hash := range gone {
		_, err := s.Key(ctx, hash)
		require.ErrorIs(t, err, domain.ErrNotFound)
	}
	all, err := s.Keys(ctx)
	require.NoError(t, err)
	found := 0
	for _, k := range all {
		if k.ID == want.ID {
			require.Equal(t, want, k)
			found++
		}
	}
	require.Equal(t, 1, found, "the list has it once")
}

// Everything that happens to a key, on a single server and on a cluster, where
// the records of one key lie on different nodes.
func TestALifeOfAKey(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *Store{
		"single":  func(t *testing.T) *Store { return shared(t) },
		"cluster": func(t *testing.T) *Store { return open(t, Options{URL: storetest.StartCluster(t, 3)}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := start(t), context.Background()
			k := newKey()
			require.NoError(t, s.PutKey(ctx, k))

			k.ExpiresAt = time.UnixMilli(1_800_000_000_000).UTC()
			require.NoError(t, s.SetKeyExpiry(ctx, k.ID, k.ExpiresAt))
			requireKey(t, s, k)
			k.ExpiresAt = time.Time{}
			require.NoError(t, s.SetKeyExpiry(ctx, k.ID, k.ExpiresAt))
			requireKey(t, s, k)

			var gone []string
			for range 3 {
				gone = append(gone, k.PreviousHash)
				r := rotation()
				k = k.Rotated(r)
				made, err := s.RotateKey(ctx, k.ID, r)
				require.NoError(t, err)
				require.Equal(t, k, made)
				requireKey(t, s, k, gone...)
			}

			k.State = domain.KeyDisabled
			require.NoError(t, s.SetKeyState(ctx, k.ID, k.State))
			requireKey(t, s, k, gone...)
			k.State = domain.KeyActive
			require.NoError(t, s.SetKeyState(ctx, k.ID, k.State))
			requireKey(t, s, k, gone...)

			require.NoError(t, s.DeleteKey(ctx, k.ID))
			for _, hash := range append(gone, k.Hash, k.PreviousHash) {
				_, err := s.Key(ctx, hash)
				require.ErrorIs(t, err, domain.ErrNotFound)
			}
			require.Zero(t, s.client.Exists(ctx, recordKey(k.Hash)).Val())
			require.Zero(t, s.client.Exists(ctx, recordKey(k.PreviousHash)).Val())
			for _, hash := range gone[1:] {
				require.Positive(t, s.client.PTTL(ctx, recordKey(hash)).Val(), "what is left of it goes by itself")
			}
			require.ErrorIs(t, s.client.HGet(ctx, keyIndex, k.ID).Err(), redis.Nil)
			for what, err := range map[string]error{
				"delete": s.DeleteKey(ctx, k.ID), "state": s.SetKeyState(ctx, k.ID, domain.KeyActive),
				"expiry": s.SetKeyExpiry(ctx, k.ID, time.Time{}),
				"rotate": func() error { _, err := s.RotateKey(ctx, k.ID, rotation()); return err }(),
			} {
				require.ErrorIs(t, err, domain.ErrNotFound, what)
				require.NotErrorIs(t, err, domain.ErrStoreDown, what)
			}
		})
	}
}

// Whatever the moment at which a rotation dies, the key is found under its id
// and no secret works that no act on the key reaches.
func TestARotationThatIsCutShort(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	write := func(k domain.VirtualKey, more ...any) {
		fields, err := keyFields(k)
		require.NoError(t, err)
		require.NoError(t, s.client.HSet(ctx, recordKey(k.Hash), append(fields, more...)...).Err())
	}
	alias := func(from, to string) {
		require.NoError(t, s.client.Del(ctx, recordKey(from)).Err())
		require.NoError(t, s.client.HSet(ctx, recordKey(from), fieldAlias, to).Err())
	}
	t.Run("before it is made", func(t *testing.T) {
		t.Parallel()
		k := newKey()
		require.NoError(t, s.PutKey(ctx, k))
		lost := k.Rotated(rotation())
		write(lost, fieldPending, k.Hash)
		requireKey(t, s, k, lost.Hash)
		next := rotation()
		_, err := s.RotateKey(ctx, k.ID, next)
		require.NoError(t, err)
		requireKey(t, s, k.Rotated(next), lost.Hash)
	})
	t.Run("before the index follows", func(t *testing.T) {
		t.Parallel()
		k := newKey()
		require.NoError(t, s.PutKey(ctx, k))
		for range 3 {
			next := k.Rotated(rotation())
			write(next, fieldPending, k.Hash)
			alias(k.Hash, next.Hash)
			requireKey(t, s, next)
			k = next
		}
		require.NoError(t, s.SetKeyState(ctx, k.ID, domain.KeyDisabled))
		k.State = domain.KeyDisabled
		requireKey(t, s, k)
		next := rotation()
		_, err := s.RotateKey(ctx, k.ID, next)
		require.NoError(t, err)
		requireKey(t, s, k.Rotated(next), k.PreviousHash)
		require.NoError(t, s.DeleteKey(ctx, k.ID))
		for _, hash := range []string{k.Hash, next.Hash} {
			_, err := s.Key(ctx, hash)
			require.ErrorIs(t, err, domain.ErrNotFound)
		}
	})
	t.Run("whose previous secret is taken back", func(t *testing.T) {
		t.Parallel()
		k := newKey()
		require.NoError(t, s.PutKey(ctx, k))
		former := k.Hash
		k, err := s.RotateKey(ctx, k.ID, rotation())
		require.NoError(t, err)
		k.PreviousHash, k.PreviousUntil = "", time.Time{}
		require.NoError(t, s.PutKey(ctx, k))
		requireKey(t, s, k, former)
	})
	t.Run("a deletion", func(t *testing.T) {
		t.Parallel()
		k := newKey()
		require.NoError(t, s.PutKey(ctx, k))
		require.NoError(t, s.client.Del(ctx, recordKey(k.Hash)).Err())
		require.ErrorIs(t, s.DeleteKey(ctx, k.ID), domain.ErrNotFound)
		require.ErrorIs(t, s.client.HGet(ctx, keyIndex, k.ID).Err(), redis.Nil)
	})
}

// Changes that come at once lose nothing: the key ends disabled, with the last
// secret, and of all secrets that were handed out only two lead to it.
func TestChangesAtOnce(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	for range 20 {
		k := newKey()
		require.NoError(t, s.PutKey(ctx, k))
		var (
			mu     sync.Mutex
			hashes = []string{k.Hash}
			wg     sync.WaitGroup
		)
		for range 4 {
			wg.Go(func() {
				r := rotation()
				_, err := s.RotateKey(ctx, k.ID, r)
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				hashes = append(hashes, r.Hash)
			})
		}
		wg.Go(func() { assert.NoError(t, s.SetKeyState(ctx, k.ID, domain.KeyDisabled)) })
		at := time.UnixMilli(1_800_000_000_000).UTC()
		wg.Go(func() { assert.NoError(t, s.SetKeyExpiry(ctx, k.ID, at)) })
		wg.Wait()
		valid := 0
		for _, hash := range hashes {
			got, err := s.Key(ctx, hash)
			if err != nil {
				require.ErrorIs(t, err, domain.ErrNotFound)
				continue
			}
			valid++
			require.Equal(t, domain.KeyDisabled, got.State)
			require.Equal(t, at, got.ExpiresAt)
			requireKey(t, s, got)
		}
		require.Equal(t, 2, valid)
		require.NoError(t, s.DeleteKey(ctx, k.ID))
		for _, hash := range hashes {
			_, err := s.Key(ctx, hash)
			require.ErrorIs(t, err, domain.ErrNotFound)
		}
	}
}

// Watchers hear of every secret that a change concerns.
func TestWatchersHearOfBothSecrets(t *testing.T) {
	t.Parallel()
	s := guardedStore(t)
	ctx, stop := context.WithCancel(context.Background())
	heard, done := make(chan string, 100), make(chan error)
	go func() { done <- s.WatchKeys(ctx, func(hash string) { heard <- hash }) }()
	hear := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			select {
			case hash := <-heard:
				got = append(got, hash)
			case <-time.After(30 * time.Second):
				require.Fail(t, "nothing was heard", "after %v", got)
			}
		}
		require.ElementsMatch(t, want, got)
	}
	hear("")
	k := newKey()
	require.NoError(t, s.PutKey(ctx, k))
	hear(k.Hash)
	first, second := rotation(), rotation()
	_, err := s.RotateKey(ctx, k.ID, first)
	require.NoError(t, err)
	hear(k.Hash, first.Hash)
	_, err = s.RotateKey(ctx, k.ID, second)
	require.NoError(t, err)
	hear(k.Hash, first.Hash, second.Hash)
	require.NoError(t, s.SetKeyState(ctx, k.ID, domain.KeyDisabled))
	hear(first.Hash, second.Hash)
	require.NoError(t, s.SetKeyExpiry(ctx, k.ID, time.Now()))
	hear(first.Hash, second.Hash)
	require.NoError(t, s.DeleteKey(ctx, k.ID))
	hear(first.Hash, second.Hash)
	stop()
	require.NoError(t, <-done)
}
