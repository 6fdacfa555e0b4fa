package sdk

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEnsure(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "parts")
	p := parts{source: "node", install: [][]string{{"sh", "-c", "test ! -e left && echo x >> installed"}}}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "left"), nil, 0o644))

	require.NoError(t, p.ensure(t.Context(), dir), "what a broken installation left is cleared")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "run.mjs"), []byte("old"), 0o644))
	require.NoError(t, p.ensure(t.Context(), dir))

	installed, err := os.ReadFile(filepath.Join(dir, "installed"))
	require.NoError(t, err)
	assert.Equal(t, "x\n", string(installed), "installed once")
	runner, err := os.ReadFile(filepath.Join(dir, "run.mjs"))
	require.NoError(t, err)
	assert.NotEqual(t, "old", string(runner), "the runner is always this version's")

	p.install = [][]string{{"sh", "-c", "echo why; exit 3"}}
	require.NoError(t, os.Remove(filepath.Join(dir, ready)))
	require.ErrorContains(t, p.ensure(t.Context(), dir), "why")
	assert.NoFileExists(t, filepath.Join(dir, ready))
}

func TestLockIsExclusive(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*lockPoll)
	defer cancel()
	_, err = lock(ctx, path)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	got := make(chan error, 1)
	go func() {
		second, err := lock(t.Context(), path)
		if err == nil {
			second()
		}
		got <- err
	}()
	unlock()
	select {
	case err := <-got:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the lock was not given on")
	}
}

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	_, err := prepare(t.Context(), "cobol")
	require.ErrorContains(t, err, "cobol")
}

func TestEnvironmentHidesSDKSettings(t *testing.T) {
	for _, name := range []string{"OPENAI_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "KEYWAY_MODEL", "no_proxy"} {
		t.Setenv(name, "outer")
	}
	t.Setenv("HARMLESS", "outer")
	env := environment(Env{BaseURL: "u", APIKey: "k", Model: "m"})
	assert.Contains(t, env, "KEYWAY_MODEL=m")
	assert.Contains(t, env, "HARMLESS=outer")
	assert.Contains(t, env, "no_proxy=127.0.0.1,localhost")
	for _, kv := range env {
		if strings.HasSuffix(kv, "=outer") {
			assert.Equal(t, "HARMLESS=outer", kv)
		}
	}
}

func TestReadResults(t *testing.T) {
	t.Parallel()
	got, err := readResults(strings.NewReader("{\"case\":\"a\"}\n{\"case\":\"b\",\"ok\":true}\n"))
	require.NoError(t, err)
	assert.Equal(t, []Result{{Case: "a"}, {Case: "b", OK: true}}, got)
	_, err = readResults(strings.NewReader("Traceback"))
	require.Error(t, err)
}

// The lock file must install the same from any registry, so it names none.
func TestPinsNameNoRegistry(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"node/package-lock.json", "python/requirements.txt"} {
		raw, err := files.ReadFile(path)
		require.NoError(t, err)
		for _, bad := range []string{`"resolved"`, "--index-url", "--extra-index-url", "--find-links"} {
			assert.NotContains(t, string(raw), bad, path)
		}
		assert.Regexp(t, `--hash=sha256:|"integrity": "sha512-`, string(raw), path)
	}
}
