package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"keyway/config"
	"keyway/domain"
	"keyway/ledger"
	"keyway/store"
)

type reconcileFlags struct {
	bookFlags
	store, output            string
	bill, billModel, channel string
	zone, tolerance          string
}

func newReconcile() *cobra.Command {
	var f reconcileFlags
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Compare budget counters, the ledger and a provider's bill.",
		Long: `Compare what ought to be the same money, and name every row that is not. The
exit status is 1 on any difference.

The counters of the current month's budgets, in the store, must be what the
ledger says was charged to them, plus what is on its way to the ledger, plus
what open requests hold. A difference is one that stays over several readings.

With --bill the ledger is compared with a provider's bill as well: a CSV file
whose first line names its columns, of which date, model, input_tokens,
output_tokens and cost are read (the last three as far as they are there). Rows
of one day and model are added up. Only the days that the bill spans count.`,
		Example: `  keyway reconcile
  keyway reconcile --ledger postgres://keyway@db/keyway --store redis://store:6379/0
  keyway reconcile --bill november.csv --channel openai-main --tolerance 0.01`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runReconcile(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.bill, "bill", "", "Provider's bill, a CSV file, to compare the ledger with.")
	flags.StringVar(&f.billModel, "bill-model", "served", "Names of the models in the bill: served, as the provider says, or asked, as clients do.")
	flags.StringVar(&f.channel, "channel", "", "The only channel whose requests are on the bill.")
	flags.StringVar(&f.zone, "zone", "UTC", "IANA time zone of the bill's days.")
	flags.StringVar(&f.tolerance, "tolerance", "0", "Largest difference in cost of a row of the bill that is passed over, in currency.")
	outputFlag(cmd, &f.output, "table", "json")
	storeFlag(cmd, &f.store)
	f.add(cmd)
	fromEnvironment(cmd, map[string]string{"store": envStore})
	return cmd
}

// difference is one row that two books disagree on.
type difference struct {
	// Books are the two: "counter, ledger" or "bill, ledger".
	Books string `json:"books"`
	// Row names the budget, or the day and model.
	Row string `json:"row"`
	// What disagrees: cost_micros, input_tokens or output_tokens.
	What   string `json:"what"`
	First  int64  `json:"first"`
	Second int64  `json:"second"`
}

func runReconcile(cmd *cobra.Command, f reconcileFlags) error {
	if f.output != "table" && f.output != "json" {
		return errOutput(f.output)
	}
	if f.store == "" && f.dsn != "" && f.bill == "" {
		return errors.New("nothing to compare the ledger with: give --store, --bill or both")
	}
	ctx := cmd.Context()
	var found []difference
	var compared []string
	err := f.with(ctx, func(book *ledger.Ledger) error {
		if f.store != "" || f.dsn == "" {
			err := keyFlags{store: f.store, dir: f.dir}.withStore(ctx, func(ctx context.Context, s *store.Store) error {
				differing, count, err := compareCounters(ctx, s, book)
				found = append(found, differing...)
				compared = append(compared, fmt.Sprintf("%d budgets", count))
				return err
			})
			if err != nil {
				return err
			}
		}
		if f.bill == "" {
			return nil
		}
		differing, count, err := f.compareBill(ctx, book)
		found = append(found, differing...)
		compared = append(compared, fmt.Sprintf("%d rows of the bill", count))
		return err
	})
	if err != nil {
		return err
	}
	if err := printDifferences(cmd.OutOrStdout(), f.output, found); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "keyway: compared %s: %d differences\n", strings.Join(compared, " and "), len(found))
	if len(found) > 0 {
		return errSilent
	}
	return nil
}

// A difference under traffic is looked at again: store and ledger are read one
// after the other.
const (
	reconcileRounds = 4
	reconcilePause  = 500 * time.Millisecond
)

// budgetReader is what is asked of the store.
type budgetReader interface {
	Budgets(ctx context.Context) (domain.BudgetBook, error)
}

// compareCounters returns the budgets that differ by the same amount however
// often one looks, and how many there are.
func compareCounters(ctx context.Context, s budgetReader, book *ledger.Ledger) (found []difference, count int, err error) {
	var suspects []domain.BudgetDrift
	for round := range reconcileRounds {
		state, err := s.Budgets(ctx)
		if err != nil {
			return nil, 0, err
		}
		sums, err := book.BudgetSums(ctx, domain.MonthBegin(time.Now()), state.PendingRequests())
		if err != nil {
			return nil, 0, err
		}
		all := state.Compare(sums)
		count = len(all)
		differing := slices.DeleteFunc(all, func(d domain.BudgetDrift) bool { return d.Micros() == 0 })
		if round > 0 {
			differing = slices.DeleteFunc(differing, func(d domain.BudgetDrift) bool {
				return !slices.ContainsFunc(suspects, func(s domain.BudgetDrift) bool { return s.Name == d.Name && s.Micros() == d.Micros() })
			})
		}
		if suspects = differing; len(suspects) == 0 {
			return nil, count, nil
		}
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(reconcilePause):
		}
	}
	for _, d := range suspects {
		found = append(found, difference{
			Books: "counter, ledger", Row: d.Name, What: "cost_micros", First: d.Counter - d.Held, Second: d.Ledger + d.Pending,
		})
	}
	return found, count, nil
}

func (f reconcileFlags) compareBill(ctx context.Context, book *ledger.Ledger) (found []difference, count int, err error) {
	zone, err := zoneOf(f.zone)
	if err != nil {
		return nil, 0, err
	}
	by, ok := map[string]ledger.Dimension{"served": ledger.ByModelServed, "asked": ledger.ByModel}[f.billModel]
	if !ok {
		return nil, 0, fmt.Errorf("--bill-model %q is neither served nor asked", f.billModel)
	}
	tolerance, err := config.ParseMicros(f.tolerance)
	if err != nil {
		return nil, 0, fmt.Errorf("--tolerance %q %w", f.tolerance, err)
	}
	file, err := os.Open(f.bill)
	if err != nil {
		return nil, 0, fmt.Errorf("open bill: %w", err)
	}
	defer file.Close()
	b, err := readBill(file)
	if err != nil {
		return nil, 0, fmt.Errorf("read bill %s: %w", f.bill, err)
	}
	query := ledger.Query{Channel: f.channel, Zone: zone}
	if query.Since, query.Until, err = period(b.first, b.last, zone); err != nil {
		return nil, 0, err
	}
	lines, err := book.Statement(ctx, query, []ledger.Dimension{ledger.ByDay, by})
	if err != nil {
		return nil, 0, err
	}
	return b.compare(lines, tolerance), len(b.rows), nil
}

func printDifferences(out io.Writer, form string, found []difference) error {
	if form == "json" {
		enc := json.NewEncoder(out)
		for _, d := range found {
			if err := enc.Encode(d); err != nil {
				return fmt.Errorf("write difference: %w", err)
			}
		}
		return nil
	}
	if len(found) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "BOOKS\tROW\tWHAT\tFIRST\tSECOND\tDIFFERENCE")
	for _, d := range found {
		show := whole
		if d.What == "cost_micros" {
			show = currency
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Books, d.Row, d.What, show(d.First), show(d.Second), show(d.First-d.Second))
	}
	return w.Flush()
}
