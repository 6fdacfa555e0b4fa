package store

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
)

// changeAttempts is how often a change is made anew because another one came first.
const changeAttempts = 10

// errKeyBusy is a key that others change all the time.
var errKeyBusy = errors.New("the key is being changed by others; try again")

// SetKeyState enables or disables the key named keyID and tells every watcher;
// domain.ErrNotFound when there is none.
func (s *Store) SetKeyState(ctx context.Context, keyID string, state domain.KeyState) error {
	return s.setKey(ctx, keyChange{"set key state", keyID, []any{"state", string(state)}})
}

// SetKeyExpiry sets when the key named keyID expires, a zero time for never,
// and tells every watcher; domain.ErrNotFound when there is no such key.
func (s *Store) SetKeyExpiry(ctx context.Context, keyID string, at time.Time) error {
	return s.setKey(ctx, keyChange{"set key expiry", keyID, []any{"expires_ms", unixMs(at)}})
}

// keyChange sets fields, names and values in turn, in the record of a key.
type keyChange struct {
	act, keyID string
	fields     []any
}

func (s *Store) setKey(ctx context.Context, c keyChange) error {
	return s.doKey(ctx, c.act, func(ctx context.Context) error {
		k, err := s.changeKey(ctx, c.keyID, func(k domain.VirtualKey, p redis.Pipeliner) error {
			return p.HSet(ctx, recordKey(k.Hash), c.fields...).Err()
		})
		if err != nil {
			return err
		}
		return s.tellKeys(ctx, k.Hash, k.PreviousHash)
	})
}

// DeleteKey removes the key named keyID and tells every watcher;
// domain.ErrNotFound when there is none. Its limits' counters and its records
// in the ledger keep its id.
func (s *Store) DeleteKey(ctx context.Context, keyID string) error {
	return s.doKey(ctx, "delete key", func(ctx context.Context) error {
		k, err := s.changeKey(ctx, keyID, func(k domain.VirtualKey, p redis.Pipeliner) error {
			return p.Del(ctx, recordKey(k.Hash)).Err()
		})
		if errors.Is(err, keyError{domain.ErrNotFound}) {
			// A deletion that was cut short left the entry.
			return errors.Join(s.client.HDel(ctx, keyIndex, keyID).Err(), err)
		}
		if err != nil {
			return err
		}
		if err := s.tellKeys(ctx, k.Hash, k.PreviousHash); err != nil {
			return err
		}
		if k.PreviousHash != "" {
			if err := s.client.Del(ctx, recordKey(k.PreviousHash)).Err(); err != nil {
				return err
			}
		}
		return s.client.HDel(ctx, keyIndex, keyID).Err()
	})
}

// RotateKey gives the key named keyID a new secret and tells every watcher; the
// former one works until its grace ends, and the one before that no longer.
// domain.ErrNotFound when there is no such key.
func (s *Store) RotateKey(ctx context.Context, keyID string, r domain.KeyRotation) (made domain.VirtualKey, err error) {
	if r.Hash == "" {
		return made, errors.New("rotate key: the new secret has no hash")
	}
	err = s.doKey(ctx, "rotate key", func(ctx context.Context) error {
		old, err := s.changeKey(ctx, keyID, func(k domain.VirtualKey, p redis.Pipeliner) error {
			made = k.Rotated(r)
			fields, err := keyFields(made)
			if err != nil {
				return keyError{err}
			}
			// Another slot of a cluster, so outside of the transaction.
			if err := s.client.HSet(ctx, recordKey(r.Hash), append(fields, fieldPending, k.Hash)...).Err(); err != nil {
				return err
			}
			p.Del(ctx, recordKey(k.Hash))
			return p.HSet(ctx, recordKey(k.Hash), fieldAlias, r.Hash).Err()
		})
		if err != nil {
			return err // what was written stays pending: it works for nobody
		}
		return s.finishRotation(ctx, old, made)
	})
	return made, err
}

// aliasKeep is how long an alias outlives its secret: far longer than any
// rotation that began before may take to put the index right.
const aliasKeep = 7 * 24 * time.Hour

// finishRotation tells of a rotation that is made and puts its traces in
// order. Cut short at any point, it leaves a key that works and is found.
func (s *Store) finishRotation(ctx context.Context, old, made domain.VirtualKey) error {
	if err := s.tellKeys(ctx, made.Hash, old.Hash, old.PreviousHash); err != nil {
		return err
	}
	if err := s.client.HDel(ctx, recordKey(made.Hash), fieldPending).Err(); err != nil {
		return err
	}
	if err := s.index(ctx, made.ID, made.Hash); err != nil {
		return err
	}
	if old.PreviousHash == "" {
		return nil
	}
	// Its secret works no more: the record it leads to has become an alias itself.
	return s.client.PExpire(ctx, recordKey(old.PreviousHash), aliasKeep).Err()
}

// index lets the entry of the key named keyID lead to hash. When the record has
// moved on meanwhile, whoever moved it may have written before us, so the entry
// follows.
func (s *Store) index(ctx context.Context, keyID, hash string) error {
	for {
		if err := s.client.HSet(ctx, keyIndex, keyID, hash).Err(); err != nil {
			return err
		}
		next, err := s.client.HGet(ctx, recordKey(hash), fieldAlias).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil {
			return err
		}
		hash = next
	}
}

// changeKey runs queue on the record of the key named keyID, with a transaction
// that fails when the record has changed since it was read; then it begins
// anew. queue may only queue commands on that record. It returns the record as
// it was before.
func (s *Store) changeKey(ctx context.Context, keyID string, queue func(domain.VirtualKey, redis.Pipeliner) error) (k domain.VirtualKey, err error) {
	for range changeAttempts {
		hash, err := s.findKey(ctx, keyID)
		if err != nil {
			return k, err
		}
		err = s.client.Watch(ctx, func(tx *redis.Tx) error {
			fields, err := tx.HGetAll(ctx, recordKey(hash)).Result()
			if err != nil {
				return err
			}
			if fields[fieldAlias] != "" {
				return redis.TxFailedErr // it was rotated since
			}
			if k, err = readKey(hash, fields); err != nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return queue(k, p) })
			return err
		}, recordKey(hash))
		if !errors.Is(err, redis.TxFailedErr) {
			return k, err
		}
	}
	return k, keyError{errKeyBusy}
}

// findKey returns the hash under which the record of the key named keyID lies.
func (s *Store) findKey(ctx context.Context, keyID string) (string, error) {
	hash, err := s.client.HGet(ctx, keyIndex, keyID).Result()
	if errors.Is(err, redis.Nil) {
		return "", keyError{domain.ErrNotFound}
	}
	if err != nil {
		return "", err
	}
	fields, err := s.client.HGetAll(ctx, recordKey(hash)).Result()
	if err != nil {
		return "", err
	}
	hash, _, err = s.follow(ctx, hash, fields)
	return hash, err
}
