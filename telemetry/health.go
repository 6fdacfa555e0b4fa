package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// HealthOptions of NewHealth. A zero field takes its default.
type HealthOptions struct {
	// Interval between two evaluations of the checks; default 1 s.
	Interval time.Duration
	// Timeout of one evaluation of one check; default 500 ms.
	Timeout time.Duration
	// Logger gets one line per change of a check; default discards.
	Logger *slog.Logger
}

const (
	defaultCheckInterval = time.Second
	defaultCheckTimeout  = 500 * time.Millisecond
)

var (
	// ErrDraining is why a process that is being stopped is not ready.
	ErrDraining = errors.New("draining")
	// ErrNotChecked is the state of a check before its first evaluation.
	ErrNotChecked = errors.New("not checked yet")
)

// Health is what a process knows of its own health, in two layers:
//
//	live   the process can go on; false asks for a restart (Fail)
//	ready  live, every named check passes, not draining; false asks for no new
//	       work (Set, AddCheck, Drain)
//
//	starting ──checks pass──► ready ◄──► unready
//	    └────────────┬──────────┴───────────┘
//	               Drain ──► draining (never back)
//
// The embedded gRPC health server follows the ready layer. Health is safe for
// concurrent use.
type Health struct {
	opts HealthOptions
	grpc *health.Server

	mu       sync.Mutex
	checks   map[string]*check // all below are guarded by mu
	fatal    error
	draining bool
}

type check struct {
	eval func(context.Context) error // nil for one that is only Set
	err  error
}

// CheckStatus is one named check of a Report.
type CheckStatus struct {
	Name string `json:"name"`
	// Error is why the check fails; "" when it passes.
	Error string `json:"error,omitempty"`
}

// Report is the health of a process at one moment.
type Report struct {
	Live     bool `json:"live"`
	Ready    bool `json:"ready"`
	Draining bool `json:"draining"`
	// Checks are sorted by name.
	Checks []CheckStatus `json:"checks"`
}

// NewHealth returns a Health that is live, and ready as soon as every check
// that is added to it passes. Nothing is evaluated before Run.
func NewHealth(o HealthOptions) *Health {
	if o.Interval <= 0 {
		o.Interval = defaultCheckInterval
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultCheckTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Health{opts: o, grpc: health.NewServer(), checks: make(map[string]*check)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish()
	return h
}

// AddCheck makes readiness depend on eval, which Run calls once per interval.
// The check fails with ErrNotChecked until then. eval must obey its context.
// A second check of the same name takes the place of the first.
func (h *Health) AddCheck(name string, eval func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks[name] = &check{eval: eval, err: ErrNotChecked}
	h.publish()
}

// Set states the result of the check called name, nil for a pass. It creates
// the check; on one that was added with AddCheck it holds until the next
// evaluation, so that a caller who sees a failure need not wait for it.
func (h *Health) Set(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.checks[name]
	if !ok {
		c = &check{}
		h.checks[name] = c
	}
	h.record(name, c, err)
	h.publish()
}

// Fail marks the process as not live, for good: only a restart helps. err must not be nil.
func (h *Health) Fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fatal = err
	h.publish()
}

// Drain makes the process unready, for good. It is the first step of a stop.
func (h *Health) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	h.publish()
}

// Live returns nil, or what was given to Fail.
func (h *Health) Live() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fatal
}

// Ready returns nil when new work is welcome; otherwise ErrDraining, what was
// given to Fail, or the joined errors of the failing checks, each with its name.
func (h *Health) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready()
}

// Report returns the whole state.
func (h *Health) Report() Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := Report{Live: h.fatal == nil, Ready: h.ready() == nil, Draining: h.draining, Checks: []CheckStatus{}}
	for name, c := range h.checks {
		s := CheckStatus{Name: name}
		if c.err != nil {
			s.Error = c.err.Error()
		}
		r.Checks = append(r.Checks, s)
	}
	slices.SortFunc(r.Checks, func(a, b CheckStatus) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// GRPC returns the gRPC health service, SERVING while the process is ready
// (under the service name ""). Register it on the server whose callers ask.
func (h *Health) GRPC() *health.Server { return h.grpc }

// Run evaluates the checks, at once and then every interval, until ctx ends. It
// always returns nil.
func (h *Health) Run(ctx context.Context) error {
	ticker := time.NewTicker(h.opts.Interval)
	defer ticker.Stop()
	for {
		h.evaluate(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// evaluate runs all checks side by side, so that one that hangs until its
// timeout does not delay the news of the others.
func (h *Health) evaluate(ctx context.Context) {
	h.mu.Lock()
	due := make(map[string]*check, len(h.checks))
	for name, c := range h.checks {
		if c.eval != nil {
			due[name] = c
		}
	}
	h.mu.Unlock()

	var wg sync.WaitGroup
	for name, c := range due {
		wg.Go(func() {
			checkCtx, cancel := context.WithTimeout(ctx, h.opts.Timeout)
			defer cancel()
			err := c.eval(checkCtx)
			if ctx.Err() != nil {
				return // the process stops; that says nothing about the check
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.checks[name] == c { // not replaced meanwhile
				h.record(name, c, err)
				h.publish()
			}
		})
	}
	wg.Wait()
}

// record stores err and logs a change; the mutex is held.
func (h *Health) record(name string, c *check, err error) {
	was := c.err
	c.err = err
	switch {
	case err != nil && (was == nil || errors.Is(was, ErrNotChecked)):
		h.opts.Logger.Warn("health check fails", slog.String("check", name), Err(err))
	case err == nil && was != nil && !errors.Is(was, ErrNotChecked):
		h.opts.Logger.Info("health check passes again", slog.String("check", name))
	}
}

// ready is Ready with the mutex held.
func (h *Health) ready() error {
	if h.fatal != nil {
		return h.fatal
	}
	if h.draining {
		return ErrDraining
	}
	var errs []error
	for name, c := range h.checks {
		if c.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, c.err))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// publish tells the gRPC service; the mutex is held, so that two changes
// cannot overtake each other.
func (h *Health) publish() {
	status := healthpb.HealthCheckResponse_SERVING
	if h.ready() != nil {
		status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	h.grpc.SetServingStatus("", status)
}
