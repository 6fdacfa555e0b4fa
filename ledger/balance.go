package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"keyway/domain"
)

// chargedToBalance selects the records that a balance paid for. The text is that
// of the partial index.
const chargedToBalance = "budgets LIKE '" + domain.BalancePrefix + "%'"

// AddBalance writes an entry and returns it with its Seq. The entry that has the
// same source and reference, identity and amount is the same one: it is returned
// as it stands, and added is false. Another identity or amount under them is
// domain.ErrReferenceTaken.
func (l *Ledger) AddBalance(ctx context.Context, e domain.BalanceEntry) (stands domain.BalanceEntry, added bool, err error) {
	if err := checkEntry(e); err != nil {
		return stands, false, fmt.Errorf("add balance entry: %w", err)
	}
	tx, err := l.write.BeginTx(ctx, nil)
	if err != nil {
		return stands, false, fmt.Errorf("begin balance entry: %w", err)
	}
	if stands, added, err = l.addBalance(ctx, tx, e); err != nil {
		return domain.BalanceEntry{}, false, errors.Join(fmt.Errorf("add balance entry: %w", err), rollback(tx))
	}
	if err := tx.Commit(); err != nil {
		return domain.BalanceEntry{}, false, fmt.Errorf("commit balance entry: %w", err)
	}
	return stands, added, nil
}

func checkEntry(e domain.BalanceEntry) error {
	switch {
	case e.Identity == "" || e.Source == "" || e.Reference == "":
		return errors.New("identity, source or reference is missing")
	case e.AmountMicros == 0 || e.AmountMicros < -domain.MaxEntryMicros || e.AmountMicros > domain.MaxEntryMicros:
		return fmt.Errorf("an amount of %d micro-units is 0 or beyond %d", e.AmountMicros, domain.MaxEntryMicros)
	}
	for _, text := range []string{e.Identity, e.Source, e.Reference, e.Note} {
		if text != clean(text) {
			return errors.New("a text holds what no database takes")
		}
	}
	return nil
}

const entryColumns = "seq, identity, amount_micros, source, reference, note, at_ms"

func (l *Ledger) addBalance(ctx context.Context, tx *sql.Tx, e domain.BalanceEntry) (stands domain.BalanceEntry, added bool, err error) {
	if l.dialect.oneAtATime != "" {
		if _, err := tx.ExecContext(ctx, l.dialect.oneAtATime); err != nil {
			return stands, false, fmt.Errorf("wait for other entries: %w", err)
		}
	}
	p := l.dialect.placeholder
	row := tx.QueryRowContext(ctx, fmt.Sprintf(`INSERT INTO balance_entries (identity, amount_micros, source, reference, note, at_ms)
		VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (source, reference) DO NOTHING RETURNING seq`, p(1), p(2), p(3), p(4), p(5), p(6)),
		e.Identity, e.AmountMicros, e.Source, e.Reference, e.Note, toMs(e.At))
	e.At = fromMs(toMs(e.At))
	err = row.Scan(&e.Seq)
	if !errors.Is(err, sql.ErrNoRows) {
		return e, err == nil, err
	}
	if stands, err = l.findEntry(ctx, tx, e.Source, e.Reference); err != nil {
		return stands, false, err
	}
	if stands.Identity != e.Identity || stands.AmountMicros != e.AmountMicros {
		return stands, false, fmt.Errorf("%s %s: %w (%d of %s)", e.Source, e.Reference, domain.ErrReferenceTaken, stands.Seq, stands.Identity)
	}
	return stands, false, nil
}

// BalanceEntry finds the entry of a source and reference; domain.ErrNotFound when
// there is none.
func (l *Ledger) BalanceEntry(ctx context.Context, source, reference string) (domain.BalanceEntry, error) {
	e, err := l.findEntry(ctx, l.read, source, reference)
	if err != nil {
		return domain.BalanceEntry{}, fmt.Errorf("find balance entry: %w", err)
	}
	return e, nil
}

