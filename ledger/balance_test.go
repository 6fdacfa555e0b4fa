package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func topUp(identity string, micros int64, reference string) domain.BalanceEntry {
	return domain.BalanceEntry{Identity: identity, AmountMicros: micros, Source: "test", Reference: reference, Note: "ü", At: noon}
}

func add(t *testing.T, l *Ledger, e domain.BalanceEntry) domain.BalanceEntry {
	t.Helper()
	stands, added, err := l.AddBalance(t.Context(), e)
	require.NoError(t, err)
	require.True(t, added)
	return stands
}

func entries(t *testing.T, l *Ledger, q BalanceQuery) []domain.BalanceEntry {
	t.Helper()
	var got []domain.BalanceEntry
	require.NoError(t, l.BalanceEntries(t.Context(), q, func(e domain.BalanceEntry) error {
		got = append(got, e)
		return nil
	}))
	return got
}

func TestBalanceEntries(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		first := add(t, l, topUp("acme", 500, "1"))
		want := topUp("acme", 500, "1")
		want.Seq = first.Seq
		require.Equal(t, want, first)

		again := topUp("acme", 500, "1")
		again.Note, again.At = "told once more", noon.Add(time.Hour)
		stands, added, err := l.AddBalance(t.Context(), again)
		require.NoError(t, err)
		require.False(t, added)
		require.Equal(t, first, stands, "the entry stays as it was")
		for _, other := range []domain.BalanceEntry{topUp("acme", 501, "1"), topUp("other", 500, "1")} {
			_, _, err := l.AddBalance(t.Context(), other)
			require.ErrorIs(t, err, domain.ErrReferenceTaken)
		}
		elsewhere := topUp("acme", 40, "1")
		elsewhere.Source, elsewhere.At = "elsewhere", noon.Add(time.Minute)
		second := add(t, l, elsewhere)
		require.Greater(t, second.Seq, first.Seq)
		back := add(t, l, topUp("acme", -100, "2"))
		other := add(t, l, topUp("other", 7, "3"))

		require.Equal(t, []domain.BalanceEntry{other, back, second, first}, entries(t, l, BalanceQuery{}))
		require.Equal(t, []domain.BalanceEntry{back, second}, entries(t, l, BalanceQuery{Identity: "acme", Limit: 2}))
		require.Equal(t, []domain.BalanceEntry{second}, entries(t, l, BalanceQuery{Since: noon.Add(time.Second)}))
		require.Equal(t, []domain.BalanceEntry{other, back, first}, entries(t, l, BalanceQuery{Until: noon.Add(time.Minute)}))
		no := errors.New("no")
		require.ErrorIs(t, l.BalanceEntries(t.Context(), BalanceQuery{}, func(domain.BalanceEntry) error { return no }), no)

		found, err := l.BalanceEntry(t.Context(), "elsewhere", "1")
		require.NoError(t, err)
		require.Equal(t, second, found)
		_, err = l.BalanceEntry(t.Context(), "elsewhere", "2")
		require.ErrorIs(t, err, domain.ErrNotFound)

		for after, want := range map[int64][]domain.Credit{
			0:          {{Identity: "acme", Micros: 440, Entry: back.Seq}, {Identity: "other", Micros: 7, Entry: other.Seq}},
			second.Seq: {{Identity: "acme", Micros: 440, Entry: back.Seq}, {Identity: "other", Micros: 7, Entry: other.Seq}},
			back.Seq:   {{Identity: "other", Micros: 7, Entry: other.Seq}},
			other.Seq:  nil,
		} {
			credits, err := l.Credits(t.Context(), after)
			require.NoError(t, err)
			require.Equal(t, want, credits, "after %d", after)
		}
		for _, statement := range []string{"UPDATE balance_entries SET amount_micros = 1", "DELETE FROM balance_entries"} {
			_, err := l.write.ExecContext(t.Context(), statement)
			require.ErrorContains(t, err, "append only")
		}
	})
}

func TestBalanceEntriesThatCannotBe(t *testing.T) {
	t.Parallel()
	l := open(t, "sqlite:"+t.TempDir()+"/ledger.db")
	for name, e := range map[string]domain.BalanceEntry{
		"no identity":  topUp("", 1, "1"),
		"no reference": topUp("acme", 1, ""),
		"no source":    {Identity: "acme", AmountMicros: 1, Reference: "1"},
		"nothing":      topUp("acme", 0, "1"),
		"too much":     topUp("acme", domain.MaxEntryMicros+1, "1"),
		"too little":   topUp("acme", -domain.MaxEntryMicros-1, "1"),
		"a NUL":        topUp("ac\x00me", 1, "1"),
	} {
		_, _, err := l.AddBalance(t.Context(), e)
		require.Error(t, err, name)
	}
	require.Empty(t, entries(t, l, BalanceQuery{}))
	add(t, l, topUp("acme", domain.MaxEntryMicros, "1"))
	add(t, l, topUp("acme", -domain.MaxEntryMicros, "2"))
}

