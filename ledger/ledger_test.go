package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// eachDatabase runs body once per kind of database, with the DSN of an empty one.
func eachDatabase(t *testing.T, body func(t *testing.T, dsn string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		body(t, "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		body(t, postgresDSN(t))
	})
}

func open(t *testing.T, dsn string) *Ledger {
	t.Helper()
	l, err := Open(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func all(t *testing.T, l *Ledger, q Query) []domain.UsageRecord {
	t.Helper()
	var recs []domain.UsageRecord
	require.NoError(t, l.Records(t.Context(), q, func(r domain.UsageRecord) error {
		recs = append(recs, r)
		return nil
	}))
	return recs
}

func ids(recs []domain.UsageRecord) []string {
	out := []string{}
	for _, r := range recs {
		out = append(out, r.RequestID)
	}
	return out
}

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// full is a record with something in every field.
func full(id string) domain.UsageRecord {
	return domain.UsageRecord{
		RequestID: id, Attempt: 2, KeyID: "key_1", Identity: "acme", API: domain.APIChat,
		Model: "gpt/x:1", ModelServed: "gpt-x-2026", ModelDispatched: "gpt/x", Channel: "b",
		Attempts: []domain.Attempt{{Channel: "a", Status: 429}, {Channel: "b", Status: 200}},
		Outcome:  domain.OutcomeSuccess, Source: domain.SourceUpstream, Status: 200,
		Usage: domain.Usage{
			InputUncached: 10, CacheRead: 20, CacheWrite: 30, CacheWrite1h: 5, Output: 40, Reasoning: 7,
			CacheWrite30m: 3, CacheWrite12h: 2, InputAudio: 1, InputImage: 4, OutputAudio: 6, OutputImage: 8,
			Tools: [domain.ToolKinds]int64{domain.ToolWebSearch: 2, domain.ToolMCP: 1}, Tier: "flex",
		},
		CostMicros: 1<<53 + 1, PriceVersion: "2026-11",
		RawUsage: []byte(`{"prompt_tokens": 60, "x": "ü"}`), PromptTokensEstimate: 58, UpstreamRequestID: "up_1",
		AdmittedAt: noon, FirstByteAt: noon.Add(300 * time.Millisecond), EndedAt: noon.Add(2 * time.Second),
		Budgets: []string{"budget:day:key:key_1:2026-11-29", "budget:month:identity:acme:2026-11"},
	}
}

// least is a record of a request that never reached a channel.
func least(id string) domain.UsageRecord {
	return domain.UsageRecord{
		RequestID: id, KeyID: "key_1", Identity: "acme", API: domain.APIMessages, Model: "m",
		Outcome: domain.OutcomeCancelled, Source: domain.SourceEstimate, AdmittedAt: noon, EndedAt: noon,
	}
}

func TestAppendAndRead(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		require.NoError(t, l.Ping(t.Context()))
		want := []domain.UsageRecord{least("req_2"), full("req_1")} // by the time they ended
		n, err := l.Append(t.Context(), []domain.UsageRecord{full("req_1"), least("req_2")})
		require.NoError(t, err)
		assert.Equal(t, 2, n)
		assert.Equal(t, want, all(t, l, Query{}))
	})
}

func TestAppendIsIdempotent(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		var recs []domain.UsageRecord
		for i := range 250 { // more than two statements
			recs = append(recs, full(fmt.Sprintf("req_%03d", 249-i)))
		}
		again := full("req_000")
		again.Attempt, again.CostMicros, again.Outcome = 1, 7, domain.OutcomeFailed
		n, err := l.Append(t.Context(), append(recs, again))
		require.NoError(t, err)
		assert.Equal(t, 250, n, "a request twice in one batch counts once")
		assert.Equal(t, "req_249", recs[0].RequestID, "the caller's slice keeps its order")

		n, err = l.Append(t.Context(), append([]domain.UsageRecord{again, least("req_new")}, recs...))
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		assert.Len(t, all(t, l, Query{}), 251)
		assert.Equal(t, []domain.UsageRecord{full("req_000")}, all(t, l, Query{RequestID: "req_000"}), "the first settlement stays")

		n, err = l.Append(t.Context(), nil)
		require.NoError(t, err)
		assert.Zero(t, n)
	})
}

func TestAppendIsOneTransaction(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		bad := map[string]domain.UsageRecord{"no id": least(""), "outcome": least("req_x"), "source": least("req_y")}
		for name, r := range bad {
			switch name {
			case "outcome":
				r.Outcome = "lost"
			case "source":
				r.Source = "guess"
			}
			var recs []domain.UsageRecord
			for i := range 150 {
				recs = append(recs, full(fmt.Sprintf("a_%03d", i)))
			}
			n, err := l.Append(t.Context(), append(recs, r))
			require.ErrorIs(t, err, domain.ErrRejected, name)
			assert.Zero(t, n)
			assert.Empty(t, all(t, l, Query{}), "%s: nothing of the batch is there", name)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := l.Append(ctx, []domain.UsageRecord{full("req_1")})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, domain.ErrRejected, "an absent database is not the record's fault")
	})
}

