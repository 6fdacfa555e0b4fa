package e2e

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// Two hundred clients of three replicas on ten thousand keys, each of which can
// pay for one request and is asked for two: each is served once.
func TestManyKeysOverManyReplicas(t *testing.T) {
	t.Parallel()
	const keys, clients, tries = 10_000, 200, 2
	s := sharedStack(t)
	batch := newNonce()
	secrets := make([]string, keys)
	inParallel(16, keys, func(i int) {
		secret, err := domain.NewKeySecret()
		if !assert.NoError(t, err) {
			return
		}
		secrets[i] = secret
		assert.NoError(t, s.store.PutKey(t.Context(), domain.VirtualKey{
			ID: fmt.Sprintf("key_%s_%d", batch, i), Hash: domain.HashKey(secret), Identity: fmt.Sprintf("%s-%d", batch, i%100),
			Policy: "single", State: domain.KeyActive, CreatedAt: time.Now(),
		}))
	})
	all := s.replicas(t, s.ready.RedisURL, replicaNames)
	warm(t, all, secrets[0])
	served := make([]atomic.Int64, keys)
	began := time.Now()
	inParallel(clients, keys*tries, func(i int) {
		if all[i%len(all)].admits(t, secrets[i/tries]) {
			served[i/tries].Add(1)
		}
	})
	took := time.Since(began)
	t.Logf("%d checks of %d keys in %s, %.0f a second", keys*tries, keys, took, float64(keys*tries)/took.Seconds())
	wrong := 0
	for i := range served {
		if served[i].Load() != 1 {
			wrong++
		}
	}
	require.Zero(t, wrong, "keys that were served twice, or never")
}
