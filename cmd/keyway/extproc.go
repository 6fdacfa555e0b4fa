package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"keyway/extproc"
	"keyway/secret"
)

func newExtproc() *cobra.Command {
	var (
		f     regionFlags
		o     extproc.Options
		relay string
	)
	cmd := &cobra.Command{
		Use:   "extproc",
		Short: "Run the service that carries requests out and settles them.",
		Long: `Run extproc, which Envoy calls around every attempt (ext_proc) and tells about
every end (access log): it sets the channel's own credential, path and body on
the way out, reads the usage on the way back without changing a byte that is not
its own, and settles the reservation.

It reads the providers' secret keys, which no other process sees; but those of
channels with egress: native are read by xds, for Envoy. While the store is
away, settlements wait in --journal and land afterwards. At a stop it turns
unready, lets streams run to --stop-limit, and settles what is still open.

With --relay and --egress it also answers streams of models that have
early_heartbeat: it sends heartbeats before a provider has answered, and calls
the channels through Envoy's egress listener, a socket on the same machine. With
--egress it follows responses in the background, for models that have background:
poll, until they have ended; another extproc of the region, or its successor, goes
on with those that it leaves behind.`,
		Example: `  keyway extproc --listen unix:/run/keyway/extproc.sock --journal /var/lib/keyway/journal
  keyway extproc --listen unix:/run/keyway/extproc.sock --journal /var/lib/keyway/journal \
    --relay unix:/run/keyway/relay.sock --egress unix:/run/keyway/egress.sock
  keyway extproc --listen 0.0.0.0:9002 --xds xds:9090 --journal /data/journal --stop-limit 10m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runExtproc(cmd, f, relay, o)
		},
	}
	f.add(cmd, "127.0.0.1:9002", "127.0.0.1:9102")
	cmd.Flags().StringVar(&o.JournalFile, "journal", "keyway-journal", "File of this process's own for settlements that wait for the store; it must outlive the process.")
	cmd.Flags().Int64Var(&o.JournalBytes, "journal-bytes", extproc.DefaultJournalBytes, "Largest size of the journal in bytes.")
	cmd.Flags().StringVar(&relay, "relay", "", "Address at which Envoy calls the relay, host:port or unix:/path; empty has none.")
	cmd.Flags().StringVar(&o.Egress, "egress", "", "Socket of Envoy's egress listener, unix:/path; the relay, the probes of channels and responses in the background need it.")
	allFromEnvironment(cmd, map[string]string{"store": envStore})
	return cmd
}

// runExtproc completes o, which brings the flags, and serves; relay is the
// address of the relay.
func runExtproc(cmd *cobra.Command, f regionFlags, relay string, o extproc.Options) (err error) {
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
	defer func() { err = errors.Join(err, regional.Close()) }() // Last: what is open has been settled.
	holder := p.newConfig()
	listener, err := p.listen(ctx, "listen", f.Listen)
	if err != nil {
		return err
	}
	if relay != "" {
		if o.Relay, err = p.listen(ctx, "relay", relay); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	o.Config, o.Store, o.Calibration, o.Secrets, o.Listener = holder, regional, regional, secret.NewResolver(secret.Options{}), listener
	o.StoredIDs = regional
	o.Cooldowns, o.Learner, o.Probes, o.Followings = regional, regional, regional, regional
	o.Health, o.Registerer, o.Logger, o.StopTimeout = p.health, p.registry, p.logger, f.StopLimit
	server, err := extproc.New(o)
	if err != nil {
		err = errors.Join(err, listener.Close())
		if o.Relay != nil {
			err = errors.Join(err, o.Relay.Close())
		}
		return err
	}
	return f.serve(ctx, p, func(ctx context.Context) error { return f.runConfigured(ctx, p, holder, server.Run) })
}
