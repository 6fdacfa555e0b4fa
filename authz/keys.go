package authz

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/maypok86/otter/v2"

	"keyway/domain"
)

// The key cache's bounds. A disabled key is refused at once where the
// invalidation arrives and within keyTTL where it does not (SPEC §6).
const (
	keyCacheSize = 100_000
	keyTTL       = 30 * time.Second
	// keyJitter spreads reloads of keys that were loaded together: 30 s less 0 to 15 %.
	keyJitter = 0.15
	// missTTL is how long an unknown secret spares the store.
	missTTL = 5 * time.Second
)

// cachedKey is one cache entry; ok is false for a secret that nobody has.
type cachedKey struct {
	key domain.VirtualKey
	ok  bool
}

// keyCache is the L1 in front of the store: bounded, one load per secret at a time.
type keyCache struct {
	cache *otter.Cache[string, cachedKey]
	load  otter.LoaderFunc[string, cachedKey]
}

func newKeyCache(keys Keys) (*keyCache, error) {
	cache, err := otter.New(&otter.Options[string, cachedKey]{
		MaximumSize: keyCacheSize,
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[string, cachedKey]) time.Duration {
			if !e.Value.ok {
				return missTTL
			}
			return time.Duration(float64(keyTTL) * (1 - keyJitter*rand.Float64()))
		}),
	})
	if err != nil {
		return nil, err
	}
	return &keyCache{cache: cache, load: func(ctx context.Context, hash string) (cachedKey, error) {
		key, err := keys.Key(ctx, hash)
		switch {
		case errors.Is(err, domain.ErrNotFound):
			return cachedKey{}, nil
		case err != nil:
			return cachedKey{}, err
		}
		return cachedKey{key: key, ok: true}, nil
	}}, nil
}

// get returns the record of hash; ok is false when nobody has it.
func (c *keyCache) get(ctx context.Context, hash string) (cachedKey, error) {
	return c.cache.Get(ctx, hash, c.load)
}

// drop forgets one hash, or everything for "".
func (c *keyCache) drop(hash string) {
	if hash == "" {
		c.cache.InvalidateAll()
		return
	}
	c.cache.Invalidate(hash)
}

func (c *keyCache) close() { c.cache.StopAllGoroutines() }

// keyHeaders are where a virtual key may stand, in the order in which they are looked at.
var keyHeaders = []string{"authorization", "x-api-key", "api-key", "x-goog-api-key"}

// errNoKey and errBadKey differ in words only: neither says whether a key exists.
var (
	errNoKey = &domain.Error{Code: domain.CodeInvalidKey, NoRetry: true,
		Message: "No API key was sent. Send your Keyway key as \"Authorization: Bearer kw_…\" or \"x-api-key: kw_…\"."}
	errBadKey = &domain.Error{Code: domain.CodeInvalidKey, NoRetry: true,
		Message: "The API key is not valid for this gateway. Check it, or ask your operator for a new one."}
	errTwoKeys = &domain.Error{Code: domain.CodeInvalidKey, NoRetry: true,
		Message: "Two different API keys were sent. Send exactly one."}
)

// resolveKey finds the caller's key and whether it may be used.
func (s *Server) resolveKey(ctx context.Context, r Request) (domain.VirtualKey, error) {
	secret, err := secretOf(r.Headers)
	if err != nil {
		return domain.VirtualKey{}, err
	}
	found, err := s.keys.get(ctx, domain.HashKey(secret))
	if err != nil {
		return domain.VirtualKey{}, errStoreAway
	}
	if !found.ok {
		return domain.VirtualKey{}, errBadKey
	}
	if err := found.key.Check(s.now()); err != nil {
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
