package secret

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestResolve(t *testing.T) {
	t.Setenv("KEYWAY_TEST_SK", "sk-env")
	t.Setenv("KEYWAY_TEST_EMPTY", "")
	t.Setenv("KEYWAY_TEST_SPLIT", "sk-one\r\nx-injected: sk-two")
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		write(t, path, content)
		return "file:" + path
	}
	tests := []struct {
		name, ref, want string
		err             error
	}{
		{name: "env", ref: "env:KEYWAY_TEST_SK", want: "sk-env"},
		{name: "file", ref: file("plain", "sk-file"), want: "sk-file"},
		{name: "file with line break", ref: file("lf", "sk-file\n"), want: "sk-file"},
		{name: "file with CRLF", ref: file("crlf", "sk-file\r\n"), want: "sk-file"},
		{name: "inner blanks stay", ref: file("blank", "sk file"), want: "sk file"},
		{name: "unset variable", ref: "env:KEYWAY_TEST_NOT_SET", err: ErrMissing},
		{name: "empty variable", ref: "env:KEYWAY_TEST_EMPTY", err: ErrEmpty},
		{name: "header injection", ref: "env:KEYWAY_TEST_SPLIT", err: ErrMalformed},
		{name: "absent file", ref: "file:" + filepath.Join(dir, "absent"), err: ErrMissing},
		{name: "directory", ref: "file:" + dir, err: ErrMissing},
		{name: "empty file", ref: file("empty", "\n"), err: ErrEmpty},
		{name: "huge file", ref: file("huge", strings.Repeat("k", maxBytes+1)), err: ErrMalformed},
		{name: "no scheme", ref: "sk-pasted", err: ErrReference},
		{name: "unknown scheme", ref: "vault:sk-pasted", err: ErrReference},
		{name: "key in place of a name", ref: "env:sk-pasted", err: ErrReference},
		{name: "empty name", ref: "file:", err: ErrReference},
		{name: "empty", ref: "", err: ErrReference},
	}
	r := NewResolver(Options{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := r.Resolve(tt.ref)
			if tt.err != nil {
				require.ErrorIs(t, err, tt.err)
				assert.NotContains(t, err.Error(), "sk-")
				assert.True(t, got.IsZero())
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, got.Reveal())
		})
	}
}

// A clock that the test moves, so that no assertion waits.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestFileRotation(t *testing.T) {
	t.Parallel()
	c := &clock{now: time.Unix(1000, 0)}
	r := NewResolver(Options{TTL: time.Second, Grace: 5 * time.Second, Now: c.Now})
	path := filepath.Join(t.TempDir(), "sk")
	resolve := func() string {
		s, err := r.Resolve("file:" + path)
		require.NoError(t, err)
		return s.Reveal()
	}
	write(t, path, "old\n")
	assert.Equal(t, "old", resolve())
	write(t, path, "new\n")
	assert.Equal(t, "old", resolve(), "within the TTL")
	c.advance(time.Second)
	assert.Equal(t, "new", resolve(), "after the TTL")

	write(t, path, "") // a writer that truncates first
	c.advance(time.Second)
	assert.Equal(t, "new", resolve(), "within the grace")
	c.advance(5 * time.Second)
	_, err := r.Resolve("file:" + path)
	require.ErrorIs(t, err, ErrEmpty, "after the grace")

	write(t, path, "third")
	assert.Equal(t, "third", resolve(), "a failure is not cached")
}

func TestResolveConcurrently(t *testing.T) {
	t.Parallel()
	r := NewResolver(Options{TTL: time.Nanosecond})
	path := filepath.Join(t.TempDir(), "sk")
	write(t, path, "sk")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				s, err := r.Resolve("file:" + path)
				assert.NoError(t, err)
				assert.Equal(t, "sk", s.Reveal())
			}
		})
	}
	wg.Wait()
}
