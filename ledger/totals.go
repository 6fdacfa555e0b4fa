package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Total is the sum of one key's records over one calendar day.
type Total struct {
	// Day is "2026-11-29" in the query's zone, by the time of admission: the
	// day whose budget the requests were held against.
	Day      string `json:"day"`
	Identity string `json:"identity"`
	KeyID    string `json:"key_id"`
	Requests int64  `json:"requests"`
	// InputTokens is the whole prompt, cached parts included.
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	CostMicros   int64 `json:"cost_micros"`
}

// sliceMs is the grain in which the database sums: a quarter of an hour, since
// every time zone's midnight falls on one. Days are made of slices here, so
// that both databases follow the same zone rules: Go's.
const sliceMs = int64(15 * time.Minute / time.Millisecond)

// Totals sums the records that q selects by day, identity and key, in that
// order. Comparing it with the regional store's counters shows drift.
func (l *Ledger) Totals(ctx context.Context, q Query) (totals []Total, err error) {
	where, args := q.where(l.dialect, "admitted_at_ms")
	// Postgres sums BIGINT to NUMERIC; the casts bring both databases to integers.
	query := fmt.Sprintf(`SELECT admitted_at_ms / %d AS slice, identity, key_id,
		COUNT(DISTINCT request_id),
		CAST(SUM(input_uncached_tokens + cache_read_tokens + cache_write_tokens) AS BIGINT),
		CAST(SUM(output_tokens) AS BIGINT),
		CAST(SUM(cost_micros) AS BIGINT)
		FROM usage_records%s GROUP BY slice, identity, key_id`, sliceMs, where)
	rows, err := l.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("select totals: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()

	zone := q.Zone
	if zone == nil {
		zone = time.UTC
	}
	type group struct{ day, identity, keyID string }
	sums := make(map[group]*Total)
	for rows.Next() {
		var (
			slice int64
			part  Total
		)
		if err := rows.Scan(&slice, &part.Identity, &part.KeyID,
			&part.Requests, &part.InputTokens, &part.OutputTokens, &part.CostMicros); err != nil {
			return nil, fmt.Errorf("scan totals: %w", err)
		}
		part.Day = time.UnixMilli(slice * sliceMs).In(zone).Format(time.DateOnly)
		g := group{part.Day, part.Identity, part.KeyID}
		sum, ok := sums[g]
		if !ok {
			sums[g] = &part
			continue
		}
		sum.Requests += part.Requests
		sum.InputTokens += part.InputTokens
		sum.OutputTokens += part.OutputTokens
		sum.CostMicros += part.CostMicros
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read totals: %w", err)
	}
	for _, sum := range sums {
		totals = append(totals, *sum)
	}
	slices.SortFunc(totals, func(a, b Total) int {
		return cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.KeyID, b.KeyID))
	})
	return totals, nil
}
