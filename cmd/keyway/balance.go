package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"keyway/config"
	"keyway/domain"
	"keyway/ledger"
)

func newBalance() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "balance",
		Short: "Show and top up the balances of prepaid identities.",
		Long: `Manage what prepaid identities have paid in. A balance is the sum of its entries
in the ledger less what the identity's requests cost; a request that may cost
more than is left is refused with 402. An identity is prepaid by "prepaid: true"
in the configuration.

Entries are never changed: money that goes back is an entry of its own. The
worker brings every entry to the region's store, usually within a second; while
it is down, top-ups wait in the ledger.`,
		Example: `  keyway balance topup acme 25.00 --reference invoice-2026-117
  keyway balance show acme --from 2026-11 --to 2026-11
  keyway balance list --identity acme -o csv`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBalanceShow(), newBalanceList(), newBalanceChange(topUp), newBalanceChange(deduction))
	return cmd
}

// balanceChange is a command that adds an entry.
type balanceChange struct {
	verb, short, long string
	sign              int64
}

var (
	topUp = balanceChange{"topup", "Top up the balance of an identity.", `Add what an identity has paid to its balance.`, 1}
	// deduction takes back what a top-up gave.
	deduction = balanceChange{"deduct", "Take money back from the balance of an identity.", `Take back from the balance of an identity, which may fall below zero.`, -1}
)

func newBalanceChange(c balanceChange) *cobra.Command {
	var (
		f                               bookFlags
		reference, source, note, output string
	)
	cmd := &cobra.Command{
		Use:   c.verb + " IDENTITY AMOUNT",
		Short: c.short,
		Long: c.long + ` AMOUNT is a decimal in
currency, above 0. There is one entry for each source and reference: the same
command again changes nothing, and another amount under them is an error.`,
		Example: "  keyway balance " + c.verb + " acme 25.00 --reference invoice-2026-117\n" +
			"  keyway balance " + c.verb + ` acme 0.5 --source support --reference case-9 --note "as agreed" -o json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "table" && output != "json" {
				return errOutput(output)
			}
			micros, err := config.ParseMicros(args[1])
			switch {
			case err != nil:
				return fmt.Errorf("amount %q %w", args[1], err)
			case micros == 0:
				return errors.New("the amount is 0")
			case reference == "":
				return errors.New("no reference: give it with --reference; it names the payment, so that it counts once")
			}
			e := domain.BalanceEntry{
				Identity: args[0], AmountMicros: c.sign * micros, Source: source, Reference: reference, Note: note, At: time.Now(),
			}
			return f.with(cmd.Context(), func(book *ledger.Ledger) error {
				return changeBalance(cmd.Context(), cmd.OutOrStdout(), output, balanceChangeOf{book, e})
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&reference, "reference", "", "Name of the payment, such as the number of an invoice; required.")
	flags.StringVar(&source, "source", "manual", "Where the reference comes from; references of different sources do not clash.")
	flags.StringVar(&note, "note", "", "Note that stays in the ledger with the entry.")
	outputFlag(cmd, &output, "table", "json")
	f.add(cmd)
	return cmd
}

// balanceChangeOf is an entry for a ledger.
type balanceChangeOf struct {
	book  *ledger.Ledger
	entry domain.BalanceEntry
}

func changeBalance(ctx context.Context, out io.Writer, form string, c balanceChangeOf) error {
	stands, added, err := c.book.AddBalance(ctx, c.entry)
	if err != nil {
		return err
	}
	if form == "json" {
		if err := json.NewEncoder(out).Encode(showEntry(stands)); err != nil {
			return fmt.Errorf("write entry: %w", err)
		}
		return nil
	}
	lines, err := c.book.Balances(ctx, ledger.BalanceQuery{Identity: stands.Identity})
	if err != nil {
		return err
	}
	verb := "added"
	if !added {
		verb = "was there already as"
	}
	fmt.Fprintf(out, "%s %s %s entry %d: %s for %s\n", stands.Source, stands.Reference, verb, stands.Seq, currency(stands.AmountMicros), stands.Identity)
	for _, l := range lines {
		fmt.Fprintf(out, "the balance of %s is %s\n", l.Identity, currency(l.ClosingMicros))
	}
	return nil
}

// shownEntry is an entry as people see it.
type shownEntry struct {
	Seq          int64     `json:"seq"`
	At           time.Time `json:"at"`
	Identity     string    `json:"identity"`
	AmountMicros int64     `json:"amount_micros"`
	Source       string    `json:"source"`
	Reference    string    `json:"reference"`
	Note         string    `json:"note"`
}

func showEntry(e domain.BalanceEntry) shownEntry {
	return shownEntry{e.Seq, e.At.UTC(), e.Identity, e.AmountMicros, e.Source, e.Reference, e.Note}
}

func newBalanceShow() *cobra.Command {
	var (
		f      bookFlags
		when   periodFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "show [IDENTITY]",
		Short: "Show balances, and how they came about.",
		Long: `Show the balance of one identity or of all, by the ledger: what it was at the
beginning of the period, what was paid in, what requests cost, and what is left.
Requests that are running may still take from what is left.`,
		Example: `  keyway balance show
  keyway balance show acme --from 2026-11 --to 2026-11 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"table", "json", "csv"}, output) {
				return errOutput(output)
			}
			query := ledger.BalanceQuery{Identity: strings.Join(args, "")}
			var err error
			if query.Since, query.Until, _, err = when.read(); err != nil {
				return err
			}
			return f.with(cmd.Context(), func(book *ledger.Ledger) error {
				lines, err := book.Balances(cmd.Context(), query)
				if err != nil {
					return err
				}
				return printBalances(cmd.OutOrStdout(), output, lines)
			})
		},
	}
	when.add(cmd)
	outputFlag(cmd, &output, "table", "json", "csv")
	f.add(cmd)
	return cmd
}

