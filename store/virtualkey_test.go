package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func newKey() domain.VirtualKey {
	return domain.VirtualKey{
		ID: unique("key"), Hash: domain.HashKey(unique("secret")), Identity: unique("identity"), Name: "a name", Policy: "p",
		Models: []string{"a/b:c", "with\nnewline", `"quoted"`}, State: domain.KeyActive,
		CreatedAt: time.UnixMilli(1_790_000_000_123).UTC(), ExpiresAt: time.UnixMilli(1_890_000_000_000).UTC(),
	}
}

func TestKeysComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	plain := domain.VirtualKey{ID: unique("key"), Hash: domain.HashKey(unique("secret")), State: domain.KeyActive}
	for name, want := range map[string]domain.VirtualKey{"all fields": newKey(), "as few as can be": plain} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, s.PutKey(ctx, want))
			got, err := s.Key(ctx, want.Hash)
			require.NoError(t, err)
			assert.Equal(t, want, got)
			all, err := s.Keys(ctx)
			require.NoError(t, err)
			assert.Contains(t, all, want)
		})
	}
}

func TestKeyStates(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	k := newKey()
	require.NoError(t, s.PutKey(ctx, k))
	require.NoError(t, s.SetKeyState(ctx, k.ID, domain.KeyDisabled))
	got, err := s.Key(ctx, k.Hash)
	require.NoError(t, err)
	k.State = domain.KeyDisabled
	assert.Equal(t, k, got)
}

func TestMissingAndBrokenKeys(t *testing.T) {
	t.Parallel()
	s, ctx := shared(t), context.Background()
	_, err := s.Key(ctx, domain.HashKey(unique("nobody")))
	require.ErrorIs(t, err, domain.ErrNotFound)
	require.ErrorIs(t, s.SetKeyState(ctx, unique("nobody"), domain.KeyDisabled), domain.ErrNotFound)
	require.Error(t, s.PutKey(ctx, domain.VirtualKey{ID: "only an id"}))
	for _, field := range []string{"models", "expires_ms"} {
		k := newKey()
		require.NoError(t, s.PutKey(ctx, k))
		require.NoError(t, s.client.HDel(ctx, keyIndex, k.ID).Err()) // the other tests list keys
		require.NoError(t, s.client.HDel(ctx, recordKey(k.Hash), field).Err())
		_, err := s.Key(ctx, k.Hash)
		require.Error(t, err, "a key without %s must not become one without bounds", field)
		require.NotErrorIs(t, err, domain.ErrNotFound)
	}
}

func TestWatchersHearOfEveryChange(t *testing.T) {
	t.Parallel()
	s := guardedStore(t)
	ctx, stop := context.WithCancel(context.Background())
	heard, done := make(chan string, 100), make(chan error)
	go func() { done <- s.WatchKeys(ctx, func(hash string) { heard <- hash }) }()
	next := func() string {
		select {
		case hash := <-heard:
			return hash
		case <-time.After(30 * time.Second):
			return "nothing was heard"
		}
	}
	require.Empty(t, next(), "the cache is dropped first")
	k := newKey()
	require.NoError(t, s.PutKey(ctx, k))
	require.Equal(t, k.Hash, next())
	require.NoError(t, s.SetKeyState(ctx, k.ID, domain.KeyDisabled))
	require.Equal(t, k.Hash, next())

	s.server.Pause(t)
	eventually(t, "the freeze is seen", func() bool { return !s.Alive() })
	s.server.Resume(t)
	require.Empty(t, next(), "changes may have been missed")
	require.NoError(t, s.PutKey(ctx, k))
	require.Equal(t, k.Hash, next())
	stop()
	require.NoError(t, <-done)
}
