package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Dimension is what the lines of a statement are told apart by.
type Dimension string

// The dimensions.
const (
	ByDay         Dimension = "day"
	ByMonth       Dimension = "month"
	ByKey         Dimension = "key"
	ByIdentity    Dimension = "identity"
	ByModel       Dimension = "model"        // as asked for
	ByModelServed Dimension = "model_served" // as the provider named it; the one asked for where it did not
	ByChannel     Dimension = "channel"
	// ByModelDispatched is the model whose price was paid.
	ByModelDispatched Dimension = "model_dispatched"
)

// Dimensions lists all of them.
func Dimensions() []Dimension {
	return []Dimension{ByDay, ByMonth, ByIdentity, ByKey, ByModel, ByModelServed, ByModelDispatched, ByChannel}
}

// dimensionColumns are the columns of the dimensions that are no times.
var dimensionColumns = map[Dimension]string{
	ByKey:         "key_id",
	ByIdentity:    "identity",
	ByModel:       "model",
	ByModelServed: "COALESCE(NULLIF(model_served, ''), model)",
	ByChannel:     "channel",

	ByModelDispatched: "COALESCE(NULLIF(model_dispatched, ''), model)",
}

// Line is one line of a statement. Corrections are in its sums.
type Line struct {
	// Labels are by the order of the dimensions asked for; a day is
	// "2026-11-29" and a month "2026-11" in the query's zone, by the time of admission.
	Labels   []string
	Requests int64
	// InputTokens is the whole prompt, cached parts included.
	InputTokens  int64
	OutputTokens int64
	CostMicros   int64
}

// Statement sums the entries that q selects by the given dimensions, and sorts
// the lines by their labels. Without a dimension it is one line, or none. As
// in Totals, q selects by the time of admission, and Order and Limit are ignored.
func (l *Ledger) Statement(ctx context.Context, q Query, by []Dimension) (lines []Line, err error) {
	grouped := []string{"slice"}
	selected := []string{fmt.Sprintf("admitted_at_ms / %d AS slice", sliceMs)}
	for i, d := range by {
		if column, ok := dimensionColumns[d]; ok {
			name := fmt.Sprintf("label_%d", i)
			selected = append(selected, column+" AS "+name)
			grouped = append(grouped, name)
		} else if d != ByDay && d != ByMonth {
			return nil, fmt.Errorf("statement by %q: no such dimension", d)
		}
	}
	where, args := q.where(l.dialect, "admitted_at_ms")
	rows, err := l.read.QueryContext(ctx, `SELECT `+strings.Join(selected, ", ")+`,
		COUNT(DISTINCT request_id),
		CAST(SUM(input_uncached_tokens + cache_read_tokens + cache_write_tokens) AS BIGINT),
		CAST(SUM(output_tokens) AS BIGINT),
		CAST(SUM(cost_micros) AS BIGINT)
		FROM usage_records`+where+` GROUP BY `+strings.Join(grouped, ", "), args...)
	if err != nil {
		return nil, fmt.Errorf("select statement: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()

	sums := make(map[string]*Line)
	for rows.Next() {
		var slice int64
		part := Line{Labels: make([]string, len(by))}
		into := []any{&slice}
		for i, d := range by {
			if dimensionColumns[d] != "" {
				into = append(into, &part.Labels[i])
			}
		}
		if err := rows.Scan(append(into, &part.Requests, &part.InputTokens, &part.OutputTokens, &part.CostMicros)...); err != nil {
			return nil, fmt.Errorf("scan statement: %w", err)
		}
		q.labelTimes(part.Labels, by, slice)
		addLine(sums, part)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read statement: %w", err)
	}
	for _, line := range sums {
		lines = append(lines, *line)
	}
	slices.SortFunc(lines, func(a, b Line) int { return slices.CompareFunc(a.Labels, b.Labels, cmp.Compare[string]) })
	return lines, nil
}

// labelTimes fills in the labels that follow from the time slice.
func (q Query) labelTimes(labels []string, by []Dimension, slice int64) {
	zone := q.Zone
	if zone == nil {
		zone = time.UTC
	}
	at := time.UnixMilli(slice * sliceMs).In(zone)
	for i, d := range by {
		switch d {
		case ByDay:
			labels[i] = at.Format(time.DateOnly)
		case ByMonth:
			labels[i] = at.Format("2006-01")
		}
	}
}

func addLine(sums map[string]*Line, part Line) {
	key := strings.Join(part.Labels, "\x00") // no label holds a NUL: Append takes it out
	sum, ok := sums[key]
	if !ok {
		sums[key] = &part
		return
	}
	sum.Requests += part.Requests
	sum.InputTokens += part.InputTokens
	sum.OutputTokens += part.OutputTokens
	sum.CostMicros += part.CostMicros
}
