package ledger

import (
	"database/sql"
	"errors"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlitecode "modernc.org/sqlite/lib"
)

// dialect is all in which the two databases differ once they are open.
type dialect struct {
	goose      goose.Dialect
	migrations string // folder of the embedded migrations
	// placeholder returns the nth parameter of a statement, n from 1.
	placeholder func(n int) string
	// images is the number of images that an entry made.
	images string
	// snapshot makes every read of a transaction see the same moment.
	snapshot *sql.TxOptions
	// oneAtATime makes a transaction wait for others that write balance entries,
	// so that their numbers rise in the order of their commits; "" where every
	// transaction that writes is alone.
	oneAtATime string
	// rejects reports whether err blames the row and not the database.
	rejects func(err error) bool
}

var sqliteDialect = dialect{
	goose:       goose.DialectSQLite3,
	migrations:  "migrations/sqlite",
	placeholder: func(int) string { return "?" },
	images:      "COALESCE(json_extract(tool_calls, '$.image_generation'), 0)",
	snapshot:    nil, // what every transaction of SQLite does
	rejects: func(err error) bool {
		var e *sqlite.Error
		if !errors.As(err, &e) {
			return false
		}
		const primary = 0xff // the low byte; the rest refines it
		switch e.Code() & primary {
		case sqlitecode.SQLITE_CONSTRAINT, sqlitecode.SQLITE_TOOBIG, sqlitecode.SQLITE_MISMATCH:
			return true
		}
		return false
	},
}

var postgresDialect = dialect{
	goose:       goose.DialectPostgres,
	migrations:  "migrations/postgres",
	placeholder: func(n int) string { return "$" + strconv.Itoa(n) },
	oneAtATime:  "LOCK TABLE balance_entries IN SHARE ROW EXCLUSIVE MODE",
	images:      "COALESCE((tool_calls::json->>'image_generation')::BIGINT, 0)",
	snapshot:    &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
	rejects: func(err error) bool {
		var e *pgconn.PgError
		if !errors.As(err, &e) {
			return false
		}
		const dataException, integrityViolation, limitExceeded = "22", "23", "54"
		for _, class := range []string{dataException, integrityViolation, limitExceeded} {
			if strings.HasPrefix(e.Code, class) {
				return true
			}
		}
		return false
	},
}
