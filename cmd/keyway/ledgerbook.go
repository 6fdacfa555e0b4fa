package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"keyway/ledger"
)

// bookFlags find the ledger.
type bookFlags struct{ dsn, dir string }

func (f *bookFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dsn, "ledger", "",
		"Ledger to read, sqlite:PATH or postgres://…; empty asks the running \"keyway up\" of --dir.")
	dirFlag(cmd, &f.dir)
	fromEnvironment(cmd, map[string]string{"ledger": "KEYWAY_LEDGER", "dir": envDir})
}

// with runs act on the ledger that the flags name.
func (f bookFlags) with(ctx context.Context, act func(*ledger.Ledger) error) (err error) {
	if f.dsn == "" {
		r, err := readReadiness(f.dir)
		if err != nil {
			return err
		}
		f.dsn = r.Ledger
	}
	book, err := ledger.Open(ctx, f.dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	return act(book)
}

// progressInterval is how long people wait before they wonder.
const progressInterval = 2 * time.Second

// progress tells on a terminal's other stream how far a long output is. It is
// silent where the output is short.
type progress struct {
	out   io.Writer
	now   func() time.Time
	next  time.Time
	rows  int
	spoke bool
}

func newProgress(out io.Writer, now func() time.Time) *progress {
	return &progress{out: out, now: now, next: now().Add(progressInterval)}
}

// row counts one row.
func (p *progress) row() {
	p.rows++
	if at := p.now(); !at.Before(p.next) {
		p.next, p.spoke = at.Add(progressInterval), true
		fmt.Fprintf(p.out, "keyway: %d records so far\n", p.rows)
	}
}

// end closes what row began.
func (p *progress) end() {
	if p.spoke {
		fmt.Fprintf(p.out, "keyway: %d records, all of them\n", p.rows)
	}
}
