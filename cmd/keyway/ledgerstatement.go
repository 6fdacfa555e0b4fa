package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"keyway/ledger"
)

type statementFlags struct {
	bookFlags
	when                          periodFlags
	by                            []string
	output                        string
	key, identity, model, channel string
}

func newLedgerStatement() *cobra.Command {
	var f statementFlags
	cmd := &cobra.Command{
		Use:   "statement",
		Short: "Print what was spent, summed by key, model, day and more.",
		Long: `Print the sums of the ledger: requests, tokens and money by the dimensions of
--by. Corrections are in the sums, on the day of the request that they correct.
A request belongs to the day on which it was admitted: the day whose budget it
was held against.`,
		Example: `  keyway ledger statement --by key,model,day --from 2026-11-01 --to 2026-11-30
  keyway ledger statement --by identity --from 2026-11 --to 2026-11 --zone Europe/Berlin -o csv`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runStatement(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.by, "by", []string{"identity", "model"},
		"Dimensions of the lines, in this order: "+strings.Join(dimensionNames(), ", ")+".")
	f.when.add(cmd)
	flags.StringVar(&f.key, "key", "", "Id of the only key to count.")
	flags.StringVar(&f.identity, "identity", "", "The only identity to count.")
	flags.StringVar(&f.model, "model", "", "The only model to count, by the name that clients ask for.")
	flags.StringVar(&f.channel, "channel", "", "The only channel to count, by the last attempt.")
	outputFlag(cmd, &f.output, "table", "json", "csv")
	f.add(cmd)
	return cmd
}

func dimensionNames() []string {
	var names []string
	for _, d := range ledger.Dimensions() {
		names = append(names, string(d))
	}
	return names
}

func runStatement(cmd *cobra.Command, f statementFlags) error {
	var by []ledger.Dimension
	for _, name := range f.by {
		if !slices.Contains(dimensionNames(), name) {
			return fmt.Errorf("--by %q is not one of %s", name, strings.Join(dimensionNames(), ", "))
		}
		by = append(by, ledger.Dimension(name))
	}
	if !slices.Contains([]string{"table", "json", "csv"}, f.output) {
		return errOutput(f.output)
	}
	query := ledger.Query{KeyID: f.key, Identity: f.identity, Model: f.model, Channel: f.channel}
	var err error
	if query.Since, query.Until, query.Zone, err = f.when.read(); err != nil {
		return err
	}
	return f.with(cmd.Context(), func(book *ledger.Ledger) error {
		lines, err := book.Statement(cmd.Context(), query, by)
		if err != nil {
			return err
		}
		return printStatement(cmd.OutOrStdout(), f, lines)
	})
}

// periodFlags are two days or months in a zone.
type periodFlags struct{ from, to, zone string }

func (f *periodFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "First day, such as 2026-11-01, or month, such as 2026-11; empty begins with the ledger.")
	flags.StringVar(&f.to, "to", "", "Last day or month, itself included; empty ends now.")
	flags.StringVar(&f.zone, "zone", "UTC", "IANA time zone in which days begin and end.")
}

// read returns the first moment of the period and the first one after it.
func (f periodFlags) read() (since, until time.Time, zone *time.Location, err error) {
	if zone, err = zoneOf(f.zone); err != nil {
		return since, until, nil, err
	}
	since, until, err = period(f.from, f.to, zone)
	return since, until, zone, err
}

func zoneOf(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("--zone %q is not an IANA time zone such as Europe/Berlin", name)
	}
	return zone, nil
}

// period reads two days or months, both included; "" is open.
func period(from, to string, zone *time.Location) (since, until time.Time, err error) {
	if from != "" {
		if since, _, err = dayOrMonth(from, zone); err != nil {
			return since, until, fmt.Errorf("read --from: %w", err)
		}
	}
	if to != "" {
		if _, until, err = dayOrMonth(to, zone); err != nil {
			return since, until, fmt.Errorf("read --to: %w", err)
		}
	}
	if to != "" && !since.Before(until) {
		return since, until, fmt.Errorf("--from %s is after --to %s", from, to)
	}
	return since, until, nil
}

// dayOrMonth returns the beginning of what text names, and of what comes after it.
func dayOrMonth(text string, zone *time.Location) (begin, end time.Time, err error) {
	if at, err := time.ParseInLocation(time.DateOnly, text, zone); err == nil {
		return at, at.AddDate(0, 0, 1), nil
	}
	if at, err := time.ParseInLocation("2006-01", text, zone); err == nil {
		return at, at.AddDate(0, 1, 0), nil
	}
	return begin, end, fmt.Errorf("%q is neither a day such as 2026-11-29 nor a month such as 2026-11", text)
}

// sumNames are the columns behind the dimensions.
var sumNames = []string{"requests", "input_tokens", "output_tokens", "cost_micros"}

func printStatement(out io.Writer, f statementFlags, lines []ledger.Line) error {
	switch f.output {
	case "json":
		return statementJSON(out, f.by, lines)
	case "csv":
		w := csv.NewWriter(out)
		rows := [][]string{slices.Concat(f.by, sumNames)}
		for _, l := range lines {
			rows = append(rows, slices.Concat(l.Labels, []string{whole(l.Requests), whole(l.InputTokens), whole(l.OutputTokens), whole(l.CostMicros)}))
		}
		return w.WriteAll(rows)
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.ToUpper(strings.Join(slices.Concat(f.by, []string{"requests", "input", "output", "cost"}), "\t")))
	for _, l := range lines {
		fmt.Fprintln(w, strings.Join(slices.Concat(l.Labels, []string{whole(l.Requests), whole(l.InputTokens), whole(l.OutputTokens), currency(l.CostMicros)}), "\t"))
	}
	return w.Flush()
}

func statementJSON(out io.Writer, by []string, lines []ledger.Line) error {
	enc := json.NewEncoder(out)
	for _, l := range lines {
		line := map[string]any{
			"requests": l.Requests, "input_tokens": l.InputTokens, "output_tokens": l.OutputTokens, "cost_micros": l.CostMicros,
		}
		for i, name := range by {
			line[name] = l.Labels[i]
		}
		if err := enc.Encode(line); err != nil {
			return fmt.Errorf("write statement: %w", err)
		}
	}
	return nil
}
