package main

import (
	"errors"
	"net"
	"time"

	"github.com/spf13/cobra"

	"keyway/secret"
	"keyway/xds"
)

type xdsFlags struct {
	processFlags
	Config       string
	Listen       string
	State        string
	AckWait      time.Duration
	RemovalGrace time.Duration
	TLS          tlsFlags
}

func newXDS() *cobra.Command {
	var f xdsFlags
	cmd := &cobra.Command{
		Use:   "xds",
		Short: "Run the control plane of a region.",
		Long: `Run xds, which reads the region's configuration file, follows its changes, and
tells Envoy (listeners, routes, clusters) and the services what is in force. A
bad file is refused with every problem in the log, and the last good
configuration serves on.

The secret keys of channels with egress: native are read here, and given to
whoever asks for them at --listen. That has to be a Unix socket, a loopback
address, or one with --tls-cert, --tls-key and --tls-ca: then a client needs a
certificate of that authority, and with --tls-clients one of these names. The
files are followed.

What each node has accepted stands under /status of --metrics. At a stop it ends
at once: its streams never drain, and everyone works on with what they have.`,
		Example: `  keyway xds --config config.yaml --listen unix:/run/keyway/xds.sock
  keyway xds --config /etc/keyway.yaml --listen 0.0.0.0:9090 --state /var/lib/keyway/xds.state
  keyway xds --config config.yaml --listen 0.0.0.0:9090 --tls-cert /certs/tls.crt \
    --tls-key /certs/tls.key --tls-ca /certs/ca.crt --tls-clients envoy,authz,extproc`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runXDS(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Config, "config", "config.yaml", "Configuration file of the region; it is followed while xds runs.")
	flags.StringVar(&f.Listen, "listen", "127.0.0.1:9090", "Address for Envoy and the services, host:port or unix:/path.")
	flags.StringVar(&f.State, "state", "", "File that keeps the published version over a restart; empty keeps none.")
	flags.DurationVar(&f.AckWait, "ack-wait", 5*time.Second,
		"Longest wait for the Envoys to accept new clusters before the services hear of them (a duration such as 5s).")
	flags.DurationVar(&f.RemovalGrace, "removal-grace", 0,
		"Time that a removed channel's cluster stays for its last streams (a duration such as 10m); 0 is the configuration's drain_time.")
	f.TLS.add(cmd)
	f.TLS.addClients(cmd)
	f.add(cmd, "127.0.0.1:8081")
	allFromEnvironment(cmd, nil)
	return cmd
}

var errNoConfigServed = errors.New("no configuration is served yet")

func runXDS(cmd *cobra.Command, f xdsFlags) error {
	p, err := f.newProcess(cmd.Name(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	p.health.Set("config", errNoConfigServed)
	creds, stop, err := f.TLS.server(f.Listen)
	if err != nil {
		return err
	}
	defer stop()
	secrets := secret.NewResolver(secret.Options{})
	server, err := xds.New(xds.Options{
		ConfigFile: f.Config, StateFile: f.State, ListenXDS: f.Listen, AckWait: f.AckWait, RemovalGrace: f.RemovalGrace,
		Credentials: creds, Logger: p.logger, Registerer: p.registry,
		ResolveSecret: func(ref string) (string, error) {
			sk, err := secrets.Resolve(ref)
			return sk.Reveal(), err
		},
		// It listens once it serves a configuration, and never loses that again.
		OnListen: func(net.Addr) { p.health.Set("config", nil) },
	})
	if err != nil {
		return err
	}
	p.routes["GET /status"] = server.StatusHandler()
	return f.serve(cmd.Context(), p, server.Run)
}
