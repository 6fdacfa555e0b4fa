//go:build unix

package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// postgres is the one server of this package's tests: that of
// KEYWAY_POSTGRES_URL, or one that the first test to need it starts on a Unix
// socket in a temporary folder.
var postgres server

var errNoPostgres = errors.New("no Postgres: set KEYWAY_POSTGRES_URL or install the postgresql package")

type server struct {
	once sync.Once
	url  string
	err  error

	dir string
	cmd *exec.Cmd
}

// postgresDSN returns the DSN of an empty schema of its own. Without any
// Postgres the test is skipped, but fails under CI=true.
func postgresDSN(t *testing.T) string {
	t.Helper()
	postgres.once.Do(func() { postgres.url, postgres.err = postgres.start() })
	if errors.Is(postgres.err, errNoPostgres) && os.Getenv("CI") != "true" {
		t.Skip(postgres.err)
	}
	require.NoError(t, postgres.err)

	ctx := context.Background() // outlives the test's, for the clean-up
	conn, err := pgx.Connect(ctx, postgres.url)
	require.NoError(t, err)
	schema := fmt.Sprintf("keyway_test_%d", time.Now().UnixNano())
	_, err = conn.Exec(ctx, "CREATE SCHEMA "+schema)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := conn.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
		require.NoError(t, err)
		require.NoError(t, conn.Close(ctx))
	})
	u, err := url.Parse(postgres.url)
	require.NoError(t, err)
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

func (s *server) start() (string, error) {
	if given := os.Getenv("KEYWAY_POSTGRES_URL"); given != "" {
		return given, nil
	}
	initdb, err := findPostgres("initdb")
	if err != nil {
		return "", err
	}
	attr, owner, err := serverUser()
	if err != nil {
		return "", err
	}
	// Not t.TempDir: its parent belongs to root alone when the tests run as root.
	if s.dir, err = os.MkdirTemp("", "keyway-postgres-"); err != nil {
		return "", fmt.Errorf("make server folder: %w", err)
	}
	if err := os.Chown(s.dir, owner, -1); err != nil {
		return "", fmt.Errorf("give server folder away: %w", err)
	}
	data := filepath.Join(s.dir, "data")
	make := exec.Command(initdb, "-D", data, "-U", "keyway", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
	make.Dir, make.SysProcAttr = s.dir, attr
	if out, err := make.CombinedOutput(); err != nil {
		return "", fmt.Errorf("run initdb: %w: %s", err, out)
	}
	s.cmd = exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"),
		"-D", data, "-k", s.dir, "-c", "listen_addresses=", "-c", "shared_buffers=8MB")
	s.cmd.Dir, s.cmd.SysProcAttr = s.dir, attr
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return "", fmt.Errorf("start postgres: %w", err)
	}
	dsn := "postgres://keyway@/postgres?host=" + url.QueryEscape(s.dir)
	return dsn, waitForServer(dsn)
}

func waitForServer(dsn string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, dsn)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for postgres: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *server) stop() error {
	if s.dir == "" {
		return nil
	}
	var err error
	if s.cmd != nil {
		err = errors.Join(s.cmd.Process.Signal(syscall.SIGINT), s.cmd.Wait()) // fast shutdown
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func findPostgres(name string) (string, error) {
	// The newest of the distribution's folders first: a wrapper in PATH may
	// have no postgres beside it.
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", name, err)
	}
	slices.SortFunc(found, func(a, b string) int { return strings.Compare(b, a) })
	if len(found) > 0 {
		return found[0], nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", errNoPostgres
	}
	return filepath.EvalSymlinks(path)
}

// serverUser returns as whom the server runs: Postgres refuses root.
func serverUser() (*syscall.SysProcAttr, int, error) {
	if os.Getuid() != 0 {
		return nil, os.Getuid(), nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, 0, fmt.Errorf("read ids of user %s: %w", name, err)
		}
		cred := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return &syscall.SysProcAttr{Credential: cred}, int(uid), nil
	}
	return nil, 0, errNoPostgres
}
