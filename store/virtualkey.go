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

// Key returns the record of the key whose secret has hash; domain.ErrNotFound
// when there is none.
func (s *Store) Key(ctx context.Context, hash string) (domain.VirtualKey, error) {
	var fields map[string]string
	err := s.do(ctx, "read key", func(ctx context.Context) (err error) {
		fields, err = s.client.HGetAll(ctx, recordKey(hash)).Result()
		return err
	})
	if err != nil {
		return domain.VirtualKey{}, err
	}
	return readKey(hash, fields)
}

// PutKey writes the record of a key, new or changed, and tells every watcher.
func (s *Store) PutKey(ctx context.Context, k domain.VirtualKey) error {
	if k.ID == "" || k.Hash == "" {
		return errors.New("write key: it has no id or no hash")
	}
	models, err := json.Marshal(k.Models)
	if err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	return s.do(ctx, "write key", func(ctx context.Context) error {
		err := s.client.HSet(ctx, recordKey(k.Hash),
			"id", k.ID, "identity", k.Identity, "name", k.Name, "policy", k.Policy, "models", models,
			"state", string(k.State), "created_ms", unixMs(k.CreatedAt), "expires_ms", unixMs(k.ExpiresAt)).Err()
		if err != nil {
			return err
		}
		if err := s.client.HSet(ctx, keyIndex, k.ID, k.Hash).Err(); err != nil {
			return err
		}
		return s.client.Publish(ctx, keyChannel, k.Hash).Err()
	})
}

// SetKeyState enables or disables the key named keyID and tells every watcher;
// domain.ErrNotFound when there is none.
func (s *Store) SetKeyState(ctx context.Context, keyID string, state domain.KeyState) error {
	err := s.do(ctx, "set key state", func(ctx context.Context) error {
		hash, err := s.client.HGet(ctx, keyIndex, keyID).Result()
		if err != nil {
			return err
		}
		if err := s.client.HSet(ctx, recordKey(hash), "state", string(state)).Err(); err != nil {
			return err
		}
		return s.client.Publish(ctx, keyChannel, hash).Err()
	})
	if errors.Is(err, redis.Nil) {
		return fmt.Errorf("set state of key %s: %w", keyID, domain.ErrNotFound)
	}
	return err
}

// Keys returns every key, in no order.
func (s *Store) Keys(ctx context.Context) ([]domain.VirtualKey, error) {
	var (
		hashes []string
		cmds   []*redis.MapStringStringCmd
	)
	err := s.do(ctx, "list keys", func(ctx context.Context) (err error) {
		if hashes, err = s.client.HVals(ctx, keyIndex).Result(); err != nil || len(hashes) == 0 {
			return err
		}
		pipe := s.client.Pipeline()
		for _, hash := range hashes {
			cmds = append(cmds, pipe.HGetAll(ctx, recordKey(hash)))
		}
		_, err = pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	keys := make([]domain.VirtualKey, 0, len(cmds))
	for i, cmd := range cmds {
		k, err := readKey(hashes[i], cmd.Val())
		if errors.Is(err, domain.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list keys: %w", err)
		}
		keys = append(keys, k)
	}
	return keys, nil
}

func readKey(hash string, fields map[string]string) (domain.VirtualKey, error) {
	if fields["id"] == "" {
		return domain.VirtualKey{}, fmt.Errorf("read key: %w", domain.ErrNotFound)
	}
	k := domain.VirtualKey{
		ID: fields["id"], Hash: hash, Identity: fields["identity"], Name: fields["name"], Policy: fields["policy"],
		State: domain.KeyState(fields["state"]), CreatedAt: timeOfMs(fields["created_ms"]),
	}
	// A key without readable models or expiry must not become one without bounds.
	if err := json.Unmarshal([]byte(fields["models"]), &k.Models); err != nil {
		return domain.VirtualKey{}, fmt.Errorf("read models of key %s: %w", k.ID, err)
	}
	if _, err := strconv.ParseInt(fields["expires_ms"], 10, 64); err != nil {
		return domain.VirtualKey{}, fmt.Errorf("read expiry of key %s: %w", k.ID, err)
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
	for ctx.Err() == nil {
		s.watchOnce(ctx, fn)
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
	return nil
}

// watchOnce serves one subscription until it fails.
func (s *Store) watchOnce(ctx context.Context, fn func(hash string)) {
	if !s.Alive() {
		return
	}
	sub := s.client.Subscribe(ctx, keyChannel)
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
