package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ServeOptions of Serve and NewHandler. Health and Gatherer are required;
// another zero field takes its default.
type ServeOptions struct {
	// Addr is "host:port"; port 0 takes a free one. Only Serve reads it.
	Addr string
	// Health is shown under /healthz and /readyz.
	Health *Health
	// Gatherer is shown under /metrics.
	Gatherer prometheus.Gatherer
	// Routes are served beside these, by net/http's patterns such as
	// "GET /status"; may be nil.
	Routes map[string]http.Handler
	// StopLimit bounds the graceful end; default 2 s.
	StopLimit time.Duration
	// Logger gets what net/http cannot return; default discards.
	Logger *slog.Logger
	// Listening is told the address once connections are accepted; may be nil.
	Listening func(net.Addr)
}

const (
	defaultStopLimit = 2 * time.Second
	readLimit        = 5 * time.Second
	writeLimit       = 30 * time.Second // a scrape of a large registry over a slow link
	idleLimit        = 2 * time.Minute  // longer than a usual scrape interval
)

// NewHandler returns the observability endpoints:
//
//	/healthz  200 while the process is live, else 503
//	/readyz   200 while it is ready, else 503; the body is a Report in JSON
//	/metrics  Prometheus exposition of o.Gatherer
//	o.Routes  what the process has to show besides
func NewHandler(o ServeOptions) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Health.Live(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		// A write that fails here has lost its reader; nobody is left to tell.
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		report := o.Health.Report()
		w.Header().Set("Content-Type", "application/json")
		if !report.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(report)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{}))
	for pattern, handler := range o.Routes {
		mux.Handle(pattern, handler)
	}
	return mux
}

// Serve runs the observability server until ctx ends, then lets requests that
// are being answered end. It must outlive the services it reports on, so that
// their draining is seen. The error is that of listening or serving; nil after
// a graceful end.
func Serve(ctx context.Context, o ServeOptions) error {
	if o.StopLimit <= 0 {
		o.StopLimit = defaultStopLimit
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", o.Addr)
	if err != nil {
		return fmt.Errorf("listen for observability: %w", err)
	}
	srv := &http.Server{
		Handler:           NewHandler(o),
		ReadHeaderTimeout: readLimit,
		ReadTimeout:       readLimit,
		WriteTimeout:      writeLimit,
		IdleTimeout:       idleLimit,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
	}
	if o.Listening != nil {
		o.Listening(ln.Addr())
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }() // ends with Shutdown or Close below
	select {
	case err := <-ended:
		return fmt.Errorf("serve observability: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.StopLimit)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		// A reader that does not end keeps nothing of value open: cut it.
		err = errors.Join(err, srv.Close())
		o.Logger.Warn("observability server cut its last connections", Err(err))
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve observability: %w", err)
	}
	return nil
}
