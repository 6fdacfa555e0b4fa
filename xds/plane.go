package xds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
	"keyway/envoy"
)

// plane is the state of the loop. Everything in it is confined to the loop's
// goroutine, except the caches behind the sets, which the streams read.
type plane struct {
	server *Server
	opts   Options
	logger *slog.Logger
	nodes  *nodes

	listeners, routes, clusters, secrets, regions *set
	// lost are the secrets that cannot be read; they are read again at secretsDue.
	lost       map[string]bool
	secretsDue time.Time

	// accepted is the newest valid configuration and its Envoy resources.
	accepted  *keywayv1.Config
	resources envoy.Resources
	// rollout is the push in progress; nil when accepted is published.
	rollout *rollout
	// published is what the services are told; nil before the first.
	published *keywayv1.RegionConfig
	// floor is the highest version known to be in use: none below it may be
	// published, even when the state file was lost.
	floor int64
	// withheld are the channels left out of published.
	withheld []string
	// leaving holds clusters that are not wanted any more, with the time from
	// which they may go.
	leaving map[string]time.Time
	// configErrors are the problems of the file; nil when it is accepted.
	configErrors []string
}

// rollout is the time between the push of clusters and the publication of the
// RegionConfig that names them.
type rollout struct {
	since    time.Time
	deadline time.Time
	patience patience
}

// patience says what the absence of Envoys means.
type patience int

const (
	// absentIsDone: nobody is there to wait for.
	absentIsDone patience = iota
	// absentIsLate: after a restart the Envoys need a moment to return, and
	// they still have what was served before.
	absentIsLate
)

func newPlane(s *Server) *plane {
	return &plane{
		server:    s,
		opts:      s.opts,
		logger:    s.opts.Logger,
		nodes:     s.nodes,
		listeners: newSet(resource.ListenerType),
		routes:    newSet(resource.RouteType),
		clusters:  newSet(resource.ClusterType),
		secrets:   newSet(resource.SecretType),
		regions:   newSet(config.RegionConfigType),
		leaving:   make(map[string]time.Time),
	}
}

// mux routes each type to its cache; another type ends the stream that asks for it.
func (p *plane) mux() *cache.MuxCache {
	return &cache.MuxCache{
		Classify:      func(req *cache.Request) string { return req.GetTypeUrl() },
		ClassifyDelta: func(req *cache.DeltaRequest) string { return req.GetTypeUrl() },
		Caches: map[string]cache.Cache{
			resource.ListenerType:   p.listeners.cache,
			resource.RouteType:      p.routes.cache,
			resource.ClusterType:    p.clusters.cache,
			resource.SecretType:     p.secrets.cache,
			config.RegionConfigType: p.regions.cache,
		},
	}
}

// start serves what was last published and accepts the first content of the file.
func (p *plane) start(first reading) error {
	cfg, res, err := p.compile(first)
	if err != nil {
		p.server.metrics.rejected.Inc()
		return err
	}
	wait := absentIsDone
	if p.restore(cfg.GetRegion()) && !proto.Equal(cfg, p.published.GetConfig()) {
		wait = absentIsLate
	}
	return p.accept(cfg, res, wait)
}

// restore serves the state file's configuration again and reports whether
// there was one. A state that cannot be used costs only the order of the next
// change, so it does not keep the control plane from starting.
func (p *plane) restore(region string) bool {
	if p.opts.StateFile == "" {
		return false
	}
	rc, err := config.ReadRegionConfig(p.opts.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil && rc.GetConfig().GetRegion() != region {
		err = fmt.Errorf("it is for region %q", rc.GetConfig().GetRegion())
	}
	if err != nil {
		p.logger.Warn("former state is not usable", "file", p.opts.StateFile, "error", err)
		return false
	}
	p.floor = rc.GetVersion()
	res, err := p.build(rc.GetConfig())
	if err == nil {
		err = p.readSecrets(res)
	}
	if err == nil {
		err = p.serve(res)
	}
	if err == nil {
		err = p.tell(rc)
	}
	if err != nil {
		p.logger.Warn("former state is not usable", "file", p.opts.StateFile, "error", err)
		return false
	}
	p.logger.Info("former state is served", "version", rc.GetVersion())
	return true
}

// compile turns a reading of the file into something to serve.
func (p *plane) compile(r reading) (*keywayv1.Config, envoy.Resources, error) {
	if r.err != nil {
		return nil, envoy.Resources{}, r.err
	}
	cfg, err := config.Parse(r.data)
	if err != nil {
		return nil, envoy.Resources{}, err
	}
	if p.accepted != nil && cfg.GetRegion() != p.accepted.GetRegion() {
		return nil, envoy.Resources{}, fmt.Errorf("region: changed from %q to %q; that needs a restart", p.accepted.GetRegion(), cfg.GetRegion())
	}
	res, err := p.build(cfg)
	if err != nil {
		return nil, envoy.Resources{}, fmt.Errorf("build envoy resources: %w", err)
	}
	return cfg, res, nil
}

// run is the one loop of the control plane. Four things can happen: the end,
// another content of the file, something new about a node, or a time that was
// waited for. After each of the last three, advance does what has become due.
func (p *plane) run(ctx context.Context, files <-chan reading) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-files:
			if err := p.fileChanged(r); err != nil {
				return err
			}
		case <-p.nodes.changed:
		case <-timer.C:
		}
		now := time.Now()
		if err := p.advance(now); err != nil {
			return err
		}
		if next, ok := p.nextDue(now); ok {
			timer.Reset(max(0, next.Sub(now)))
		} else {
			timer.Stop()
		}
	}
}

