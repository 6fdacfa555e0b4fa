package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"keyway/telemetry"
)

// processFlags are what every service has.
type processFlags struct {
	Metrics   string
	LogLevel  string
	LogFormat string
	Drain     time.Duration
	// Pprof serves profiles beside the metrics.
	Pprof bool
}

func (f *processFlags) add(cmd *cobra.Command, metrics string) {
	flags := cmd.Flags()
	flags.StringVar(&f.Metrics, "metrics", metrics,
		"Address (host:port) that serves /metrics, /healthz and /readyz.")
	flags.StringVar(&f.LogLevel, "log-level", "info", "Least level that is logged: debug, info, warn or error.")
	flags.StringVar(&f.LogFormat, "log-format", string(telemetry.LogText), "Form of log lines on stderr: text or json.")
	flags.BoolVar(&f.Pprof, "pprof", false,
		"Serve Go profiles under /debug/pprof/ of the --metrics address, to whoever reaches it.")
	flags.DurationVar(&f.Drain, "drain-wait", 0,
		"Time between turning unready and refusing new work at a stop, for balancers to notice (a duration such as 5s).")
}

// process is what stands around a service: how it is seen from outside.
type process struct {
	logger   *slog.Logger
	registry *prometheus.Registry
	health   *telemetry.Health
	// routes are served beside /metrics. Like the checks of health they are
	// filled in before serve.
	routes map[string]http.Handler
}

const (
	// gcPercent lets the heap grow to five times what lives before it is
	// collected: little lives, and collecting it cost a tenth of a service's time.
	gcPercent = 400
	// heapLimit, in bytes, ends that generosity when large bodies live.
	heapLimit = 1 << 30
)

// tuneMemory sets what the environment's GOGC and GOMEMLIMIT leave open.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heapLimit)
	}
}

func (f processFlags) newProcess(name string, w io.Writer) (*process, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.LogLevel)); err != nil {
		return nil, fmt.Errorf("read --log-level: %w", err)
	}
	format, err := telemetry.ParseLogFormat(f.LogFormat)
	if err != nil {
		return nil, fmt.Errorf("read --log-format: %w", err)
	}
	tuneMemory()
	logger := telemetry.NewLogger(w, telemetry.LogOptions{Service: name, Format: format, Level: level})
	p := &process{
		logger: logger, registry: telemetry.NewRegistry(),
		health: telemetry.NewHealth(telemetry.HealthOptions{Logger: logger}),
		routes: map[string]http.Handler{},
	}
	if f.Pprof {
		p.routes["GET /debug/pprof/"] = http.HandlerFunc(pprof.Index)
		p.routes["GET /debug/pprof/profile"] = http.HandlerFunc(pprof.Profile)
		p.routes["GET /debug/pprof/trace"] = http.HandlerFunc(pprof.Trace)
	}
	return p, nil
}

// serve runs body, a service, with its observability around it, which starts
// first and ends last. Stop order (ARCHITECTURE §9): readiness off, wait for
// balancers, then body's own context ends and body does the rest in its own
// order before it returns.
func (f processFlags) serve(ctx context.Context, p *process, body func(context.Context) error) error {
	around, endAround := context.WithCancel(context.WithoutCancel(ctx))
	defer endAround()
	inner, endInner := context.WithCancel(around)
	defer endInner()

	group, groupCtx := errgroup.WithContext(around)
	group.Go(func() error { return p.health.Run(groupCtx) })
	group.Go(func() error { return p.observe(groupCtx, f.Metrics) })
	group.Go(func() error { p.announce(groupCtx); return nil })
	group.Go(func() error {
		select {
		case <-groupCtx.Done():
		case <-ctx.Done():
			p.logger.Info("stopping")
			p.health.Drain()
			time.Sleep(f.Drain)
		}
		endInner()
		return nil
	})
	group.Go(func() error {
		defer endAround()
		return body(inner)
	})
	err := group.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		p.logger.Error("ended", telemetry.Err(err))
		return err
	}
	p.logger.Info("stopped")
	return nil
}

func (p *process) observe(ctx context.Context, addr string) error {
	return telemetry.Serve(ctx, telemetry.ServeOptions{
		Addr: addr, Health: p.health, Gatherer: p.registry, Logger: p.logger, Routes: p.routes,
		Listening: func(at net.Addr) { p.logger.Info("observability listens", "address", at.String()) },
	})
}

// announce writes one line when the process has become ready, for people and
// for scripts that wait on the log.
func (p *process) announce(ctx context.Context) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for p.health.Ready() != nil {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	p.logger.Info("ready", "pid", os.Getpid())
}
