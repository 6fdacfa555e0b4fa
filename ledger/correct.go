package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"keyway/domain"
)

// ErrUnknownRequest: the ledger has no settlement of the request.
var ErrUnknownRequest = errors.New("the ledger has no such request")

// Correction says what a request's settlement should have been.
type Correction struct {
	RequestID string
	// Reason is for whoever reads the ledger later; required.
	Reason string
	// Change alters what stands, in place: its usage and its cost.
	Change func(*domain.UsageRecord) error
	// At is the time of the correction.
	At time.Time
}

// Correct writes a correction as two further entries of the request in one
// transaction: one that takes back what stands, and one with what should have
// been. Nothing is changed or deleted. Both keep the time of admission, and
// with it the day and the budgets of the settlement, and end at the time of
// the correction. It returns the two entries. Of two corrections of one
// request at the same moment one fails and may be repeated.
func (l *Ledger) Correct(ctx context.Context, c Correction) (entries []domain.UsageRecord, err error) {
	if strings.TrimSpace(c.Reason) == "" {
		return nil, errors.New("correct request: a reason is missing")
	}
	tx, err := l.write.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("begin correction: %w", err)
	}
	stands, err := l.lastEntry(ctx, tx, c.RequestID)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("correct request %s: %w", c.RequestID, err), rollback(tx))
	}
	next := stands
	if err := c.Change(&next); err != nil {
		return nil, errors.Join(fmt.Errorf("correct request %s: %w", c.RequestID, err), rollback(tx))
	}
	entries = []domain.UsageRecord{reversal(stands), next}
	for i := range entries {
		e := &entries[i]
		e.EntryNo, e.Reason, e.EndedAt, e.SettledAt = stands.EntryNo+1+i, c.Reason, c.At, time.Time{}
	}
	n, err := l.insert(ctx, tx, entries)
	if err == nil && n != len(entries) {
		err = errors.New("someone else corrected it at the same moment; look at it again")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("correct request %s: %w", c.RequestID, err), rollback(tx))
	}
	if err := tx.Commit(); err != nil {
		return nil, fmt.Errorf("commit correction: %w", err)
	}
	return entries, nil
}

// lastEntry reads what stands: the settlement, or what the last correction made of it.
func (l *Ledger) lastEntry(ctx context.Context, tx *sql.Tx, request string) (rec domain.UsageRecord, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT "+strings.Join(columns, ", ")+" FROM usage_records WHERE request_id = "+
		l.dialect.placeholder(1)+" ORDER BY entry_no DESC LIMIT 1", request)
	if err != nil {
		return rec, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	if !rows.Next() {
		return rec, errors.Join(ErrUnknownRequest, rows.Err())
	}
	return scan(rows)
}

// reversal is the entry that takes rec back, number by number.
func reversal(rec domain.UsageRecord) domain.UsageRecord {
	u := &rec.Usage
	for _, n := range []*int64{
		&u.InputUncached, &u.CacheRead, &u.CacheWrite, &u.CacheWrite1h, &u.Output, &u.Reasoning,
		&u.CacheWrite30m, &u.CacheWrite12h, &u.InputAudio, &u.InputImage, &u.OutputAudio, &u.OutputImage,
		&rec.CostMicros, &rec.PromptTokensEstimate,
	} {
		*n = -*n
	}
	for tool := range u.Tools {
		u.Tools[tool] = -u.Tools[tool]
	}
	return rec
}