// What a provider or a client can put into a record must never keep it out.
func TestAppendTakesHostileText(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		r := full("req_1")
		r.ModelServed, r.UpstreamRequestID = "a\x00b", "c\xffd"
		r.Model = "'; DROP TABLE usage_records; --"
		r.RawUsage = []byte("not json\x00\xfe" + strings.Repeat("x", 1<<20))
		n, err := l.Append(t.Context(), []domain.UsageRecord{r})
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		got := all(t, l, Query{Model: r.Model})
		require.Len(t, got, 1)
		assert.Equal(t, "a\uFFFDb", got[0].ModelServed)
		assert.Equal(t, "c\uFFFDd", got[0].UpstreamRequestID)
		assert.Len(t, got[0].RawUsage, len("not json\uFFFD\uFFFD")+1<<20)
	})
}

// The append-only rule is the table's: even raw SQL on the writing connection fails.
func TestChangesAreRefused(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		_, err := l.Append(t.Context(), []domain.UsageRecord{full("req_1")})
		require.NoError(t, err)
		statements := []string{
			"UPDATE usage_records SET cost_micros = 0",
			"DELETE FROM usage_records WHERE request_id = 'req_1'",
			"INSERT INTO usage_records (" + strings.Join(columns, ", ") + ") SELECT " + strings.Join(columns, ", ") +
				" FROM usage_records WHERE true ON CONFLICT (request_id, entry_no) DO UPDATE SET cost_micros = 0",
		}
		if strings.HasPrefix(dsn, sqliteScheme) {
			statements = append(statements, "REPLACE INTO usage_records ("+strings.Join(columns, ", ")+") SELECT "+
				strings.Join(columns, ", ")+" FROM usage_records")
		} else {
			statements = append(statements, "TRUNCATE usage_records", "UPDATE usage_records SET status = 1 WHERE false")
		}
		for _, s := range statements {
			_, err := l.write.ExecContext(t.Context(), s)
			require.ErrorContains(t, err, "append only", s)
		}
		further := full("req_1")
		further.EntryNo, further.Reason = 1, "a correction is a further entry"
		_, err = l.Append(t.Context(), []domain.UsageRecord{further})
		require.NoError(t, err)
		assert.Equal(t, []domain.UsageRecord{full("req_1"), further}, all(t, l, Query{RequestID: "req_1"}))
	})
}

func TestQueries(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		var recs []domain.UsageRecord
		for i := range 6 {
			r := least(fmt.Sprintf("req_%d", i))
			r.EndedAt = noon.Add(time.Duration(i) * time.Minute)
			r.KeyID = []string{"key_a", "key_b"}[i%2]
			r.Identity = []string{"acme", "globex", "initech"}[i%3]
			r.Model, r.Channel = []string{"m", "n"}[i/3], []string{"c", "d"}[i/3]
			if i == 5 {
				r.Outcome = domain.OutcomeAbandoned
			}
			recs = append(recs, r)
		}
		_, err := l.Append(t.Context(), recs)
		require.NoError(t, err)
		tests := []struct {
			name string
			q    Query
			want []string
		}{
			{name: "all", want: []string{"req_0", "req_1", "req_2", "req_3", "req_4", "req_5"}},
			{name: "newest", q: Query{Order: NewestFirst, Limit: 2}, want: []string{"req_5", "req_4"}},
			{name: "limit", q: Query{Limit: 2}, want: []string{"req_0", "req_1"}},
			{name: "since is inclusive", q: Query{Since: noon.Add(4 * time.Minute)}, want: []string{"req_4", "req_5"}},
			{name: "until is exclusive", q: Query{Until: noon.Add(time.Minute)}, want: []string{"req_0"}},
			{name: "key", q: Query{KeyID: "key_b"}, want: []string{"req_1", "req_3", "req_5"}},
			{name: "identity", q: Query{Identity: "globex"}, want: []string{"req_1", "req_4"}},
			{name: "model", q: Query{Model: "n"}, want: []string{"req_3", "req_4", "req_5"}},
			{name: "channel", q: Query{Channel: "c"}, want: []string{"req_0", "req_1", "req_2"}},
			{name: "outcome", q: Query{Outcome: domain.OutcomeAbandoned}, want: []string{"req_5"}},
			{name: "request", q: Query{RequestID: "req_3"}, want: []string{"req_3"}},
			{
				name: "everything at once",
				q:    Query{Since: noon, Until: noon.Add(time.Hour), KeyID: "key_b", Identity: "acme", Model: "n", Limit: 9},
				want: []string{"req_3"},
			},
			{name: "nothing", q: Query{KeyID: "key_c"}, want: []string{}},
		}
		for _, tt := range tests {
			assert.Equal(t, tt.want, ids(all(t, l, tt.q)), tt.name)
		}
	})
}

