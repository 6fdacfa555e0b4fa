package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
)

// storedKey is where the channel of an identity's stored id stands, in the
// identity's shard. Both are hashed together: an id is a provider's or a
// client's text of any length, and nobody else's id may ever be found.
func storedKey(identity, id string) string {
	sum := sha256.Sum256([]byte(identity + "\x00" + id))
	return identityTag(identity) + ":stored:" + hex.EncodeToString(sum[:16])
}

// Remember keeps which channel made what, for keep. Repeating it is harmless.
func (s *Store) Remember(ctx context.Context, made domain.StoredID, keep time.Duration) error {
	if made.Identity == "" || made.ID == "" || made.Channel == "" || keep <= 0 {
		return fmt.Errorf("remember stored id: %+v for %s is not whole", made, keep)
	}
	return s.do(ctx, "remember stored id", func(ctx context.Context) error {
		// A channel's name has no blank; a model's has none either.
		return s.client.Set(ctx, storedKey(made.Identity, made.ID), made.Channel+" "+made.Model, keep).Err()
	})
}

// Recall finds what made id for identity; domain.ErrNotFound where nothing of
// this identity is known under it.
func (s *Store) Recall(ctx context.Context, identity, id string) (domain.StoredID, error) {
	var value string
	err := s.do(ctx, "recall stored id", func(ctx context.Context) (err error) {
		value, err = s.client.Get(ctx, storedKey(identity, id)).Result()
		return err
	})
	if errors.Is(err, redis.Nil) {
		return domain.StoredID{}, fmt.Errorf("recall stored id: %w", domain.ErrNotFound)
	}
	if err != nil {
		return domain.StoredID{}, err
	}
	channel, model, _ := strings.Cut(value, " ")
	return domain.StoredID{Identity: identity, ID: id, Channel: channel, Model: model}, nil
}

// Forget ends what Remember began: the provider has deleted it.
func (s *Store) Forget(ctx context.Context, identity, id string) error {
	return s.do(ctx, "forget stored id", func(ctx context.Context) error {
		return s.client.Del(ctx, storedKey(identity, id)).Err()
	})
}
