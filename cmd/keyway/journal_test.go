package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"keyway/journal"
)

// A second process on the same journal says what to do, and leaves the socket to
// the one that serves.
func TestJournalInUse(t *testing.T) {
	t.Parallel()
	for _, service := range []string{"authz", "extproc"} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			file := filepath.Join(folder, "journal")
			owner, err := journal.Open(file, 1<<20, journal.Codec[string]{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, owner.Close()) })
			address := unixPrefix + filepath.Join(folder, "s.sock")
			predecessor, err := listen(t.Context(), address)
			require.NoError(t, err)
			accept := func() {
				if conn, err := predecessor.Accept(); err == nil {
					_ = conn.Close()
				}
			}
			named := make(chan struct{})
			predecessor.(*unixListener).onName = func() { close(named) }
			served := make(chan struct{})
			go func() { defer close(served); accept() }()
			<-named

			_, log, status := keyway(t, service, "--listen", address, "--journal", file, "--store", "redis://127.0.0.1:1/0",
				"--xds", unixPrefix+filepath.Join(folder, "none"), "--metrics", loopback+":0")
			require.Equal(t, 1, status)
			require.Contains(t, log, "lock journal "+file)
			require.Contains(t, log, "give each process a --journal of its own, or stop the other one first")
			conn, err := dialUnix(t, address)
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			<-served
			require.NoError(t, predecessor.Close())
			left, err := filepath.Glob(filepath.Join(folder, "*.next"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
