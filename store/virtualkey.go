package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
)

// A key's record is a hash under the SHA-256 of its secret; the index leads
// from its public id to there. The record is written first: an index entry
// without a record is passed over, a record without an entry would work and be
// invisible.
//
// A rotation moves the record to the hash of the new secret and leaves an alias
// at the former one. That alias is the one write that makes it: until then the
// new record is pending and works for nobody.
const (
	// fieldAlias, in an alias, is the hash to which the record has moved.
	fieldAlias = "to"
	// fieldPending is the hash whose alias has to point here for the record to count.
	fieldPending = "pending"
)

// maxMoves bounds how many aliases lead from an index entry to its record: one
// for each rotation that has not yet, or never, corrected the entry.
const maxMoves = 64

// Key returns the record of the key one of whose secrets has hash;
// domain.ErrNotFound when there is none. Whether the secret still works is for
// VirtualKey.CheckSecret to say.
func (s *Store) Key(ctx context.Context, hash string) (k domain.VirtualKey, err error) {
	err = s.doKey(ctx, "read key", func(ctx context.Context) error {
		fields, err := s.client.HGetAll(ctx, recordKey(hash)).Result()
		if err != nil {
			return err
		}
		current := hash
		if to := fields[fieldAlias]; to != "" {
			current = to
			if fields, err = s.client.HGetAll(ctx, recordKey(current)).Result(); err != nil {
				return err
			}
		} else if from := fields[fieldPending]; from != "" {
			to, err := s.client.HGet(ctx, recordKey(from), fieldAlias).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			if to != hash {
				return keyError{domain.ErrNotFound}
			}
		}
		k, err = readKey(current, fields)
		if err == nil && hash != k.Hash && hash != k.PreviousHash {
			return keyError{domain.ErrNotFound}
		}
		return err
	})
	if err != nil {
		return domain.VirtualKey{}, err
	}
	return k, nil
}

// keyError is what is wrong with a key, not with the store.
type keyError struct{ err error }

func (e keyError) Error() string { return e.err.Error() }

// doKey is do for commands that may end with a keyError.
func (s *Store) doKey(ctx context.Context, act string, commands func(context.Context) error) error {
	var own keyError
	err := s.do(ctx, act, func(ctx context.Context) error {
		err := commands(ctx)
		if errors.As(err, &own) {
			return nil
		}
		return err
	})
	if err == nil && own.err != nil {
		return fmt.Errorf("%s: %w", act, own.err)
	}
	return err
}

// PutKey writes the record of a key, new or changed, and tells every watcher.
func (s *Store) PutKey(ctx context.Context, k domain.VirtualKey) error {
	if k.ID == "" || k.Hash == "" {
		return errors.New("write key: it has no id or no hash")
	}
	fields, err := keyFields(k)
	if err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	return s.do(ctx, "write key", func(ctx context.Context) error {
		if err := s.client.HSet(ctx, recordKey(k.Hash), fields...).Err(); err != nil {
			return err
		}
		if err := s.client.HSet(ctx, keyIndex, k.ID, k.Hash).Err(); err != nil {
			return err
		}
		return s.tellKeys(ctx, k.Hash, k.PreviousHash)
	})
}

// tellKeys lets every watcher know that what lies under hashes has changed.
func (s *Store) tellKeys(ctx context.Context, hashes ...string) error {
	for _, hash := range hashes {
		if hash == "" {
			continue // it would drop every cache
		}
		if err := s.client.Publish(ctx, keyChannel, hash).Err(); err != nil {
			return err
		}
	}
	return nil
}

