package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLayoutIsPrivate(t *testing.T) {
	t.Parallel()
	l, err := newLayout(filepath.Join(t.TempDir(), "k"))
	require.NoError(t, err)
	for _, folder := range []string{l.Root, l.Logs, l.Data, l.State, l.Run} {
		info, err := os.Stat(folder)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o700), info.Mode().Perm(), folder)
	}
	require.NoError(t, writeFile(l.Key, []byte("x")))
	info, err := os.Stat(l.Key)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestSocketsFitTheKernelsLimit(t *testing.T) {
	t.Parallel()
	deep := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30))
	l, err := newLayout(deep)
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(l.Run) })
	assert.NotContains(t, l.Run, "deep", "the sockets moved to a short folder")

	again, err := newLayout(deep)
	require.NoError(t, err)
	assert.Equal(t, l.Run, again.Run, "the same one at every start")

	ln, err := listen(t.Context(), l.socket(procExtproc))
	require.NoError(t, err)
	require.NoError(t, ln.Close())
}

func TestLockDirRefusesASecondRun(t *testing.T) {
	t.Parallel()
	l, err := newLayout(t.TempDir())
	require.NoError(t, err)
	unlock, err := l.lockDir()
	require.NoError(t, err)
	_, err = l.lockDir()
	require.ErrorContains(t, err, "keyway up already runs on "+l.Root)
	unlock()
	unlock, err = l.lockDir()
	require.NoError(t, err)
	unlock()
}

func TestClearRun(t *testing.T) {
	t.Parallel()
	l, err := newLayout(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(l.run("authz.sock"), nil, 0o600))
	require.NoError(t, l.clearRun())
	entries, err := os.ReadDir(l.Run)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestListenTakesASocketOver(t *testing.T) {
	t.Parallel()
	address := unixPrefix + filepath.Join(t.TempDir(), "s.sock")
	first, err := listen(t.Context(), address)
	require.NoError(t, err)
	serveOne := func(ln net.Listener) {
		accepted := make(chan error, 1)
		go func() {
			conn, err := ln.Accept()
			if err == nil {
				err = conn.Close()
			}
			accepted <- err
		}()
		require.Eventually(t, func() bool {
			conn, err := dialUnix(t, address)
			return err == nil && conn.Close() == nil
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, <-accepted)
	}
	serveOne(first)
	failing, err := listen(t.Context(), address)
	require.NoError(t, err)
	require.NoError(t, failing.Close())
	serveOne(first) // One that ends before it serves leaves the socket alone.

	second, err := listen(t.Context(), address)
	require.NoError(t, err)
	named := make(chan struct{})
	second.(*unixListener).onName = func() { close(named) }
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		for range 2 {
			if conn, err := second.Accept(); err == nil {
				_ = conn.Close()
			}
		}
	}()
	<-named
	require.NoError(t, first.Close(), "the end of the predecessor leaves the successor's socket")
	for range 2 {
		conn, err := dialUnix(t, address)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	<-taken
	require.NoError(t, second.Close())
}
