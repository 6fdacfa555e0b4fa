package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"keyway/domain"
	"keyway/ledger"
)

type ledgerFlags struct {
	bookFlags
	output                    string
	key, identity, model      string
	channel, outcome, request string
	since, until              string
	limit                     int
}

func newLedger() *cobra.Command {
	var f ledgerFlags
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Print what was used and what it cost.",
		Long: `Print the entries of the ledger: one for each request that was admitted, with its
tokens, its cost in millionths of the currency unit, and how it ended, and two
for each correction. The newest come first. The output is streamed, however
long; what takes long tells on standard error how far it is.

A record gets here through the store's outbox, usually within a second of the
request's end. With -o json every line is one UsageRecord under the field names
of the protobuf message; csv has the same columns except for lists and raw usage.`,
		Example: `  keyway ledger
  keyway ledger --identity acme --since 24h -o csv
  keyway ledger --request 2f1c8a52-… -o json
  keyway ledger --ledger postgres://keyway@db/keyway --limit 0 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runLedger(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.key, "key", "", "Id of the virtual key whose records are shown, such as key_3f9a….")
	flags.StringVar(&f.identity, "identity", "", "Identity whose records are shown.")
	flags.StringVar(&f.model, "model", "", "Model, by the name that clients ask for, whose records are shown.")
	flags.StringVar(&f.channel, "channel", "", "Channel of the last attempt whose records are shown.")
	flags.StringVar(&f.outcome, "outcome", "", "Outcome whose records are shown: "+outcomeNames()+".")
	flags.StringVar(&f.request, "request", "", "Request id whose record is shown.")
	flags.StringVar(&f.since, "since", "", "Earliest end of a request, as a duration before now (24h) or a time (2026-11-29T00:00:00Z).")
	flags.StringVar(&f.until, "until", "", "Latest end of a request, exclusive, in the same forms as --since.")
	flags.IntVar(&f.limit, "limit", 50, "Largest number of records; 0 prints all.")
	outputFlag(cmd, &f.output, "table", "json", "csv")
	f.add(cmd)
	cmd.AddCommand(newLedgerStatement(), newLedgerCorrect())
	return cmd
}

func outcomeNames() string {
	var names []string
	for _, o := range domain.Outcomes() {
		names = append(names, string(o))
	}
	return strings.Join(names, ", ")
}

func runLedger(cmd *cobra.Command, f ledgerFlags) error {
	query, err := f.query(time.Now())
	if err != nil {
		return err
	}
	printer, err := newRowPrinter(f.output, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	return f.with(cmd.Context(), func(book *ledger.Ledger) error {
		told := newProgress(cmd.ErrOrStderr(), time.Now)
		err := book.Records(cmd.Context(), query, func(rec domain.UsageRecord) error {
			told.row()
			return printer.row(ledger.ToRow(rec))
		})
		if err != nil {
			return err
		}
		told.end()
		return printer.flush()
	})
}

func (f ledgerFlags) query(now time.Time) (ledger.Query, error) {
	q := ledger.Query{
		KeyID: f.key, Identity: f.identity, Model: f.model, Channel: f.channel, Outcome: domain.Outcome(f.outcome),
		RequestID: f.request, Limit: f.limit, Order: ledger.NewestFirst,
	}
	if f.outcome != "" && !q.Outcome.Valid() {
		return q, fmt.Errorf("outcome %q is not one of %s", f.outcome, outcomeNames())
	}
	var err error
	if q.Since, err = moment(f.since, now); err != nil {
		return q, fmt.Errorf("read --since: %w", err)
	}
	if q.Until, err = moment(f.until, now); err != nil {
		return q, fmt.Errorf("read --until: %w", err)
	}
	return q, nil
}

// moment reads a time, or a duration before now; "" is the zero time.
func moment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(text); err == nil {
		return now.Add(-age), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is neither a duration such as 24h nor a time such as 2026-11-29T00:00:00Z", text)
	}
	return at, nil
}

// rowPrinter writes rows in one form.
type rowPrinter[T any] struct {
	row   func(T) error
	flush func() error
}

func newRowPrinter(form string, out io.Writer) (rowPrinter[ledger.Row], error) {
	switch form {
	case "json":
		enc := json.NewEncoder(out)
		return rowPrinter[ledger.Row]{row: func(r ledger.Row) error { return enc.Encode(r) }, flush: func() error { return nil }}, nil
	case "csv":
		w := csv.NewWriter(out)
		if err := w.Write(columnNames()); err != nil {
			return rowPrinter[ledger.Row]{}, fmt.Errorf("write header: %w", err)
		}
		return rowPrinter[ledger.Row]{
			row:   func(r ledger.Row) error { return w.Write(columnValues(r)) },
			flush: func() error { w.Flush(); return w.Error() },
		}, nil
	case "table":
		w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "ENDED\tREQUEST\tIDENTITY\tMODEL\tCHANNEL\tOUTCOME\tSTATUS\tINPUT\tOUTPUT\tCOST\tSOURCE")
		return rowPrinter[ledger.Row]{
			row: func(r ledger.Row) error {
				_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n",
					shortTime(r.EndedAtMs), r.RequestID, r.Identity, r.Model, r.Channel, r.Outcome, r.Status,
					r.InputTokens, r.OutputTokens, currency(r.CostMicros), r.Source)
				return err
			},
			flush: w.Flush,
		}, nil
	}
	return rowPrinter[ledger.Row]{}, errOutput(form)
}

// column is one field of the CSV form.
type column struct {
	name  string
	value func(ledger.Row) string
}

var columns = []column{
	{"request_id", func(r ledger.Row) string { return r.RequestID }},
	{"attempt", func(r ledger.Row) string { return strconv.Itoa(r.Attempt) }},
	{"key_id", func(r ledger.Row) string { return r.KeyID }},
	{"identity", func(r ledger.Row) string { return r.Identity }},
	{"api", func(r ledger.Row) string { return r.API }},
	{"model", func(r ledger.Row) string { return r.Model }},
	{"model_served", func(r ledger.Row) string { return r.ModelServed }},
	{"channel", func(r ledger.Row) string { return r.Channel }},
	{"outcome", func(r ledger.Row) string { return r.Outcome }},
	{"source", func(r ledger.Row) string { return r.Source }},
	{"status", func(r ledger.Row) string { return strconv.Itoa(r.Status) }},
	{"input_tokens", func(r ledger.Row) string { return whole(r.InputTokens) }},
	{"input_uncached_tokens", func(r ledger.Row) string { return whole(r.InputUncachedTokens) }},
	{"cache_read_tokens", func(r ledger.Row) string { return whole(r.CacheReadTokens) }},
	{"cache_write_tokens", func(r ledger.Row) string { return whole(r.CacheWriteTokens) }},
	{"cache_write_1h_tokens", func(r ledger.Row) string { return whole(r.CacheWrite1hTokens) }},
	{"output_tokens", func(r ledger.Row) string { return whole(r.OutputTokens) }},
	{"reasoning_tokens", func(r ledger.Row) string { return whole(r.ReasoningTokens) }},
	{"cost_micros", func(r ledger.Row) string { return whole(r.CostMicros) }},
	{"price_version", func(r ledger.Row) string { return r.PriceVersion }},
	{"prompt_tokens_estimate", func(r ledger.Row) string { return whole(r.PromptTokensEstimate) }},
	{"upstream_request_id", func(r ledger.Row) string { return r.UpstreamRequestID }},
	{"admitted_at_ms", func(r ledger.Row) string { return whole(r.AdmittedAtMs) }},
	{"first_byte_at_ms", func(r ledger.Row) string { return whole(r.FirstByteAtMs) }},
	{"ended_at_ms", func(r ledger.Row) string { return whole(r.EndedAtMs) }},
	{"cache_write_30m_tokens", func(r ledger.Row) string { return whole(r.CacheWrite30mTokens) }},
	{"cache_write_12h_tokens", func(r ledger.Row) string { return whole(r.CacheWrite12hTokens) }},
	{"input_audio_tokens", func(r ledger.Row) string { return whole(r.InputAudioTokens) }},
	{"input_image_tokens", func(r ledger.Row) string { return whole(r.InputImageTokens) }},
	{"output_audio_tokens", func(r ledger.Row) string { return whole(r.OutputAudioTokens) }},
	{"output_image_tokens", func(r ledger.Row) string { return whole(r.OutputImageTokens) }},
	{"tool_calls", func(r ledger.Row) string { return toolCalls(r.ToolCalls) }},
	{"service_tier", func(r ledger.Row) string { return r.ServiceTier }},
	{"entry_no", func(r ledger.Row) string { return strconv.Itoa(r.EntryNo) }},
	{"reason", func(r ledger.Row) string { return r.Reason }},
	{"budgets", func(r ledger.Row) string { return strings.Join(r.Budgets, " ") }},
	{"model_dispatched", func(r ledger.Row) string { return r.ModelDispatched }},
}

func columnNames() []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return names
}

func columnValues(r ledger.Row) []string {
	values := make([]string, len(columns))
	for i, c := range columns {
		values[i] = c.value(r)
	}
	return values
}

// toolCalls writes calls as "mcp=1 web_search=2"; "" for none.
func toolCalls(calls map[string]int64) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		list = append(list, fmt.Sprintf("%s=%d", name, calls[name]))
	}
	return strings.Join(list, " ")
}

func whole(n int64) string { return strconv.FormatInt(n, 10) }

func shortTime(ms int64) string { return time.UnixMilli(ms).Local().Format("2006-01-02 15:04:05") }

// microsPerUnit is how many cost micros make one unit of currency.
const microsPerUnit = 1_000_000

// currency writes micros as a decimal without rounding: 1234 is "0.001234".
func currency(micros int64) string {
	sign := ""
	if micros < 0 {
		sign, micros = "-", -micros
	}
	return fmt.Sprintf("%s%d.%06d", sign, micros/microsPerUnit, micros%microsPerUnit)
}
