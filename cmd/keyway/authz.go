package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"keyway/authz"
)

func newAuthz() *cobra.Command {
	var (
		f regionFlags
		o authz.Options
	)
	cmd := &cobra.Command{
		Use:   "authz",
		Short: "Run the service that admits requests.",
		Long: `Run authz, which Envoy asks about every request (ext_authz): who sends it, whether
that key may use the model, what it may cost, and which channels may serve it.
Limits are checked and charged in one step in the region's store.

It keeps nothing of a request, so any number of replicas may run; but where
policies are optimistic, what it admits while the store is away lies in --journal
until it is charged. At a stop it turns unready, refuses new checks, answers those
that run, and gives back what is uncertain.`,
		Example: `  keyway authz --listen unix:/run/keyway/authz.sock --xds unix:/run/keyway/xds.sock
  KEYWAY_REDIS_URL=rediss://… keyway authz --listen 0.0.0.0:9001 --xds xds:9090 --region eu-1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAuthz(cmd, f, o) },
	}
	f.add(cmd, "127.0.0.1:9001", "127.0.0.1:9101")
	cmd.Flags().Int64Var(&o.BodyBytes, "body-bytes", authz.DefaultBodyBytes,
		"Largest sum of request bodies, in bytes, that may be on their way to providers at once.")
	cmd.Flags().DurationVar(&o.KeyTTL, "key-ttl", authz.DefaultKeyTTL,
		"Longest time that a changed key is not noticed where the message of its change is lost (a duration such as 30s, the most).")
	cmd.Flags().StringVar(&o.JournalFile, "journal", "",
		"File for what optimistic policies admit while the store is away; this process's own, it must outlive it. Empty lets them refuse.")
	cmd.Flags().Int64Var(&o.JournalBytes, "journal-bytes", authz.DefaultJournalBytes, "Largest size of the journal in bytes; when it is full, optimistic policies refuse.")
	allFromEnvironment(cmd, map[string]string{"store": envStore})
	return cmd
}

// runAuthz runs authz with the options that are flags of its own.
func runAuthz(cmd *cobra.Command, f regionFlags, o authz.Options) (err error) {
	if o.KeyTTL <= 0 {
		return fmt.Errorf("--key-ttl %s is not positive", o.KeyTTL)
	}
	if o.JournalBytes <= 0 {
		return fmt.Errorf("--journal-bytes %d is not positive", o.JournalBytes)
	}
	ctx := cmd.Context()
	p, err := f.newProcess(cmd.Name(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	creds, stop, err := f.TLS.server(f.Listen)
	if err != nil {
		return err
	}
	defer stop()
	o.Credentials = creds
	regional, err := p.openStore(ctx, f.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, regional.Close()) }() // Last: nothing uses it any more.
	holder := p.newConfig()
	listener, err := p.listen(ctx, "listen", f.Listen)
	if err != nil {
		return err
	}
	o.Config, o.Keys, o.KeyChanges, o.Reservations, o.Listener = holder, regional, regional, regional, listener
	o.Calibrations, o.Cooldowns, o.ChannelStats, o.Rates = regional, regional, regional, regional
	o.StoredIDs = regional
	o.Health, o.Registerer, o.Logger, o.StopTimeout = p.health, p.registry, p.logger, f.StopLimit
	server, err := authz.New(o)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	return f.serve(ctx, p, func(ctx context.Context) error { return f.runConfigured(ctx, p, holder, server.Run) })
}
