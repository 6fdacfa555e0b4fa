package authz

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// gatedKeys answers a look-up with what it held when the look-up came, but only
// once the gate is opened for it: so an answer can be stale when it arrives.
type gatedKeys struct {
	mu      sync.Mutex
	byHash  map[string]domain.VirtualKey
	calls   int
	arrived chan struct{}
	gate    chan struct{}
}

func newGatedKeys() *gatedKeys {
	return &gatedKeys{byHash: map[string]domain.VirtualKey{}, arrived: make(chan struct{}, 1000), gate: make(chan struct{})}
}

func (g *gatedKeys) Key(_ context.Context, hash string) (domain.VirtualKey, error) {
	g.mu.Lock()
	g.calls++
	k, ok := g.byHash[hash]
	g.mu.Unlock()
	g.arrived <- struct{}{}
	<-g.gate
	if !ok {
		return domain.VirtualKey{}, domain.ErrNotFound
	}
	return k, nil
}

func (g *gatedKeys) set(hash string, state domain.KeyState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.byHash[hash] = domain.VirtualKey{ID: "key_1", Hash: hash, State: state}
}

// await waits for a look-up to come.
func (g *gatedKeys) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.arrived:
	case <-time.After(20 * time.Second):
		close(g.gate)
		require.Fail(t, "no look-up came")
	}
}

func (g *gatedKeys) lookUps() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls
}

func gatedCache(t *testing.T, ttl time.Duration) (*keyCache, *gatedKeys) {
	t.Helper()
	g := newGatedKeys()
	c, err := newKeyCache(g, ttl)
	require.NoError(t, err)
	t.Cleanup(c.close)
	return c, g
}

// A record that was read before a change and arrives after the message of it
// must not take effect: neither for those who ask later nor stay in the cache.
func TestALoadInFlightDoesNotSurviveAnInvalidation(t *testing.T) {
	t.Parallel()
	for name, dropped := range map[string]string{"of the key": "h", "of everything": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, g := gatedCache(t, DefaultKeyTTL)
			g.set("h", domain.KeyActive)
			first := make(chan cachedKey, 1)
			go func() {
				found, err := c.get(t.Context(), "h")
				assert.NoError(t, err)
				first <- found
			}()
			g.await(t)
			g.set("h", domain.KeyDisabled)
			c.drop(dropped)

			// Who asks now does not wait for the old answer, nor get it.
			second := make(chan cachedKey, 1)
			go func() {
				found, err := c.get(t.Context(), "h")
				assert.NoError(t, err)
				second <- found
			}()
			g.await(t)
			require.Equal(t, 2, g.lookUps())
			close(g.gate)
			require.Equal(t, domain.KeyDisabled, (<-second).key.State)
			<-first // it began before the change, so either answer is right
			for range 3 {
				found, err := c.get(t.Context(), "h")
				require.NoError(t, err)
				require.Equal(t, domain.KeyDisabled, found.key.State, "the old record came back")
			}
		})
	}
}

func TestOneUnknownSecretCostsOneLookUp(t *testing.T) {
	t.Parallel()
	c, g := gatedCache(t, DefaultKeyTTL)
	var wg, begun sync.WaitGroup
	for range 200 {
		begun.Add(1)
		wg.Go(func() {
			begun.Done()
			found, err := c.get(t.Context(), "h")
			assert.NoError(t, err)
			assert.False(t, found.ok)
		})
	}
	begun.Wait()
	close(g.gate)
	wg.Wait()
	require.Equal(t, 1, g.lookUps())

	// A key that is made afterwards works at once: its creation is told as well.
	g.set("h", domain.KeyActive)
	c.drop("h")
	found, err := c.get(t.Context(), "h")
	require.NoError(t, err)
	require.True(t, found.ok)
	require.Equal(t, 2, g.lookUps())
}

