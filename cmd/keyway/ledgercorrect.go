package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"keyway/config"
	"keyway/domain"
	"keyway/ledger"
	"keyway/store"
)

type correctFlags struct {
	bookFlags
	store        string
	reason, cost string
	// Tokens below 0 are not given.
	input, cacheRead, cacheWrite, output int64
	void, repeat, ledgerOnly             bool
}

func newLedgerCorrect() *cobra.Command {
	var f correctFlags
	cmd := &cobra.Command{
		Use:   "correct REQUEST_ID",
		Short: "Correct what a request used or cost, by further entries.",
		Long: `Correct a settlement. Nothing is changed or deleted: one further entry takes back
what stands, and another says what should have been. Values that are not given
stay as they are. The cost is taken as it is given; it is not worked out anew.

Both entries belong to the day of the request, so its budgets become those of
the corrected sum. The counters in the store follow at once; each correction
reaches them only once, so --repeat after a failure is harmless.`,
		Example: `  keyway ledger correct 2f1c8a52-… --cost 0.0042 --reason "bill of November"
  keyway ledger correct 2f1c8a52-… --void --reason "test traffic"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runCorrect(cmd, args[0], f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.reason, "reason", "", "Why; it stays in the ledger with the entries.")
	flags.StringVar(&f.cost, "cost", "", "What the request should have cost, a decimal in currency such as 0.0042.")
	flags.Int64Var(&f.input, "input-tokens", -1, "Uncached prompt tokens that should have been counted.")
	flags.Int64Var(&f.cacheRead, "cache-read-tokens", -1, "Prompt tokens read from the cache that should have been counted.")
	flags.Int64Var(&f.cacheWrite, "cache-write-tokens", -1, "Prompt tokens written to the cache that should have been counted.")
	flags.Int64Var(&f.output, "output-tokens", -1, "Output tokens that should have been counted.")
	flags.BoolVar(&f.void, "void", false, "Make it as if the request had used and cost nothing.")
	flags.BoolVar(&f.repeat, "repeat", false, "Write no entries; only bring the store's counters up to the corrections there are.")
	flags.BoolVar(&f.ledgerOnly, "ledger-only", false, "Leave the store's counters alone, which then differ from the ledger.")
	storeFlag(cmd, &f.store)
	f.add(cmd)
	fromEnvironment(cmd, map[string]string{"store": envStore})
	return cmd
}

func (f correctFlags) changes() bool {
	return f.void || f.cost != "" || f.input >= 0 || f.cacheRead >= 0 || f.cacheWrite >= 0 || f.output >= 0
}

func (f correctFlags) check() error {
	switch {
	case f.repeat && (f.changes() || f.ledgerOnly):
		return errors.New("--repeat goes with no other change")
	case f.repeat:
		return nil
	case f.reason == "":
		return errors.New("no reason: give it with --reason; it stays in the ledger")
	case !f.changes():
		return errors.New("nothing to correct: give --cost, tokens, or --void")
	case f.ledgerOnly:
		return nil
	case f.store == "" && f.dsn != "":
		return errors.New("no store whose counters follow: give --store, or --ledger-only to leave them")
	}
	return nil
}

// change alters rec as the flags say.
func (f correctFlags) change(rec *domain.UsageRecord) error {
	if f.void {
		rec.Usage, rec.CostMicros = domain.Usage{Tier: rec.Usage.Tier}, 0
	}
	if f.cost != "" {
		micros, err := config.ParseMicros(f.cost)
		if err != nil {
			return fmt.Errorf("--cost %q %w", f.cost, err)
		}
		rec.CostMicros = micros
	}
	u := &rec.Usage
	for _, tokens := range []struct {
		given int64
		whole *int64
		parts []*int64
	}{
		{f.input, &u.InputUncached, []*int64{&u.InputAudio, &u.InputImage}},
		{f.cacheRead, &u.CacheRead, nil},
		{f.cacheWrite, &u.CacheWrite, []*int64{&u.CacheWrite1h, &u.CacheWrite30m, &u.CacheWrite12h}},
		{f.output, &u.Output, []*int64{&u.Reasoning, &u.OutputAudio, &u.OutputImage}},
	} {
		if tokens.given < 0 {
			continue
		}
		*tokens.whole = tokens.given
		left := tokens.given
		for _, part := range tokens.parts {
			*part = min(*part, left)
			left -= *part
		}
	}
	return nil
}

func runCorrect(cmd *cobra.Command, request string, f correctFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	return f.with(ctx, func(book *ledger.Ledger) error {
		if !f.repeat {
			entries, err := book.Correct(ctx, ledger.Correction{RequestID: request, Reason: f.reason, Change: f.change, At: time.Now()})
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "corrected %s from %s to %s by entries %d and %d\n", request,
				currency(-entries[0].CostMicros), currency(entries[1].CostMicros), entries[0].EntryNo, entries[1].EntryNo)
		}
		if f.ledgerOnly {
			return nil
		}
		err := keyFlags{store: f.store, dir: f.dir}.withStore(ctx, func(ctx context.Context, s *store.Store) error {
			return correctCounters(ctx, out, request, book, s)
		})
		if err != nil && !f.repeat {
			return fmt.Errorf("the ledger is corrected, but the budgets' counters are not; repeat with --repeat: %w", err)
		}
		return err
	})
}

// correctCounters brings every correction of the request to the store.
func correctCounters(ctx context.Context, out io.Writer, request string, book *ledger.Ledger, s *store.Store) error {
	var entries []domain.UsageRecord
	err := book.Records(ctx, ledger.Query{RequestID: request}, func(r domain.UsageRecord) error {
		entries = append(entries, r)
		return nil
	})
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return ledger.ErrUnknownRequest
	}
	changed := 0
	for _, c := range counterCorrections(entries) {
		n, err := s.CorrectBudgets(ctx, c)
		if err != nil {
			return err
		}
		changed += n
	}
	fmt.Fprintf(out, "%d budget counters followed\n", changed)
	return nil
}

// counterCorrections joins the two entries of each correction.
func counterCorrections(entries []domain.UsageRecord) []domain.BudgetCorrection {
	byNo := make(map[int]domain.UsageRecord, len(entries))
	for _, e := range entries {
		byNo[e.EntryNo] = e
	}
	var list []domain.BudgetCorrection
	for no := 2; ; no += 2 {
		next, ok := byNo[no]
		if !ok {
			return list
		}
		if delta := byNo[no-1].CostMicros + next.CostMicros; delta != 0 && len(next.Budgets) > 0 {
			list = append(list, domain.BudgetCorrection{
				RequestID: next.RequestID, Identity: next.Identity, EntryNo: no, Budgets: next.Budgets, DeltaMicros: delta,
			})
		}
	}
}
