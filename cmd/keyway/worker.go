package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"keyway/ledger"
	"keyway/worker"
)

type workerFlags struct {
	processFlags
	Store     string
	Ledger    string
	Consumer  string
	StopLimit time.Duration
	Reclaim   time.Duration
	Drift     time.Duration
	Webhook   webhookFlags
}

func newWorker() *cobra.Command {
	var f workerFlags
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run the upkeep of a region: the ledger and the sweeper.",
		Long: `Run the worker, which does what need not be on a request's path: it carries
settlements from the store's outbox into the ledger, each exactly once, and what
prepaid identities have paid in from the ledger into the store; it settles
reservations whose owner died, compares the budgets' counters with the ledger,
and rebuilds them from it when the store has lost writes. A new store counts as
one that has: budgeted requests need a worker to have looked at it once.

Several may run under different --consumer names. At a stop it finishes its
batch and empties the outbox as far as --stop-limit allows; the rest waits in
the store.

With --webhook-listen it takes the events of a payment service in the manner of
Stripe, and tops up the balance of the identity that a payment's metadata names
as keyway_identity. The address needs TLS in front of it, and no more than the
path ` + worker.WebhookPath + ` open to the world.`,
		Example: `  keyway worker --ledger sqlite:/var/lib/keyway/ledger.db
  KEYWAY_LEDGER=postgres://keyway@db/keyway keyway worker --consumer worker-1
  keyway worker --ledger … --webhook-listen :9104 --webhook-secret file:/run/secrets/whsec`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runWorker(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Ledger, "ledger", "", "Ledger to write, sqlite:PATH or postgres://…; required.")
	flags.StringVar(&f.Consumer, "consumer", hostName(),
		"Name of this worker in the outbox's consumer group; the same after a restart, different from other workers'.")
	flags.DurationVar(&f.StopLimit, "stop-limit", 10*time.Second,
		"Longest time that emptying the outbox may take at a stop (a duration such as 10s).")
	flags.DurationVar(&f.Reclaim, "reclaim-idle", time.Minute,
		"Age at which what a dead worker had read is taken over (a duration such as 1m).")
	flags.DurationVar(&f.Drift, "drift-interval", 5*time.Minute,
		"Time between two comparisons of the budgets' counters with the ledger (a duration such as 5m).")
	f.Webhook.add(cmd)
	storeFlag(cmd, &f.Store)
	f.add(cmd, "127.0.0.1:9103")
	allFromEnvironment(cmd, map[string]string{"store": envStore})
	return cmd
}

// hostName is stable over restarts where it matters: in a container it is the
// pod's or the service's name.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "worker-0"
	}
	return name
}

var errNoLedger = errors.New("no ledger: give it with --ledger or KEYWAY_LEDGER")

func runWorker(cmd *cobra.Command, f workerFlags) (err error) {
	ctx := cmd.Context()
	p, err := f.newProcess(cmd.Name(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if f.Ledger == "" {
		return errNoLedger
	}
	if err := f.Webhook.check(); err != nil {
		return err
	}
	regional, err := p.openStore(ctx, f.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, regional.Close()) }()
	book, err := ledger.Open(ctx, f.Ledger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	w, err := worker.New(worker.Options{
		Outbox: regional, Ledger: book, Reservations: regional, Stats: regional, Consumer: f.Consumer,
		Registerer: p.registry, Logger: p.logger, Health: p.health, StopLimit: f.StopLimit, ReclaimIdle: f.Reclaim,
		Budgets: regional, BudgetSums: book, DriftInterval: f.Drift, Credits: book, CreditStore: regional,
		Generations: regional,
	})
	if err != nil {
		return err
	}
	door, err := f.Webhook.open(ctx, p, book)
	if err != nil {
		return err
	}
	return f.serve(ctx, p, func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return w.Run(ctx) })
		if door != nil {
			group.Go(func() error { return door.run(ctx) })
		}
		return group.Wait()
	})
}
