package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"keyway/domain"
)

// columns are those of an entry, in the order of values and of scan.
var columns = []string{
	"request_id", "attempt", "key_id", "identity", "api", "model", "model_served", "channel", "attempts",
	"outcome", "source", "status",
	"input_uncached_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens",
	"output_tokens", "reasoning_tokens",
	"cost_micros", "price_version", "raw_usage", "prompt_tokens_estimate", "upstream_request_id",
	"admitted_at_ms", "first_byte_at_ms", "ended_at_ms",
	"cache_write_30m_tokens", "cache_write_12h_tokens",
	"input_audio_tokens", "input_image_tokens", "output_audio_tokens", "output_image_tokens",
	"tool_calls", "service_tier", "entry_no", "reason", "budgets", "model_dispatched", "settled_at_ms",
}

// rowsPerInsert keeps a statement far below the parameter limits of both
// databases (32 766 and 65 535).
const rowsPerInsert = 100

// Append writes the settlements in recs in one transaction: after nil all of
// them are durable, after an error none is new. A request whose settlement is
// there already is passed over, so appending again is harmless; inserted
// counts the others. An error that wraps domain.ErrRejected blames a record,
// any other one the database. recs is not changed.
func (l *Ledger) Append(ctx context.Context, recs []domain.UsageRecord) (inserted int, err error) {
	if len(recs) == 0 {
		return 0, nil
	}
	// One order for every writer, so that two of them cannot deadlock.
	sorted := slices.Clone(recs)
	slices.SortStableFunc(sorted, func(a, b domain.UsageRecord) int { return strings.Compare(a.RequestID, b.RequestID) })

	tx, err := l.write.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("begin append: %w", err)
	}
	for chunk := range slices.Chunk(sorted, rowsPerInsert) {
		n, err := l.insert(ctx, tx, chunk)
		if err != nil {
			if l.dialect.rejects(err) {
				err = fmt.Errorf("%w: %w", domain.ErrRejected, err)
			}
			return 0, errors.Join(fmt.Errorf("append records: %w", err), rollback(tx))
		}
		inserted += n
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("commit append: %w", err)
	}
	return inserted, nil
}

func (l *Ledger) insert(ctx context.Context, tx *sql.Tx, recs []domain.UsageRecord) (int, error) {
	args := make([]any, 0, len(recs)*len(columns))
	var b strings.Builder
	b.WriteString("INSERT INTO usage_records (" + strings.Join(columns, ", ") + ") VALUES ")
	for i, rec := range recs {
		values, err := values(rec)
		if err != nil {
			return 0, err
		}
		if i > 0 {
			b.WriteString(", ")
		}
		for j, v := range values {
			args = append(args, v)
			b.WriteString([]string{"(", ", "}[min(j, 1)] + l.dialect.placeholder(len(args)))
		}
		b.WriteString(")")
	}
	b.WriteString(" ON CONFLICT (request_id, entry_no) DO NOTHING")
	res, err := tx.ExecContext(ctx, b.String(), args...)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("count inserted rows: %w", err)
	}
	return int(n), nil
}

// rollback returns what is news: a transaction whose connection or context is
// gone has been rolled back already.
func rollback(tx *sql.Tx) error {
	if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// attemptJSON is a domain.Attempt in the attempts column and in Row.
type attemptJSON struct {
	Channel string `json:"channel"`
	Status  int    `json:"status"`
}

func attemptsToJSON(attempts []domain.Attempt) []attemptJSON {
	out := make([]attemptJSON, 0, len(attempts))
	for _, a := range attempts {
		out = append(out, attemptJSON{Channel: a.Channel, Status: a.Status})
	}
	return out
}

// values lists rec by the order of columns.
func values(rec domain.UsageRecord) ([]any, error) {
	attempts, err := json.Marshal(attemptsToJSON(rec.Attempts))
	if err != nil {
		return nil, fmt.Errorf("encode attempts: %w", err)
	}
	tools, err := json.Marshal(toolsToJSON(rec.Usage.Tools))
	if err != nil {
		return nil, fmt.Errorf("encode tool calls: %w", err)
	}
	var raw any
	if rec.RawUsage != nil {
		raw = clean(string(rec.RawUsage))
	}
	u := rec.Usage
	return []any{
		clean(rec.RequestID), rec.Attempt, clean(rec.KeyID), clean(rec.Identity), clean(string(rec.API)),
		clean(rec.Model), clean(rec.ModelServed), clean(rec.Channel), clean(string(attempts)),
		string(rec.Outcome), string(rec.Source), rec.Status,
		u.InputUncached, u.CacheRead, u.CacheWrite, u.CacheWrite1h, u.Output, u.Reasoning,
		rec.CostMicros, clean(rec.PriceVersion), raw, rec.PromptTokensEstimate, clean(rec.UpstreamRequestID),
		toMs(rec.AdmittedAt), toMs(rec.FirstByteAt), toMs(rec.EndedAt),
		u.CacheWrite30m, u.CacheWrite12h, u.InputAudio, u.InputImage, u.OutputAudio, u.OutputImage,
		string(tools), clean(u.Tier), rec.EntryNo, clean(rec.Reason), clean(strings.Join(rec.Budgets, " ")), clean(rec.ModelDispatched),
		toMs(rec.SettledAt),
	}, nil
}

// toolsToJSON names the tools that were called.
func toolsToJSON(calls [domain.ToolKinds]int64) map[string]int64 {
	out := map[string]int64{}
	for tool, n := range calls {
		if n != 0 {
			out[domain.Tool(tool).String()] = n
		}
	}
	return out
}

// clean makes text that both databases take: Postgres refuses NUL and broken
// UTF-8, and a provider's odd header must not keep money out of the ledger.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// toMs is milliseconds since the epoch; 0 stands for the zero time.
func toMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMs(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
