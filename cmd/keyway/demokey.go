package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"keyway/domain"
)

// ensureKey makes sure that the demo key of this folder is in the store, and
// puts it into state. A store that lost its data gets the same key again.
func (r *region) ensureKey(ctx context.Context, state *readiness) (err error) {
	s, err := openStore(r.storeURL())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Ping(ctx); err != nil {
		return fmt.Errorf("reach the store: %w", err)
	}
	key := domain.VirtualKey{Identity: demoIdentity, Name: "made by keyway up"}
	if r.Config == "" {
		key.Policy = demoPolicy
	} else if ids := r.config.GetIdentities(); len(ids) > 0 {
		key.Identity = ids[0].GetId()
	}
	state.APIKey, err = placeKey(ctx, s, r.Key, key)
	return err
}

// keyStore is what placeKey needs of the store.
type keyStore interface {
	keyWriter
	Key(ctx context.Context, hash string) (domain.VirtualKey, error)
}

// placeKey returns the secret in file, making file and record where they are missing.
func placeKey(ctx context.Context, s keyStore, file string, key domain.VirtualKey) (string, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		secret, _, err := createKey(ctx, s, key, time.Now())
		if err != nil {
			return "", err
		}
		return secret, writeFile(file, []byte(secret+"\n"))
	}
	if err != nil {
		return "", fmt.Errorf("read demo key: %w", err)
	}
	secret := strings.TrimSpace(string(raw))
	if !domain.WellFormedKey(secret) {
		return "", fmt.Errorf("%s holds no virtual key; remove it to get a new one", file)
	}
	hash := domain.HashKey(secret)
	switch _, err := s.Key(ctx, hash); {
	case err == nil:
		return secret, nil
	case !errors.Is(err, domain.ErrNotFound):
		return "", fmt.Errorf("look up demo key: %w", err)
	}
	if key.ID, err = domain.NewKeyID(); err != nil {
		return "", err
	}
	key.Hash, key.State, key.CreatedAt = hash, domain.KeyActive, time.Now()
	if err := s.PutKey(ctx, key); err != nil {
		return "", fmt.Errorf("store demo key: %w", err)
	}
	return secret, nil
}
