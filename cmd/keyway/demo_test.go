package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
)

func dialUnix(t *testing.T, address string) (net.Conn, error) {
	t.Helper()
	var d net.Dialer
	return d.DialContext(t.Context(), "unix", strings.TrimPrefix(address, unixPrefix))
}

func demoIn(folder string) (path string, v demoValues) {
	return filepath.Join(folder, "config.yaml"), demoValues{
		Port: 8080, ProviderPort: 8090, SecretA: filepath.Join(folder, "a"), SecretB: filepath.Join(folder, "b"),
	}
}

func TestDemoConfigurationIsValid(t *testing.T) {
	t.Parallel()
	path, v := demoIn(t.TempDir())
	require.NoError(t, placeDemo(path, v))
	cfg, err := config.Load(path)
	require.NoError(t, err)
	assert.EqualValues(t, 8080, cfg.GetListener().GetPort())
	assert.Equal(t, "http://127.0.0.1:8090/v1", cfg.GetProviders()[0].GetBaseUrl())
	require.Len(t, cfg.GetChannels(), 2)
	assert.Equal(t, "file:"+v.SecretA, cfg.GetChannels()[0].GetSecret())
	assert.NotContains(t, demoConfig, "sk-", "no key stands in the file")
	a, err := os.ReadFile(v.SecretA)
	require.NoError(t, err)
	b, err := os.ReadFile(v.SecretB)
	require.NoError(t, err)
	assert.NotEqual(t, a, b, "every channel has its own secret")
}

func TestDemoConfigurationKeepsTheUsersEdits(t *testing.T) {
	t.Parallel()
	path, v := demoIn(t.TempDir())
	require.NoError(t, placeDemo(path, v))
	secret, err := os.ReadFile(v.SecretA)
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	edited := strings.Replace(string(text), "rpm: 100000", "rpm: 7", 1)
	require.NotEqual(t, string(text), edited)
	require.NoError(t, os.WriteFile(path, []byte(edited), 0o600))

	v.Port, v.ProviderPort = 18080, 18090
	require.NoError(t, placeDemo(path, v))
	cfg, err := config.Load(path)
	require.NoError(t, err)
	assert.EqualValues(t, 7, cfg.GetPolicies()[0].GetRpm())
	assert.EqualValues(t, 18080, cfg.GetListener().GetPort(), "the kept lines follow the flags")
	assert.Equal(t, "http://127.0.0.1:18090/v1", cfg.GetProviders()[0].GetBaseUrl())
	again, err := os.ReadFile(v.SecretA)
	require.NoError(t, err)
	assert.Equal(t, secret, again)
}

func TestARemovedMarkMakesALineTheUsers(t *testing.T) {
	t.Parallel()
	_, v := demoIn("/x")
	text := "listener:\n  port: 9999\n  port: 1  # kept by up: --port\r\n"
	assert.Equal(t, "listener:\n  port: 9999\n  port: 8080  # kept by up: --port\n", refreshKept(text, v))
}

// keyMap is a store of keys.
type keyMap map[string]domain.VirtualKey

func (m keyMap) PutKey(_ context.Context, k domain.VirtualKey) error {
	m[k.Hash] = k
	return nil
}

func (m keyMap) Key(_ context.Context, hash string) (domain.VirtualKey, error) {
	if k, ok := m[hash]; ok {
		return k, nil
	}
	return domain.VirtualKey{}, domain.ErrNotFound
}

func TestPlaceKey(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "demo-key")
	keys := keyMap{}
	secret, err := placeKey(t.Context(), keys, file, domain.VirtualKey{Identity: "demo", Policy: "demo"})
	require.NoError(t, err)
	assert.True(t, domain.WellFormedKey(secret))
	made := keys[domain.HashKey(secret)]
	assert.Equal(t, "demo", made.Identity)
	assert.Equal(t, domain.KeyActive, made.State)
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	again, err := placeKey(t.Context(), keys, file, domain.VirtualKey{})
	require.NoError(t, err)
	assert.Equal(t, secret, again)
	assert.Equal(t, made, keys[made.Hash], "the record is left as it is")

	empty := keyMap{}
	again, err = placeKey(t.Context(), empty, file, domain.VirtualKey{Identity: "demo"})
	require.NoError(t, err)
	assert.Equal(t, secret, again, "a store that lost its data gets the same key")
	assert.Len(t, empty, 1)

	require.NoError(t, os.WriteFile(file, []byte("garbage\n"), 0o600))
	_, err = placeKey(t.Context(), keys, file, domain.VirtualKey{})
	require.ErrorContains(t, err, "holds no virtual key")
}