func TestRecordsStopsWithItsReader(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		_, err := l.Append(t.Context(), []domain.UsageRecord{full("req_1"), full("req_2")})
		require.NoError(t, err)
		enough := errors.New("enough")
		calls := 0
		err = l.Records(t.Context(), Query{}, func(domain.UsageRecord) error {
			calls++
			// The reader may use the ledger meanwhile, also to write.
			_, err := l.Append(t.Context(), []domain.UsageRecord{full("req_3")})
			require.NoError(t, err)
			return enough
		})
		require.ErrorIs(t, err, enough)
		assert.Equal(t, 1, calls)
	})
}

func TestTotals(t *testing.T) {
	t.Parallel()
	kathmandu, err := time.LoadLocation("Asia/Kathmandu") // UTC+5:45: midnight is 18:15 UTC
	require.NoError(t, err)
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		admit := func(id, key string, at time.Time) domain.UsageRecord {
			r := full(id)
			r.KeyID, r.AdmittedAt, r.EndedAt, r.CostMicros = key, at, at.Add(24*time.Hour), 100
			return r
		}
		_, err := l.Append(t.Context(), []domain.UsageRecord{
			admit("req_1", "key_a", time.Date(2026, 11, 29, 18, 14, 59, 999e6, time.UTC)),
			admit("req_2", "key_a", time.Date(2026, 11, 29, 18, 15, 0, 0, time.UTC)),
			admit("req_3", "key_a", time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)),
			admit("req_4", "key_b", time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)),
		})
		require.NoError(t, err)
		sum := func(day, key string, n int64) Total {
			return Total{
				Day: day, Identity: "acme", KeyID: key, Requests: n,
				InputTokens: 60 * n, OutputTokens: 40 * n, CostMicros: 100 * n,
			}
		}
		got, err := l.Totals(t.Context(), Query{})
		require.NoError(t, err)
		assert.Equal(t, []Total{sum("2026-11-29", "key_a", 2), sum("2026-11-29", "key_b", 1), sum("2026-11-30", "key_a", 1)}, got)

		got, err = l.Totals(t.Context(), Query{Zone: kathmandu})
		require.NoError(t, err)
		assert.Equal(t, []Total{sum("2026-11-29", "key_a", 1), sum("2026-11-29", "key_b", 1), sum("2026-11-30", "key_a", 2)}, got)

		got, err = l.Totals(t.Context(), Query{KeyID: "key_a", Since: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)})
		require.NoError(t, err)
		assert.Equal(t, []Total{sum("2026-11-30", "key_a", 1)}, got)
	})
}

// Several processes may open a new ledger at once and write the same records.
func TestConcurrentOpenAndAppend(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		const writers, rows = 4, 120
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			total int
		)
		for w := range writers {
			wg.Go(func() {
				l, err := Open(t.Context(), dsn)
				if !assert.NoError(t, err) {
					return
				}
				defer func() { assert.NoError(t, l.Close()) }()
				var recs []domain.UsageRecord
				for i := range rows {
					recs = append(recs, full(fmt.Sprintf("req_%03d", (i*7+w*31)%rows))) // each in its own order
				}
				n, err := l.Append(t.Context(), recs)
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				total += n
			})
		}
		wg.Wait()
		assert.Equal(t, rows, total, "each record was new for one writer only")
		assert.Len(t, all(t, open(t, dsn), Query{}), rows)
	})
}

func TestReopenKeepsRecords(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l, err := Open(t.Context(), dsn)
		require.NoError(t, err)
		_, err = l.Append(t.Context(), []domain.UsageRecord{full("req_1")})
		require.NoError(t, err)
		require.NoError(t, l.Close())
		assert.Equal(t, []domain.UsageRecord{full("req_1")}, all(t, open(t, dsn), Query{}))
	})
}

func TestSQLiteIsSetForMoney(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "odd name ?#%.db")
	l := open(t, "sqlite:"+path)
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "busy_timeout": "5000", "recursive_triggers": "1",
	} {
		var got string
		require.NoError(t, l.write.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got))
		assert.Equal(t, want, got, pragma)
	}
	info, err := os.Stat(path)
	require.NoError(t, err, "the file has the name that was given")
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	_, err = l.read.ExecContext(t.Context(), "INSERT INTO usage_records DEFAULT VALUES")
	require.Error(t, err, "readers cannot write")
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, dsn, message string }{
		{name: "empty", dsn: "", message: ErrDSN.Error()},
		{name: "no path", dsn: "sqlite:", message: ErrDSN.Error()},
		{name: "other database", dsn: "mysql://u:hunter2@h/d", message: ErrDSN.Error()},
		{name: "absent folder", dsn: "sqlite:" + filepath.Join(t.TempDir(), "absent", "l.db"), message: "create database file"},
		{name: "bad port", dsn: "postgres://u:hunter2@127.0.0.1:port/d", message: "open ledger"},
		{name: "nobody there", dsn: "postgres://u:hunter2@127.0.0.1:1/d", message: "migrate ledger"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Open(t.Context(), tt.dsn)
			require.ErrorContains(t, err, tt.message)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
}