// Keys returns every key, in no order.
func (s *Store) Keys(ctx context.Context) (keys []domain.VirtualKey, err error) {
	err = s.doKey(ctx, "list keys", func(ctx context.Context) error {
		keys = nil
		index, err := s.client.HGetAll(ctx, keyIndex).Result()
		if err != nil || len(index) == 0 {
			return err
		}
		pipe := s.client.Pipeline()
		cmds := make(map[string]*redis.MapStringStringCmd, len(index))
		for id, hash := range index {
			cmds[id] = pipe.HGetAll(ctx, recordKey(hash))
		}
		if _, err = pipe.Exec(ctx); err != nil {
			return err
		}
		for id, cmd := range cmds {
			hash, fields := index[id], cmd.Val()
			if fields[fieldAlias] != "" {
				if hash, fields, err = s.follow(ctx, hash, fields); err != nil {
					return err
				}
			}
			k, err := readKey(hash, fields)
			if errors.Is(err, keyError{domain.ErrNotFound}) {
				continue
			}
			if err != nil {
				return err
			}
			keys = append(keys, k)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

// follow goes from an alias to the record.
func (s *Store) follow(ctx context.Context, hash string, fields map[string]string) (string, map[string]string, error) {
	for range maxMoves {
		to := fields[fieldAlias]
		if to == "" {
			return hash, fields, nil
		}
		var err error
		if fields, err = s.client.HGetAll(ctx, recordKey(to)).Result(); err != nil {
			return "", nil, err
		}
		hash = to
	}
	return "", nil, keyError{errors.New("its record has moved too often")}
}

func keyFields(k domain.VirtualKey) ([]any, error) {
	models, err := json.Marshal(k.Models)
	if err != nil {
		return nil, err
	}
	return []any{
		"id", k.ID, "identity", k.Identity, "name", k.Name, "policy", k.Policy, "models", models,
		"state", string(k.State), "created_ms", unixMs(k.CreatedAt), "expires_ms", unixMs(k.ExpiresAt),
		"rotated_ms", unixMs(k.RotatedAt), "previous", k.PreviousHash, "previous_until_ms", unixMs(k.PreviousUntil),
	}, nil
}

func readKey(hash string, fields map[string]string) (domain.VirtualKey, error) {
	if fields["id"] == "" {
		return domain.VirtualKey{}, keyError{domain.ErrNotFound}
	}
	k := domain.VirtualKey{
		ID: fields["id"], Hash: hash, Identity: fields["identity"], Name: fields["name"], Policy: fields["policy"],
		State: domain.KeyState(fields["state"]), CreatedAt: timeOfMs(fields["created_ms"]),
		// Unreadable, the grace of the previous secret is over.
		RotatedAt: timeOfMs(fields["rotated_ms"]), PreviousHash: fields["previous"], PreviousUntil: timeOfMs(fields["previous_until_ms"]),
	}
	// A key without readable models or expiry must not become one without bounds.
	if err := json.Unmarshal([]byte(fields["models"]), &k.Models); err != nil {
		return domain.VirtualKey{}, keyError{fmt.Errorf("read models of key %s: %w", k.ID, err)}
	}
	if _, err := strconv.ParseInt(fields["expires_ms"], 10, 64); err != nil {
		return domain.VirtualKey{}, keyError{fmt.Errorf("read expiry of key %s: %w", k.ID, err)}
	}
	k.ExpiresAt = timeOfMs(fields["expires_ms"])
	return k, nil
}

func unixMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func timeOfMs(text string) time.Time {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// Timing of WatchKeys: how long a subscription may be silent before it is
// asked for a sign of life, and the pause before it is made again.
const (
	watchSilence = 5 * time.Second
	watchPause   = 100 * time.Millisecond
)

// WatchKeys calls fn with the hash of each key that changes, one call at a
// time, and with "" whenever changes may have been missed: after every
// subscription, the first included. It comes back by itself after the store was
// away, blocks until ctx ends and then returns nil.
func (s *Store) WatchKeys(ctx context.Context, fn func(hash string)) error {
	return s.watch(ctx, keyChannel, fn)
}

// watch serves subscriptions to a channel of messages until ctx ends.
func (s *Store) watch(ctx context.Context, channel string, fn func(payload string)) error {
	for ctx.Err() == nil {
		s.watchOnce(ctx, channel, fn)
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
	return nil
}

// watchOnce serves one subscription until it fails.
func (s *Store) watchOnce(ctx context.Context, channel string, fn func(payload string)) {
	if !s.Alive() {
		return
	}
	sub := s.client.Subscribe(ctx, channel)
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer func() {
		if stop() {
			_ = sub.Close()
		}
	}()
	asked := false
	for ctx.Err() == nil {
		message, err := sub.ReceiveTimeout(ctx, watchSilence)
		if err != nil {
			var timeout net.Error
			if asked || !errors.As(err, &timeout) || !timeout.Timeout() || sub.Ping(ctx) != nil {
				return
			}
			asked = true
			continue
		}
		asked = false
		switch m := message.(type) {
		case *redis.Subscription:
			fn("")
		case *redis.Message:
			fn(m.Payload)
		}
	}
}