// querier is a database or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (l *Ledger) findEntry(ctx context.Context, from querier, source, reference string) (domain.BalanceEntry, error) {
	row := from.QueryRowContext(ctx, fmt.Sprintf("SELECT %s FROM balance_entries WHERE source = %s AND reference = %s",
		entryColumns, l.dialect.placeholder(1), l.dialect.placeholder(2)), source, reference)
	e, err := scanEntry(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return domain.BalanceEntry{}, domain.ErrNotFound
	}
	return e, err
}

func scanEntry(scan func(...any) error) (e domain.BalanceEntry, err error) {
	var at int64
	if err := scan(&e.Seq, &e.Identity, &e.AmountMicros, &e.Source, &e.Reference, &e.Note, &at); err != nil {
		return domain.BalanceEntry{}, fmt.Errorf("scan balance entry: %w", err)
	}
	e.At = fromMs(at)
	return e, nil
}

// Credits sums what was paid in by each identity that has an entry after the one
// given; 0 is all of them. The sums are whole, of one moment and by identity.
func (l *Ledger) Credits(ctx context.Context, after int64) (credits []domain.Credit, err error) {
	rows, err := l.read.QueryContext(ctx, `SELECT identity, CAST(SUM(amount_micros) AS BIGINT), MAX(seq) FROM balance_entries
		WHERE identity IN (SELECT identity FROM balance_entries WHERE seq > `+l.dialect.placeholder(1)+`) GROUP BY identity ORDER BY identity`, after)
	if err != nil {
		return nil, fmt.Errorf("sum credits: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var c domain.Credit
		if err := rows.Scan(&c.Identity, &c.Micros, &c.Entry); err != nil {
			return nil, fmt.Errorf("scan credit: %w", err)
		}
		credits = append(credits, c)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read credits: %w", err)
	}
	return credits, nil
}

// BalanceQuery selects entries. A zero field selects everything.
type BalanceQuery struct {
	Identity string
	// Since is inclusive, Until exclusive.
	Since, Until time.Time
	// Limit bounds the number of entries; 0 is no bound.
	Limit int
}

// span are the bounds of q in milliseconds.
func (q BalanceQuery) span() (since, until int64) {
	if until = toMs(q.Until); until == 0 {
		until = math.MaxInt64
	}
	return toMs(q.Since), until
}

// BalanceEntries calls yield for each entry that q selects, the newest first, one
// at a time. It stops at the first error of yield and returns it, wrapped.
func (l *Ledger) BalanceEntries(ctx context.Context, q BalanceQuery, yield func(domain.BalanceEntry) error) (err error) {
	p := l.dialect.placeholder
	since, until := q.span()
	args := []any{since, until}
	query := "SELECT " + entryColumns + " FROM balance_entries WHERE at_ms >= " + p(1) + " AND at_ms < " + p(2)
	if q.Identity != "" {
		args = append(args, q.Identity)
		query += " AND identity = " + p(len(args))
	}
	query += " ORDER BY seq DESC"
	if q.Limit > 0 {
		args = append(args, q.Limit)
		query += " LIMIT " + p(len(args))
	}
	rows, err := l.read.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("select balance entries: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		e, err := scanEntry(rows.Scan)
		if err != nil {
			return err
		}
		if err := yield(e); err != nil {
			return fmt.Errorf("hand out balance entry: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read balance entries: %w", err)
	}
	return nil
}

// BalanceLine is what became of one identity's balance over a time, in
// millionths of the currency unit: Opening + PaidIn − Spent = Closing.
type BalanceLine struct {
	Identity      string `json:"identity"`
	OpeningMicros int64  `json:"opening_micros"`
	// PaidInMicros are top-ups less what was taken back.
	PaidInMicros int64 `json:"paid_in_micros"`
	// SpentMicros is by the time of admission, corrections included.
	SpentMicros   int64 `json:"spent_micros"`
	ClosingMicros int64 `json:"closing_micros"`
}

// Balances lists the balances of the identities that q selects and that ever paid
// in or spent, by identity. Limit is ignored.
func (l *Ledger) Balances(ctx context.Context, q BalanceQuery) (lines []BalanceLine, err error) {
	tx, err := l.read.BeginTx(ctx, l.dialect.snapshot)
	if err != nil {
		return nil, fmt.Errorf("begin balances: %w", err)
	}
	defer func() { err = errors.Join(err, rollback(tx)) }()
	byIdentity := make(map[string]*BalanceLine)
	line := func(identity string) *BalanceLine {
		if byIdentity[identity] == nil {
			byIdentity[identity] = &BalanceLine{Identity: identity}
		}
		return byIdentity[identity]
	}
	err = l.sumBalance(ctx, tx, paidIn, q, func(identity string, before, within int64) {
		b := line(identity)
		b.OpeningMicros, b.PaidInMicros = before, within
	})
	if err != nil {
		return nil, fmt.Errorf("sum balance entries: %w", err)
	}
	err = l.sumBalance(ctx, tx, paidByBalance, q, func(identity string, before, within int64) {
		b := line(identity)
		b.OpeningMicros -= before
		b.SpentMicros = within
	})
	if err != nil {
		return nil, fmt.Errorf("sum what balances paid for: %w", err)
	}
	for _, b := range byIdentity {
		b.ClosingMicros = b.OpeningMicros + b.PaidInMicros - b.SpentMicros
		lines = append(lines, *b)
	}
	slices.SortFunc(lines, func(a, b BalanceLine) int { return cmp.Compare(a.Identity, b.Identity) })
	return lines, nil
}

// balanceSum names what is summed: a column of a table by its time, under a
// condition that is empty or ends in AND.
type balanceSum struct{ column, table, at, where string }

var (
	paidIn        = balanceSum{"amount_micros", "balance_entries", "at_ms", ""}
	paidByBalance = balanceSum{"cost_micros", "usage_records", "admitted_at_ms", chargedToBalance + " AND "}
)

// sumBalance sums s by identity, before q begins and within it.
func (l *Ledger) sumBalance(ctx context.Context, tx *sql.Tx, s balanceSum, q BalanceQuery, yield func(identity string, before, within int64)) (err error) {
	query, args := s.query(l.dialect.placeholder, q)
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var (
			identity       string
			before, within int64
		)
		if err := rows.Scan(&identity, &before, &within); err != nil {
			return err
		}
		yield(identity, before, within)
	}
	return rows.Err()
}

// query is the statement with its parameters.
func (s balanceSum) query(p func(int) string, q BalanceQuery) (string, []any) {
	since, until := q.span()
	args := []any{since, until}
	query := fmt.Sprintf(`SELECT identity, CAST(SUM(CASE WHEN %[1]s < since THEN %[2]s ELSE 0 END) AS BIGINT),
		CAST(SUM(CASE WHEN %[1]s >= since THEN %[2]s ELSE 0 END) AS BIGINT)
		FROM %[3]s, (SELECT CAST(%[4]s AS BIGINT) AS since) AS span WHERE %[5]s%[1]s < %[6]s`,
		s.at, s.column, s.table, p(1), s.where, p(2))
	if q.Identity != "" {
		args = append(args, q.Identity)
		query += " AND identity = " + p(3)
	}
	return query + " GROUP BY identity", args
}

// sumBalances adds, for every prepaid identity, what it has paid in and what its
// balance has paid for since the beginning.
func (l *Ledger) sumBalances(ctx context.Context, tx *sql.Tx, sums domain.BudgetSums) error {
	err := l.sumBalance(ctx, tx, paidIn, BalanceQuery{}, func(identity string, before, within int64) {
		sums.Spent[domain.CreditPrefix+identity] = before + within
	})
	if err != nil {
		return err
	}
	return l.sumBalance(ctx, tx, paidByBalance, BalanceQuery{}, func(identity string, before, within int64) {
		sums.Spent[domain.BalanceCounter(identity)] = before + within
	})
}