// fileChanged accepts or refuses a new content of the file.
func (p *plane) fileChanged(r reading) error {
	cfg, res, err := p.compile(r)
	if err != nil {
		p.refuse(err)
		return nil
	}
	return p.accept(cfg, res, absentIsDone)
}

// refuse keeps what is served and says why the file is not.
func (p *plane) refuse(err error) {
	p.server.metrics.rejected.Inc()
	p.configErrors = nil
	var invalid *config.ValidationError
	if !errors.As(err, &invalid) {
		p.configErrors = []string{err.Error()}
		p.logger.Error("configuration refused; the last good one stays", "file", p.opts.ConfigFile, "error", err)
		return
	}
	for _, problem := range invalid.Problems {
		p.configErrors = append(p.configErrors, problem.String())
		p.logger.Error("configuration refused; the last good one stays", "file", p.opts.ConfigFile, "field", problem.Path, "problem", problem.Message)
	}
}

// accept makes cfg the desired state and begins its rollout: new and changed
// clusters go out at once, everything that names them waits. A rollout that
// was in progress is overtaken.
func (p *plane) accept(cfg *keywayv1.Config, res envoy.Resources, wait patience) error {
	p.configErrors = nil
	if p.accepted != nil && p.rollout == nil && proto.Equal(cfg, p.accepted) {
		return nil // a comment changed, or the good content came back
	}
	if err := p.readSecrets(res); err != nil {
		return err
	}
	return p.begin(cfg, res, wait)
}

// begin begins the rollout of cfg, whose secrets have been read.
func (p *plane) begin(cfg *keywayv1.Config, res envoy.Resources, wait patience) error {
	changed, err := put(p.clusters, p.withSecret(res))
	if err != nil {
		return fmt.Errorf("push clusters: %w", err)
	}
	for name := range res.Clusters {
		delete(p.leaving, name)
	}
	now := time.Now()
	p.accepted, p.resources = cfg, res
	p.rollout = &rollout{since: now, deadline: now.Add(p.opts.AckWait), patience: wait}
	p.logger.Info("configuration accepted", "clusters_changed", changed)
	return p.advance(now)
}

// serve puts all Envoy resources, whose secrets have been read, into the caches.
func (p *plane) serve(res envoy.Resources) error {
	if _, err := put(p.clusters, p.withSecret(res)); err != nil {
		return fmt.Errorf("push clusters: %w", err)
	}
	if _, err := put(p.routes, res.Routes); err != nil {
		return fmt.Errorf("push routes: %w", err)
	}
	if _, err := put(p.listeners, res.Listeners); err != nil {
		return fmt.Errorf("push listeners: %w", err)
	}
	return nil
}

// nextDue is the earliest time after now at which advance has something to do without an event.
func (p *plane) nextDue(now time.Time) (time.Time, bool) {
	times := slices.Collect(maps.Values(p.leaving))
	if p.rollout != nil {
		times = append(times, p.rollout.deadline)
	}
	if len(p.resources.Secrets) > 0 {
		times = append(times, p.secretsDue)
	}
	// What is overdue waits for a node, not for a time.
	times = slices.DeleteFunc(times, func(t time.Time) bool { return !t.After(now) })
	if len(times) == 0 {
		return time.Time{}, false
	}
	return slices.MinFunc(times, time.Time.Compare), true
}
