package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"keyway/config"
	"keyway/ledger"
	"keyway/secret"
	"keyway/telemetry"
	"keyway/worker"
)

// webhookFlags turn on the worker's door for a payment service. The configuration
// is needed for it alone: it says who is prepaid.
type webhookFlags struct {
	configFlags
	listen   string
	secrets  []string
	currency string
}

func (f *webhookFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "webhook-listen", "",
		"Address (host:port) for the events of the payment service, POST "+worker.WebhookPath+"; empty takes none.")
	flags.StringSliceVar(&f.secrets, "webhook-secret", nil,
		"Secret that events are signed with, env:NAME or file:PATH; several while one replaces another.")
	flags.StringVar(&f.currency, "webhook-currency", "usd", "Currency of the prices; payments in another one are refused.")
	f.configFlags.add(cmd)
}

// Bounds of one event's connection.
const (
	webhookReadLimit  = 10 * time.Second
	webhookWriteLimit = 30 * time.Second // an entry waits for the ledger
	webhookIdleLimit  = time.Minute
	webhookHeaders    = 16 << 10
	webhookStopLimit  = 5 * time.Second
)

// webhookDoor is the webhook before it runs.
type webhookDoor struct {
	flags    webhookFlags
	process  *process
	config   *config.Holder
	listener net.Listener
	handler  http.Handler
}

// check refuses flags that cannot be meant, before anything is opened.
func (f webhookFlags) check() error {
	switch {
	case f.listen == "" && len(f.secrets) > 0:
		return errors.New("--webhook-secret is given without --webhook-listen")
	case f.listen == "":
		return nil
	case len(f.secrets) == 0:
		return errors.New("no secret for the webhook: give it with --webhook-secret env:NAME or file:PATH")
	case len(f.currency) != len("usd"):
		return fmt.Errorf("--webhook-currency %q is not a currency such as usd", f.currency)
	}
	if _, err := f.resolve(secret.NewResolver(secret.Options{})); err != nil {
		return fmt.Errorf("read --webhook-secret: %w", err)
	}
	return nil
}

// resolve returns the secrets as they are now.
func (f webhookFlags) resolve(r *secret.Resolver) ([]string, error) {
	list := make([]string, 0, len(f.secrets))
	for _, ref := range f.secrets {
		s, err := r.Resolve(ref)
		if err != nil {
			return nil, err
		}
		list = append(list, s.Reveal())
	}
	return list, nil
}

// open listens; nil without --webhook-listen. The flags have been checked.
func (f webhookFlags) open(ctx context.Context, p *process, book *ledger.Ledger) (*webhookDoor, error) {
	if f.listen == "" {
		return nil, nil
	}
	resolver := secret.NewResolver(secret.Options{})
	d := &webhookDoor{flags: f, process: p, config: p.newConfig()}
	hook, err := worker.NewWebhook(worker.WebhookOptions{
		Balances: book, Config: d.config, Currency: f.currency, Registerer: p.registry, Logger: p.logger,
		Secrets: func() ([]string, error) { return f.resolve(resolver) },
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+worker.WebhookPath, hook)
	d.handler = mux
	if d.listener, err = listen(ctx, f.listen); err != nil {
		return nil, err
	}
	return d, nil
}

// run serves until ctx ends, and then lets the events that are being taken end.
func (d *webhookDoor) run(ctx context.Context) error {
	srv := &http.Server{
		Handler: d.handler, ReadHeaderTimeout: webhookReadLimit, ReadTimeout: webhookReadLimit, WriteTimeout: webhookWriteLimit,
		IdleTimeout: webhookIdleLimit, MaxHeaderBytes: webhookHeaders,
		ErrorLog: slog.NewLogLogger(d.process.logger.Handler(), slog.LevelWarn),
	}
	d.process.logger.Info("webhook listens", slog.String("address", d.listener.Addr().String()))
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.flags.subscribe(groupCtx, d.process, d.config) })
	group.Go(func() error {
		if err := srv.Serve(d.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve webhook: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-groupCtx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(groupCtx), webhookStopLimit)
		defer cancel()
		if err := srv.Shutdown(stop); err != nil {
			d.process.logger.Warn("webhook cut its last connections", telemetry.Err(errors.Join(err, srv.Close())))
		}
		return nil
	})
	return group.Wait()
}