// Who reads the credits after the last entry that it saw misses none, however
// many write at once: numbers rise in the order of the commits.
func TestCreditsMissNoEntry(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		writers := []*Ledger{open(t, dsn), open(t, dsn)}
		const each = 10
		var (
			wg     sync.WaitGroup
			done   = make(chan struct{})
			failed atomic.Int64
		)
		for n := range 8 {
			wg.Go(func() {
				for i := range each {
					_, _, err := writers[n%2].AddBalance(context.Background(), topUp(fmt.Sprintf("identity %d", i), 1, fmt.Sprintf("%d %d", n, i)))
					if !assert.NoError(t, err) {
						failed.Add(1)
					}
				}
			})
		}
		go func() { wg.Wait(); close(done) }()
		known, mark := map[string]int64{}, int64(0)
		read := func() {
			credits, err := writers[0].Credits(t.Context(), mark)
			require.NoError(t, err)
			for _, c := range credits {
				known[c.Identity], mark = c.Micros, max(mark, c.Entry)
			}
		}
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			read()
		}
		require.Zero(t, failed.Load())
		require.Len(t, known, each)
		for identity, micros := range known {
			require.EqualValues(t, 8, micros, identity)
		}
	})
}

// charged is a settlement that a balance paid for.
func charged(id, identity string, micros int64, at time.Time) domain.UsageRecord {
	r := least(id)
	r.Identity, r.CostMicros, r.AdmittedAt = identity, micros, at
	r.Budgets = []string{domain.BalanceCounter(identity), "budget:day:key:key_1:2026-11-29"}
	return r
}

func TestBalances(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		later := noon.Add(24 * time.Hour)
		add(t, l, topUp("acme", 1000, "1"))
		second := topUp("acme", 500, "2")
		second.At = later
		add(t, l, second)
		postpaid := least("not charged to it")
		postpaid.CostMicros, postpaid.Budgets = 99, []string{"budget:month:identity:budget:balance:x:2026-11"}
		_, err := l.Append(t.Context(), []domain.UsageRecord{
			charged("req_1", "acme", 300, noon), charged("req_2", "acme", 50, later), charged("req_3", "debtor", 20, later), postpaid,
		})
		require.NoError(t, err)
		_, err = l.Correct(t.Context(), Correction{RequestID: "req_1", Reason: "x", Change: costs(200), At: later})
		require.NoError(t, err)

		whole := []BalanceLine{
			{Identity: "acme", PaidInMicros: 1500, SpentMicros: 250, ClosingMicros: 1250},
			{Identity: "debtor", SpentMicros: 20, ClosingMicros: -20},
		}
		for _, tt := range []struct {
			name  string
			query BalanceQuery
			want  []BalanceLine
		}{
			{"all", BalanceQuery{}, whole},
			{"one", BalanceQuery{Identity: "debtor"}, whole[1:]},
			{"a period", BalanceQuery{Since: later, Until: later.Add(time.Hour), Identity: "acme"}, []BalanceLine{
				{Identity: "acme", OpeningMicros: 800, PaidInMicros: 500, SpentMicros: 50, ClosingMicros: 1250},
			}},
			{"before it", BalanceQuery{Until: later}, []BalanceLine{
				{Identity: "acme", PaidInMicros: 1000, SpentMicros: 200, ClosingMicros: 800},
			}},
			{"nobody", BalanceQuery{Identity: "nobody"}, nil},
		} {
			got, err := l.Balances(t.Context(), tt.query)
			require.NoError(t, err)
			require.Equal(t, tt.want, got, tt.name)
		}
		// The sums of budgets have balances from the beginning, others since.
		sums, err := l.BudgetSums(t.Context(), later, nil)
		require.NoError(t, err)
		require.Equal(t, map[string]int64{
			domain.BalanceCounter("acme"): 250, domain.BalanceCounter("debtor"): 20, "credit:acme": 1500,
			"budget:day:key:key_1:2026-11-29": 70,
		}, sums.Spent)
	})
}

// The sums of balances are read by their index, not from the whole ledger.
func TestBalancesReadTheirIndex(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		explain := "EXPLAIN QUERY PLAN "
		if l.dialect.oneAtATime != "" { // Postgres
			_, err := l.write.ExecContext(t.Context(), "SET enable_seqscan = off")
			require.NoError(t, err)
			l.write.SetMaxOpenConns(1)
			explain = "EXPLAIN "
		}
		query, args := paidByBalance.query(l.dialect.placeholder, BalanceQuery{})
		rows, err := l.read.QueryContext(t.Context(), explain+query, args...)
		require.NoError(t, err)
		defer rows.Close()
		columns, err := rows.Columns()
		require.NoError(t, err)
		var plan strings.Builder
		for rows.Next() {
			row := make([]any, len(columns))
			for i := range row {
				row[i] = new(any)
			}
			require.NoError(t, rows.Scan(row...))
			fmt.Fprintln(&plan, *row[len(row)-1].(*any))
		}
		require.NoError(t, rows.Err())
		require.Contains(t, plan.String(), "usage_records_balance")
	})
}
