package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"
)

// ErrDSN means the data source name is neither "sqlite:PATH" nor "postgres://…".
var ErrDSN = errors.New(`ledger DSN must be "sqlite:PATH" or "postgres://USER@HOST/DATABASE"`)

// Ledger is an open ledger. It is safe for concurrent use, and several
// processes may have the same one open.
type Ledger struct {
	dialect dialect
	// write and read are the same pool on Postgres. On SQLite write is one
	// connection, because the file has one writer, and read is its own pool,
	// because a long read must not keep the writer waiting.
	write *sql.DB
	read  *sql.DB
}

const (
	postgresConns    = 8
	sqliteReadConns  = 4
	busyTimeoutMs    = "5000"
	postgresScheme   = "postgres://"
	postgresqlScheme = "postgresql://"
	sqliteScheme     = "sqlite:"
)

// Open opens the ledger at dsn and brings its schema up to date. dsn is
// "sqlite:PATH", whose directory must exist, or a "postgres://" URL. The
// errors are ErrDSN and what the database says; none holds a password.
func Open(ctx context.Context, dsn string) (*Ledger, error) {
	var (
		l   *Ledger
		err error
	)
	path, isSQLite := strings.CutPrefix(dsn, sqliteScheme)
	switch {
	case isSQLite && path != "":
		l, err = openSQLite(path)
	case strings.HasPrefix(dsn, postgresScheme), strings.HasPrefix(dsn, postgresqlScheme):
		l, err = openPostgres(dsn)
	default:
		err = ErrDSN
	}
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if err := l.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("migrate ledger: %w", err), l.Close())
	}
	return l, nil
}

// Ping reports whether the database answers.
func (l *Ledger) Ping(ctx context.Context) error {
	if err := l.write.PingContext(ctx); err != nil {
		return fmt.Errorf("ping ledger: %w", err)
	}
	return nil
}

// Close closes the ledger; calls still running fail or are waited for.
func (l *Ledger) Close() error {
	err := l.write.Close()
	if l.read != l.write {
		err = errors.Join(err, l.read.Close())
	}
	if err != nil {
		return fmt.Errorf("close ledger: %w", err)
	}
	return nil
}

func openPostgres(dsn string) (*Ledger, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err // pgx blanks the password itself
	}
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(postgresConns)
	return &Ledger{dialect: postgresDialect, write: db, read: db}, nil
}

func openSQLite(path string) (*Ledger, error) {
	// SQLite would make the file readable for everyone; what people spend is
	// their own affair.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create database file: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("close database file: %w", err)
	}
	write, err := sqlitePool(path, url.Values{"_txlock": {"immediate"}}, 1)
	if err != nil {
		return nil, err
	}
	read, err := sqlitePool(path, url.Values{"_pragma": {"query_only(1)"}}, sqliteReadConns)
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	return &Ledger{dialect: sqliteDialect, write: write, read: read}, nil
}

// sqlitePool sets what money asks for: WAL, so that readers and the writer do
// not meet; a full sync, so that a commit outlives a power cut; and recursive
// triggers, without which REPLACE would delete past the append-only trigger.
func sqlitePool(path string, params url.Values, conns int) (*sql.DB, error) {
	params["_pragma"] = append([]string{
		"busy_timeout(" + busyTimeoutMs + ")",
		"journal_mode(WAL)",
		"synchronous(FULL)",
		"recursive_triggers(1)",
	}, params["_pragma"]...)
	name := "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + params.Encode()
	connector, err := sqlite.NewConnector(name)
	if err != nil {
		return nil, fmt.Errorf("prepare SQLite: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(conns)
	return db, nil
}
