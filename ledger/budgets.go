package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"keyway/domain"
)

// newestAmong is how many of the last rows are looked at for the newest settlement:
// batches of several workers, and what one took over from another, are written out
// of order.
const newestAmong = 10_000

// Newest is when the newest settlement reached the store, by the store's clock; the
// zero time for an empty ledger, and for one without settlements of this version.
func (l *Ledger) Newest(ctx context.Context) (time.Time, error) {
	var ms sql.NullInt64
	if err := l.read.QueryRowContext(ctx, fmt.Sprintf(
		"SELECT MAX(settled_at_ms) FROM (SELECT settled_at_ms FROM usage_records ORDER BY seq DESC LIMIT %d) AS last", newestAmong)).Scan(&ms); err != nil {
		return time.Time{}, fmt.Errorf("find newest entry: %w", err)
	}
	return fromMs(ms.Int64), nil
}

// BudgetSums adds up what was charged to each budget and window of images by
// requests admitted at since or later, what was paid into balances and spent of
// them at any time, and tells which of the given requests it has. All are of one
// moment: a settlement that arrives meanwhile is in all of them or in none.
func (l *Ledger) BudgetSums(ctx context.Context, since time.Time, requests []string) (sums domain.BudgetSums, err error) {
	tx, err := l.read.BeginTx(ctx, l.dialect.snapshot)
	if err != nil {
		return sums, fmt.Errorf("begin to sum budgets: %w", err)
	}
	defer func() { err = errors.Join(err, rollback(tx)) }()
	sums = domain.BudgetSums{Since: since, Spent: make(map[string]int64), Owner: make(map[string]string), Settled: make(map[string]bool)}
	if err := l.sumBudgets(ctx, tx, sums); err != nil {
		return domain.BudgetSums{}, fmt.Errorf("sum budgets: %w", err)
	}
	if err := l.sumBalances(ctx, tx, sums); err != nil {
		return domain.BudgetSums{}, fmt.Errorf("sum balances: %w", err)
	}
	for chunk := range slices.Chunk(requests, rowsPerInsert) {
		if err := l.findSettled(ctx, tx, chunk, sums.Settled); err != nil {
			return domain.BudgetSums{}, fmt.Errorf("find settlements: %w", err)
		}
	}
	return sums, nil
}

// sumBudgets lets the database sum by the list of budgets, of which there are
// as many as there are keys and windows, and splits the lists here.
func (l *Ledger) sumBudgets(ctx context.Context, tx *sql.Tx, sums domain.BudgetSums) (err error) {
	rows, err := tx.QueryContext(ctx, `SELECT identity, budgets, CAST(SUM(cost_micros) AS BIGINT), CAST(SUM(`+l.dialect.images+`) AS BIGINT)
		FROM usage_records WHERE admitted_at_ms >= `+l.dialect.placeholder(1)+` AND budgets <> '' GROUP BY identity, budgets`, toMs(sums.Since))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var (
			identity, names string
			micros, images  int64
		)
		if err := rows.Scan(&identity, &names, &micros, &images); err != nil {
			return err
		}
		for _, name := range windowNames(names) {
			sums.Owner[name] = identity
			switch {
			case strings.HasPrefix(name, domain.BalancePrefix): // it has a sum of its own, from the beginning
			case domain.IsBudgetName(name):
				sums.Spent[name] += micros
			default:
				sums.Spent[name] += images
			}
		}
	}
	return rows.Err()
}

// windowNames splits the column budgets. A name of one model's window has a
// blank itself, in front of the model; no name begins as a model's does.
func windowNames(column string) []string {
	var names []string
	for _, piece := range strings.Fields(column) {
		if len(names) == 0 || domain.IsBudgetName(piece) || domain.IsImagesName(piece) {
			names = append(names, piece)
			continue
		}
		names[len(names)-1] += " " + piece
	}
	return names
}

func (l *Ledger) findSettled(ctx context.Context, tx *sql.Tx, requests []string, found map[string]bool) (err error) {
	args := make([]any, len(requests))
	marks := make([]string, len(requests))
	for i, request := range requests {
		args[i], marks[i] = request, l.dialect.placeholder(i+1)
	}
	rows, err := tx.QueryContext(ctx,
		"SELECT request_id FROM usage_records WHERE entry_no = 0 AND request_id IN ("+strings.Join(marks, ", ")+")", args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var request string
		if err := rows.Scan(&request); err != nil {
			return err
		}
		found[request] = true
	}
	return rows.Err()
}
