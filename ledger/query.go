package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"keyway/domain"
)

// Order is the order of the records of a query, by the time they ended.
type Order int

// The orders. The zero value is OldestFirst.
const (
	OldestFirst Order = iota
	NewestFirst
)

// Query selects records. A zero field selects everything.
type Query struct {
	// Since is inclusive, Until exclusive. Records compares them with the time
	// a request ended, Totals with the time it was admitted.
	Since, Until time.Time
	KeyID        string
	Identity     string
	// Model is the name asked for.
	Model string
	// Channel is that of the last attempt.
	Channel   string
	Outcome   domain.Outcome
	RequestID string
	// Limit bounds the number of records; 0 is no bound. Totals ignores it.
	Limit int
	// Order is which records come first, and so which ones a Limit keeps.
	// Totals ignores it.
	Order Order
	// Zone is where the days of Totals begin and end; nil is UTC.
	Zone *time.Location
}

// where returns the condition of q on the time column, "" for none, and its
// parameters, numbered from 1.
func (q Query) where(d dialect, timeColumn string) (string, []any) {
	var (
		conds []string
		args  []any
	)
	add := func(column, op string, value any) {
		args = append(args, value)
		conds = append(conds, column+" "+op+" "+d.placeholder(len(args)))
	}
	if !q.Since.IsZero() {
		add(timeColumn, ">=", q.Since.UnixMilli())
	}
	if !q.Until.IsZero() {
		add(timeColumn, "<", q.Until.UnixMilli())
	}
	for _, eq := range []struct{ column, value string }{
		{"key_id", q.KeyID},
		{"identity", q.Identity},
		{"model", q.Model},
		{"channel", q.Channel},
		{"outcome", string(q.Outcome)},
		{"request_id", q.RequestID},
	} {
		if eq.value != "" {
			add(eq.column, "=", eq.value)
		}
	}
	if len(conds) == 0 {
		return "", nil
	}
	return " WHERE " + strings.Join(conds, " AND "), args
}

// Records calls yield for each record that q selects, ordered by the time the
// request ended, one at a time and without holding them all in memory. It
// stops at the first error of yield and returns it, wrapped.
func (l *Ledger) Records(ctx context.Context, q Query, yield func(domain.UsageRecord) error) (err error) {
	where, args := q.where(l.dialect, "ended_at_ms")
	query := "SELECT " + strings.Join(columns, ", ") + " FROM usage_records" + where
	if q.Order == NewestFirst {
		query += " ORDER BY ended_at_ms DESC, seq DESC"
	} else {
		query += " ORDER BY ended_at_ms, seq"
	}
	if q.Limit > 0 {
		args = append(args, q.Limit)
		query += " LIMIT " + l.dialect.placeholder(len(args))
	}
	rows, err := l.read.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("select records: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		rec, err := scan(rows)
		if err != nil {
			return err
		}
		if err := yield(rec); err != nil {
			return fmt.Errorf("hand out record: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	return nil
}

// scan reads one row of columns.
func scan(rows *sql.Rows) (domain.UsageRecord, error) {
	var (
		rec                        domain.UsageRecord
		attempts, tools, budgets   string
		raw                        sql.NullString
		admitted, firstByte, ended int64
		settled                    int64
	)
	u := &rec.Usage
	err := rows.Scan(
		&rec.RequestID, &rec.Attempt, &rec.KeyID, &rec.Identity, &rec.API,
		&rec.Model, &rec.ModelServed, &rec.Channel, &attempts,
		&rec.Outcome, &rec.Source, &rec.Status,
		&u.InputUncached, &u.CacheRead, &u.CacheWrite, &u.CacheWrite1h, &u.Output, &u.Reasoning,
		&rec.CostMicros, &rec.PriceVersion, &raw, &rec.PromptTokensEstimate, &rec.UpstreamRequestID,
		&admitted, &firstByte, &ended,
		&u.CacheWrite30m, &u.CacheWrite12h, &u.InputAudio, &u.InputImage, &u.OutputAudio, &u.OutputImage,
		&tools, &u.Tier, &rec.EntryNo, &rec.Reason, &budgets, &rec.ModelDispatched, &settled,
	)
	if err != nil {
		return domain.UsageRecord{}, fmt.Errorf("scan record: %w", err)
	}
	var list []attemptJSON
	if err := json.Unmarshal([]byte(attempts), &list); err != nil {
		return domain.UsageRecord{}, fmt.Errorf("decode attempts of request %s: %w", rec.RequestID, err)
	}
	var calls map[string]int64
	if err := json.Unmarshal([]byte(tools), &calls); err != nil {
		return domain.UsageRecord{}, fmt.Errorf("decode tool calls of request %s: %w", rec.RequestID, err)
	}
	for name, n := range calls {
		if tool, ok := domain.ToolNamed(name); ok {
			u.Tools[tool] = n
		}
	}
	rec.Budgets = windowNames(budgets)
	for _, a := range list {
		rec.Attempts = append(rec.Attempts, domain.Attempt{Channel: a.Channel, Status: a.Status})
	}
	if raw.Valid {
		rec.RawUsage = []byte(raw.String)
	}
	rec.AdmittedAt, rec.FirstByteAt, rec.EndedAt = fromMs(admitted), fromMs(firstByte), fromMs(ended)
	rec.SettledAt = fromMs(settled)
	return rec, nil
}