// One caller that gives up does not fail the others that wait for the same key.
func TestALeavingCallerDoesNotFailTheOthers(t *testing.T) {
	t.Parallel()
	c, g := gatedCache(t, DefaultKeyTTL)
	g.set("h", domain.KeyActive)
	leaving, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := c.get(leaving, "h")
		gone <- err
	}()
	g.await(t)
	stays := make(chan error, 1)
	go func() {
		found, err := c.get(t.Context(), "h")
		assert.True(t, found.ok)
		stays <- err
	}()
	leave()
	close(g.gate)
	<-gone
	require.NoError(t, <-stays)
}

// Without any message the record is read again in time, and a record that took
// long to read is used the shorter.
func TestKeysAreReadAgain(t *testing.T) {
	t.Parallel()
	c, g := gatedCache(t, 50*time.Millisecond)
	close(g.gate)
	g.set("h", domain.KeyActive)
	found, err := c.get(t.Context(), "h")
	require.NoError(t, err)
	require.Equal(t, domain.KeyActive, found.key.State)
	g.set("h", domain.KeyDisabled)
	require.Eventually(t, func() bool {
		found, err := c.get(t.Context(), "h")
		return err == nil && found.key.State == domain.KeyDisabled
	}, 20*time.Second, 10*time.Millisecond)

	c.ttl = DefaultKeyTTL
	for range 1000 {
		life := c.life(cachedKey{ok: true}, 0)
		require.LessOrEqual(t, life, DefaultKeyTTL)
		require.GreaterOrEqual(t, life, DefaultKeyTTL*85/100)
	}
	require.LessOrEqual(t, c.life(cachedKey{ok: true}, 20*time.Second), 10*time.Second)
	require.Positive(t, c.life(cachedKey{ok: true}, time.Hour))
	require.Equal(t, missTTL, c.life(cachedKey{}, 0))
	c.ttl = time.Second
	require.Equal(t, time.Second, c.life(cachedKey{}, 0), "a miss lives no longer than a key")
}

func TestKeyTTLHasABound(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{-1, DefaultKeyTTL + 1} {
		_, err := New(Options{KeyTTL: ttl})
		require.ErrorContains(t, err, "at most 30s")
	}
}

// The former secret of a rotated key is the same key until its grace ends, and
// is refused from then on although its record lies in the cache.
func TestGraceOfAFormerSecret(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := now
	f.server.now = func() time.Time { return at }
	key := f.keys.byID[domain.HashKey(f.secret)]
	former := f.secret
	secret, err := domain.NewKeySecret()
	require.NoError(t, err)
	key = key.Rotated(domain.KeyRotation{Hash: domain.HashKey(secret), At: now, Grace: time.Hour})
	f.keys.byID[key.Hash], f.keys.byID[key.PreviousHash] = key, key
	ask := func(secret string) (domain.Code, string) {
		f.secret = secret
		got, err := f.server.check(t.Context(), f.request(hello))
		if err != nil {
			return domain.AsError(err).Code, ""
		}
		return "", got.Decision.KeyID
	}
	for _, secret := range []string{former, secret} {
		code, id := ask(secret)
		require.Empty(t, code)
		require.Equal(t, "key_1", id)
	}
	at = now.Add(time.Hour)
	code, _ := ask(former)
	require.Equal(t, domain.CodeKeyExpired, code)
	code, id := ask(secret)
	require.Empty(t, code)
	require.Equal(t, "key_1", id)
}

func TestModelPatternsOfAKey(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]domain.Code{
		"m": "", "m*": "", "*": "", "*m": "", "": domain.CodeModelNotFound, "M": domain.CodeModelNotFound,
		"n*": domain.CodeModelNotFound, "mm*": domain.CodeModelNotFound, "m?": domain.CodeModelNotFound, ".": domain.CodeModelNotFound,
	} {
		f := newFixture(t)
		f.setKey(domain.VirtualKey{ID: "key_1", State: domain.KeyActive, Models: []string{pattern}})
		_, err := f.server.check(t.Context(), f.request(hello))
		var got domain.Code
		if err != nil {
			got = domain.AsError(err).Code
		}
		require.Equal(t, want, got, pattern)
	}
}
