package ledger

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations
var migrations embed.FS

// Processes that open a new SQLite file at the same moment race for its
// schema, and goose has no lock there. The loser finds it made on its next try.
const (
	sqliteTries = 10
	sqlitePause = 100 * time.Millisecond
)

// migrate applies the migrations that the database has not seen. There are
// none that go back: an append-only ledger has no former state to return to.
func (l *Ledger) migrate(ctx context.Context) error {
	folder, err := fs.Sub(migrations, l.dialect.migrations)
	if err != nil {
		return fmt.Errorf("find migrations: %w", err)
	}
	opts := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true)}
	tries := sqliteTries
	if l.dialect.goose == goose.DialectPostgres {
		tries = 1
		locker, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return fmt.Errorf("make migration lock: %w", err)
		}
		opts = append(opts, goose.WithSessionLocker(locker))
	}
	provider, err := goose.NewProvider(l.dialect.goose, l.write, folder, opts...)
	if err != nil {
		return fmt.Errorf("load migrations: %w", err)
	}
	for try := 1; ; try++ {
		if _, err = provider.Up(ctx); err == nil || try >= tries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(sqlitePause):
		}
	}
}
