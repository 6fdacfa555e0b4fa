package xds

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
	"keyway/envoy"
)

// advance does everything that has become possible or due. It may run at any
// time and does nothing when there is nothing to do. An error is one of the
// caches, which only a programming mistake causes.
func (p *plane) advance(now time.Time) error {
	if err := p.refreshSecrets(now); err != nil {
		return err
	}
	if p.rollout != nil && p.clustersAnswered(now) {
		if err := p.finish(now); err != nil {
			return err
		}
	} else if p.rollout == nil {
		// A node that refused a cluster may have left or changed its mind, a
		// new one may refuse, or a service may know a later version than we do.
		if err := p.publish(); err != nil {
			return err
		}
	}
	if err := p.dropLeft(now); err != nil {
		return err
	}
	p.report()
	return nil
}

// clustersAnswered reports whether the rollout may go on: every connected
// Envoy has answered for every wanted cluster, or the wait is over.
func (p *plane) clustersAnswered(now time.Time) bool {
	silent := p.nodes.unanswered(p.wantedClusters())
	absent := p.rollout.patience == absentIsLate && p.nodes.count()[kindEnvoy] == 0
	if len(silent) == 0 && !absent {
		return true
	}
	if now.Before(p.rollout.deadline) {
		return false
	}
	if len(silent) > 0 {
		p.server.metrics.timeouts.Inc()
		p.logger.Warn("not every Envoy has answered for the new clusters; going on without", "nodes", silent, "waited", p.opts.AckWait)
	}
	return true
}

// wantedClusters are the versions of the accepted configuration's clusters, but
// for those that have no secret.
func (p *plane) wantedClusters() map[string]string {
	wanted := make(map[string]string, len(p.resources.Clusters))
	for name := range p.withSecret(p.resources) {
		wanted[name] = p.clusters.versions[name]
	}
	return wanted
}

// finish tells everyone else of the accepted configuration.
func (p *plane) finish(now time.Time) error {
	since := p.rollout.since
	p.rollout = nil
	if err := p.serve(p.resources); err != nil {
		return err
	}
	if err := p.publish(); err != nil {
		return err
	}
	p.server.metrics.push.Observe(time.Since(since).Seconds())
	// Nothing refers to these any more. Clusters are different: running
	// requests are on them, and services may still name them.
	if err := p.listeners.remove(beyond(p.listeners, p.resources.Listeners)); err != nil {
		return fmt.Errorf("remove listeners: %w", err)
	}
	if err := p.routes.remove(beyond(p.routes, p.resources.Routes)); err != nil {
		return fmt.Errorf("remove routes: %w", err)
	}
	for _, name := range beyond(p.clusters, p.resources.Clusters) {
		if _, known := p.leaving[name]; !known {
			p.leaving[name] = now.Add(p.removalGrace())
		}
	}
	return nil
}

func (p *plane) removalGrace() time.Duration {
	if p.opts.RemovalGrace > 0 {
		return p.opts.RemovalGrace
	}
	return p.accepted.GetLimits().GetDrainTime().AsDuration()
}

// publish tells the services of the accepted configuration, without the
// channels whose cluster an Envoy lacks, if that is news to them.
func (p *plane) publish() error {
	lacking := p.nodes.lacking(p.wantedClusters())
	for name := range p.resources.Clusters {
		if p.withoutSecret(name) {
			lacking = append(lacking, name)
		}
	}
	cfg, withheld := without(p.accepted, lacking)
	p.floor = max(p.floor, p.nodes.highestReported())
	current := p.published.GetVersion()
	if p.published != nil && current >= p.floor && proto.Equal(cfg, p.published.GetConfig()) {
		return nil
	}
	rc := &keywayv1.RegionConfig{Version: max(current, p.floor) + 1, Config: cfg}
	if p.opts.StateFile != "" {
		// Kept before it is sent, so that a crash never leads to two
		// contents under one version.
		if err := config.SaveRegionConfig(p.opts.StateFile, rc); err != nil {
			p.logger.Error("state is not kept; a restart may begin with an old version", "file", p.opts.StateFile, "error", err)
		}
	}
	p.withheld = withheld
	if len(withheld) > 0 {
		p.logger.Error("channels are withheld: an Envoy refused their cluster, or they have no credential", "channels", withheld)
	}
	p.logger.Info("configuration published", "version", rc.GetVersion())
	return p.tell(rc)
}

// tell serves rc to the services.
func (p *plane) tell(rc *keywayv1.RegionConfig) error {
	name := config.RegionConfigName(rc.GetConfig().GetRegion())
	if _, err := put(p.regions, map[string]*keywayv1.RegionConfig{name: rc}); err != nil {
		return fmt.Errorf("push region configuration: %w", err)
	}
	p.published = rc
	return nil
}

// without returns cfg less the channels of the given clusters, and their
// names. cfg itself stays as it is.
func without(cfg *keywayv1.Config, clusters []string) (*keywayv1.Config, []string) {
	if len(clusters) == 0 {
		return cfg, nil
	}
	var withheld []string
	cfg = proto.CloneOf(cfg)
	cfg.Channels = slices.DeleteFunc(cfg.Channels, func(ch *keywayv1.Channel) bool {
		lacking := slices.Contains(clusters, envoy.ClusterOf(ch.GetName()))
		if lacking {
			withheld = append(withheld, ch.GetName())
		}
		return lacking
	})
	return cfg, withheld
}

// dropLeft removes the clusters whose grace is over, provided that no service
// can name them any more.
func (p *plane) dropLeft(now time.Time) error {
	var due []string
	for name, at := range p.leaving {
		if !now.Before(at) {
			due = append(due, name)
		}
	}
	region := config.RegionConfigName(p.accepted.GetRegion())
	if len(due) == 0 || !p.nodes.servicesAgree(region, p.regions.versions[region]) {
		return nil
	}
	slices.Sort(due)
	for _, name := range due {
		delete(p.leaving, name)
	}
	p.logger.Info("clusters removed", "clusters", due)
	if err := p.clusters.remove(due); err != nil {
		return fmt.Errorf("remove clusters: %w", err)
	}
	return p.dropSecrets(due)
}
