package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"keyway/config"
	"keyway/domain"
	"keyway/store"
)

// regionFlags are what authz and extproc share: where they listen, where their
// configuration comes from and which store they use.
type regionFlags struct {
	processFlags
	configFlags
	Listen    string
	Store     string
	StopLimit time.Duration
}

// configFlags say where the region's configuration comes from.
type configFlags struct {
	XDS, Region, Node, CacheFile string
	TLS                          tlsFlags
}

func (f *configFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.XDS, "xds", "127.0.0.1:9090", "Address of the control plane, host:port or unix:/path.")
	flags.StringVar(&f.Region, "region", "demo", "Name of the region whose configuration is asked for.")
	flags.StringVar(&f.Node, "node", cmd.Name()+"-0", "Id of this process, different from that of every other replica.")
	flags.StringVar(&f.CacheFile, "cache", "",
		"File that keeps the last good configuration, so that a restart needs no control plane; empty keeps none.")
	f.TLS.add(cmd)
}

// subscribe keeps the configuration in holder current until ctx ends.
func (f configFlags) subscribe(ctx context.Context, p *process, holder *config.Holder) error {
	creds, stop, err := f.TLS.client(f.XDS)
	if err != nil {
		return err
	}
	defer stop()
	return config.Subscribe(ctx, config.SubscribeOptions{
		Target: f.XDS, Node: f.Node, Region: f.Region, CacheFile: f.CacheFile, Holder: holder, Credentials: creds, Logger: p.logger,
	})
}

func (f *regionFlags) add(cmd *cobra.Command, listen, metrics string) {
	flags := cmd.Flags()
	flags.StringVar(&f.Listen, "listen", listen, "Address for Envoy, host:port or unix:/path.")
	f.configFlags.add(cmd)
	f.TLS.addClients(cmd)
	flags.DurationVar(&f.StopLimit, "stop-limit", 30*time.Second,
		"Longest time that running work may take at a stop (a duration such as 30s).")
	storeFlag(cmd, &f.Store)
	f.processFlags.add(cmd, metrics)
}

var (
	errNoStore  = errors.New("no store: give its URL with --store or " + envStore)
	errNoConfig = errors.New("no configuration from the control plane yet")
)

// newConfig returns the place of the region's configuration; the process is
// not ready without one.
func (p *process) newConfig() *config.Holder {
	holder := new(config.Holder)
	p.health.Set("config", errNoConfig)
	holder.OnChange(func(*config.Snapshot) { p.health.Set("config", nil) })
	return holder
}

// runConfigured runs a service and keeps its configuration current until ctx
// ends; while the service drains it works on with the last one.
func (f regionFlags) runConfigured(ctx context.Context, p *process, holder *config.Holder, run func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.subscribe(ctx, p, holder) })
	group.Go(func() error { return run(ctx) })
	return group.Wait()
}

// openStore makes the store's client for a service. The process is ready only
// while the store takes a write and gives it back, and unready at once when it
// stops answering. A region whose store is away can still start. The client is
// watched over until it is closed, beyond the end of ctx.
func (p *process) openStore(ctx context.Context, url string) (*store.Store, error) {
	if url == "" {
		return nil, errNoStore
	}
	var s *store.Store
	s, err := store.Open(store.Options{URL: url, Log: p.logger, OnChange: func() {
		if s.Alive() {
			return // The next probe says so, and that it serves.
		}
		p.health.Set("store", domain.ErrStoreDown)
	}})
	if err != nil {
		return nil, err
	}
	p.health.AddCheck("store", s.Probe)
	s.Start(context.WithoutCancel(ctx))
	return s, nil
}

// openStore makes the store's client for a command that ends after a few calls.
func openStore(url string) (*store.Store, error) {
	s, err := store.Open(store.Options{URL: url})
	if err != nil {
		return nil, fmt.Errorf("use store: %w", err)
	}
	return s, nil
}