func printBalances(out io.Writer, form string, lines []ledger.BalanceLine) error {
	sums := func(l ledger.BalanceLine, form func(int64) string) []string {
		return []string{l.Identity, form(l.OpeningMicros), form(l.PaidInMicros), form(l.SpentMicros), form(l.ClosingMicros)}
	}
	switch form {
	case "json":
		enc := json.NewEncoder(out)
		for _, l := range lines {
			if err := enc.Encode(l); err != nil {
				return fmt.Errorf("write balance: %w", err)
			}
		}
		return nil
	case "csv":
		rows := [][]string{{"identity", "opening_micros", "paid_in_micros", "spent_micros", "closing_micros"}}
		for _, l := range lines {
			rows = append(rows, sums(l, whole))
		}
		return csv.NewWriter(out).WriteAll(rows)
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "IDENTITY\tOPENING\tPAID IN\tSPENT\tBALANCE")
	for _, l := range lines {
		fmt.Fprintln(w, strings.Join(sums(l, currency), "\t"))
	}
	return w.Flush()
}

func newBalanceList() *cobra.Command {
	var (
		f                bookFlags
		when             periodFlags
		identity, output string
		limit            int
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List top-ups and deductions.",
		Long: `List the entries by which balances changed, the newest first: top-ups, and money
that was taken back, below zero. What requests cost is in "keyway ledger".`,
		Example: `  keyway balance list
  keyway balance list --identity acme --from 2026-11-01 --limit 0 -o csv`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := ledger.BalanceQuery{Identity: identity, Limit: limit}
			var err error
			if query.Since, query.Until, _, err = when.read(); err != nil {
				return err
			}
			printer, err := newEntryPrinter(output, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			return f.with(cmd.Context(), func(book *ledger.Ledger) error {
				told := newProgress(cmd.ErrOrStderr(), time.Now)
				err := book.BalanceEntries(cmd.Context(), query, func(e domain.BalanceEntry) error {
					told.row()
					return printer.row(showEntry(e))
				})
				if err != nil {
					return err
				}
				told.end()
				return printer.flush()
			})
		},
	}
	cmd.Flags().StringVar(&identity, "identity", "", "The only identity whose entries are listed.")
	cmd.Flags().IntVar(&limit, "limit", 50, "Largest number of entries; 0 prints all.")
	when.add(cmd)
	outputFlag(cmd, &output, "table", "json", "csv")
	f.add(cmd)
	return cmd
}

func newEntryPrinter(form string, out io.Writer) (rowPrinter[shownEntry], error) {
	cells := func(e shownEntry, amount string) []string {
		return []string{whole(e.Seq), e.At.Format(time.RFC3339Nano), e.Identity, amount, e.Source, e.Reference, e.Note}
	}
	switch form {
	case "json":
		enc := json.NewEncoder(out)
		return rowPrinter[shownEntry]{func(e shownEntry) error { return enc.Encode(e) }, func() error { return nil }}, nil
	case "csv":
		w := csv.NewWriter(out)
		if err := w.Write(strings.Fields("seq at identity amount_micros source reference note")); err != nil {
			return rowPrinter[shownEntry]{}, fmt.Errorf("write header: %w", err)
		}
		return rowPrinter[shownEntry]{
			func(e shownEntry) error { return w.Write(cells(e, whole(e.AmountMicros))) },
			func() error { w.Flush(); return w.Error() },
		}, nil
	case "table":
		w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "SEQ\tAT\tIDENTITY\tAMOUNT\tSOURCE\tREFERENCE\tNOTE")
		return rowPrinter[shownEntry]{func(e shownEntry) error {
			row := cells(e, currency(e.AmountMicros))
			row[1] = shortTime(e.At.UnixMilli())
			_, err := fmt.Fprintln(w, strings.Join(row, "\t"))
			return err
		}, w.Flush}, nil
	}
	return rowPrinter[shownEntry]{}, errOutput(form)
}
