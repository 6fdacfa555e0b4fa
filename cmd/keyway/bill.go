package main

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"keyway/config"
	"keyway/ledger"
)

// bill is a provider's bill by day and model.
type bill struct {
	rows map[billKey]*billSums
	// first and last are the days it spans.
	first, last string
	// has tells which of the three sums the file has a column for.
	has [len(billColumns)]bool
}

type billKey struct{ day, model string }

// billSums are by the order of billColumns.
type billSums [len(billColumns)]int64

// billColumns are the columns with numbers; a cost is in millionths once read.
var billColumns = [...]string{"input_tokens", "output_tokens", "cost"}

const billCost = 2

// readBill reads a CSV file whose first line names its columns, in any order
// and any case; columns that are not known are passed over.
func readBill(r io.Reader) (*bill, error) {
	raw, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	rows := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))))
	head, err := rows.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty")
	}
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	for i, name := range head {
		at[strings.ToLower(strings.TrimSpace(name))] = i
	}
	for _, name := range []string{"date", "model"} {
		if _, ok := at[name]; !ok {
			return nil, fmt.Errorf("its first line names no column %q", name)
		}
	}
	b := &bill{rows: make(map[billKey]*billSums)}
	for i, name := range billColumns {
		_, b.has[i] = at[name]
	}
	if b.has == [len(billColumns)]bool{} {
		return nil, fmt.Errorf("its first line names none of %s", strings.Join(billColumns[:], ", "))
	}
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := b.add(row, at); err != nil {
			line, _ := rows.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	if len(b.rows) == 0 {
		return nil, errors.New("it has no rows")
	}
	return b, nil
}

func (b *bill) add(row []string, at map[string]int) error {
	key := billKey{strings.TrimSpace(row[at["date"]]), strings.TrimSpace(row[at["model"]])}
	if _, err := time.Parse(time.DateOnly, key.day); err != nil {
		return fmt.Errorf("date %q is not a day such as 2026-11-29", key.day)
	}
	sums, ok := b.rows[key]
	if !ok {
		sums = new(billSums)
		b.rows[key] = sums
	}
	for i, name := range billColumns {
		if !b.has[i] {
			continue
		}
		text := strings.TrimSpace(row[at[name]])
		n, err := strconv.ParseInt(text, 10, 64)
		if i == billCost {
			n, err = config.ParseMicros(text)
		}
		if err != nil || n < 0 {
			return fmt.Errorf("%s %q is not a number of its kind", name, text)
		}
		sums[i] += n
	}
	if b.first == "" || key.day < b.first {
		b.first = key.day
	}
	b.last = max(b.last, key.day)
	return nil
}

// compare returns what bill and ledger disagree on, by day and model. A row
// that only one of them has is nothing in the other. Lines are by day, model.
func (b *bill) compare(lines []ledger.Line, tolerance int64) []difference {
	ours := make(map[billKey]billSums, len(lines))
	keys := make(map[billKey]struct{}, len(lines)+len(b.rows))
	for _, l := range lines {
		key := billKey{l.Labels[0], l.Labels[1]}
		ours[key] = billSums{l.InputTokens, l.OutputTokens, l.CostMicros}
		keys[key] = struct{}{}
	}
	for key := range b.rows {
		keys[key] = struct{}{}
	}
	var found []difference
	for key := range keys {
		var theirs billSums
		if sums, ok := b.rows[key]; ok {
			theirs = *sums
		}
		for i, name := range [...]string{"input_tokens", "output_tokens", "cost_micros"} {
			apart := theirs[i] - ours[key][i]
			if !b.has[i] || apart == 0 || (i == billCost && max(apart, -apart) <= tolerance) {
				continue
			}
			found = append(found, difference{
				Books: "bill, ledger", Row: key.day + " " + key.model, What: name, First: theirs[i], Second: ours[key][i],
			})
		}
	}
	slices.SortFunc(found, func(a, b difference) int { return cmp.Or(cmp.Compare(a.Row, b.Row), cmp.Compare(a.What, b.What)) })
	return found
}
