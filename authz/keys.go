package authz

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"keyway/domain"
)

// The key cache's bounds. A disabled key is refused at once where the
// invalidation arrives and within the TTL where it does not (SPEC §6).
const (
	keyCacheSize = 100_000
	// DefaultKeyTTL is how long a key's record may be used without being read
	// again, and the most that Options.KeyTTL may be.
	DefaultKeyTTL = 30 * time.Second
	// keyJitter spreads reloads of keys that were loaded together: the TTL less 0 to 15 %.
	keyJitter = 0.15
	// missTTL is how long an unknown secret spares the store.
	missTTL = 5 * time.Second
)

// cachedKey is one cache entry; ok is false for a secret that nobody has.
type cachedKey struct {
	key domain.VirtualKey
	ok  bool
	// asked is when the store was asked: what it answered may be as old as that.
	asked time.Time
}

// cacheKey is a secret's hash in one generation of the cache. A load that runs
// while everything is dropped ends in a generation that nobody asks any more.
type cacheKey struct {
	generation uint64
	hash       string
}

// keyCache is the L1 in front of the store: bounded, one load per secret at a
// time. Neither a record that was loaded before an invalidation nor one that is
// being loaded when it comes is used after it.
type keyCache struct {
	cache      *otter.Cache[cacheKey, cachedKey]
	load       otter.LoaderFunc[cacheKey, cachedKey]
	ttl        time.Duration
	generation atomic.Uint64
}

func newKeyCache(keys Keys, ttl time.Duration) (*keyCache, error) {
	c := &keyCache{ttl: ttl}
	cache, err := otter.New(&otter.Options[cacheKey, cachedKey]{
		MaximumSize: keyCacheSize,
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[cacheKey, cachedKey]) time.Duration {
			return c.life(e.Value, time.Since(e.Value.asked))
		}),
	})
	if err != nil {
		return nil, err
	}
	c.cache = cache
	c.load = func(ctx context.Context, at cacheKey) (cachedKey, error) {
		asked := time.Now()
		key, err := keys.Key(ctx, at.hash)
		switch {
		case errors.Is(err, domain.ErrNotFound):
			return cachedKey{asked: asked}, nil
		case err != nil:
			return cachedKey{}, err
		}
		return cachedKey{key: key, ok: true, asked: asked}, nil
	}
	return c, nil
}

// life is how long an entry may still be used when its look-up took as long as
// took; always positive.
func (c *keyCache) life(entry cachedKey, took time.Duration) time.Duration {
	life := time.Duration(float64(c.ttl) * (1 - keyJitter*rand.Float64()))
	if !entry.ok {
		life = min(missTTL, c.ttl)
	}
	return max(life-took, time.Nanosecond)
}

// get returns the record of hash; ok is false when nobody has it.
func (c *keyCache) get(ctx context.Context, hash string) (cachedKey, error) {
	return c.cache.Get(ctx, cacheKey{c.generation.Load(), hash}, c.load)
}

// drop forgets one hash, or everything for "".
func (c *keyCache) drop(hash string) {
	if hash == "" {
		c.generation.Add(1)
		c.cache.InvalidateAll()
		return
	}
	c.cache.Invalidate(cacheKey{c.generation.Load(), hash})
}

func (c *keyCache) close() { c.cache.StopAllGoroutines() }

// keyHeaders are where a virtual key may stand, in the order in which they are looked at.
var keyHeaders = []string{"authorization", "x-api-key", "api-key", "x-goog-api-key"}

// errNoKey and errBadKey differ in words only: neither says whether a key exists.
var (
	errNoKey = &domain.Error{
		Code: domain.CodeInvalidKey, NoRetry: true,
		Message: "No API key was sent. Send your Keyway key as \"Authorization: Bearer kw_…\" or \"x-api-key: kw_…\".",
	}
	errBadKey = &domain.Error{
		Code: domain.CodeInvalidKey, NoRetry: true,
		Message: "The API key is not valid for this gateway. Check it, or ask your operator for a new one.",
	}
	errTwoKeys = &domain.Error{
		Code: domain.CodeInvalidKey, NoRetry: true,
		Message: "Two different API keys were sent. Send exactly one.",
	}
)

// resolveKey finds the caller's key and whether it may be used.
func (s *Server) resolveKey(ctx context.Context, r Request) (domain.VirtualKey, error) {
	secret, err := secretOf(r.Headers)
	if err != nil {
		return domain.VirtualKey{}, err
	}
	hash := domain.HashKey(secret)
	found, err := s.keys.get(ctx, hash)
	if err != nil {
		return domain.VirtualKey{}, errStoreAway
	}
	if !found.ok {
		return domain.VirtualKey{}, errBadKey
	}
	if err := found.key.CheckSecret(hash, s.now()); err != nil {
		return domain.VirtualKey{}, err
	}
	return found.key, nil
}

// secretOf picks the virtual key among the credential carriers. An SDK may
// send a placeholder in one and the key in another, so what cannot be a
// virtual key is passed over when one that can is there.
func secretOf(headers map[string]string) (string, error) {
	secret, sent := "", false
	for _, name := range keyHeaders {
		value := strings.TrimSpace(headers[name])
		if value == "" {
			continue
		}
		sent = true
		if name == "authorization" {
			scheme, rest, _ := strings.Cut(value, " ")
			if !strings.EqualFold(scheme, "bearer") {
				continue
			}
			value = strings.TrimSpace(rest)
		}
		if !domain.WellFormedKey(value) {
			continue
		}
		if secret != "" && secret != value {
			return "", errTwoKeys
		}
		secret = value
	}
	switch {
	case secret != "":
		return secret, nil
	case sent:
		return "", errBadKey
	}
	return "", errNoKey
}
