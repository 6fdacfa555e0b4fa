package xds

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"keyway/config"
)

// Status is what a person wants to know of a region's control plane.
type Status struct {
	Region string `json:"region"`
	// Version of the RegionConfig that is published.
	Version int64 `json:"version"`
	// Waiting: a newer configuration is with the Envoys and not yet published.
	Waiting bool `json:"waiting"`
	// ConfigErrors are the problems of the file as it is now, one each; empty
	// when it is the one served.
	ConfigErrors []string `json:"config_errors"`
	// Withheld are channels that the services are not told of, because an
	// Envoy refused their cluster or because their SK cannot be read.
	Withheld []string `json:"withheld_channels"`
	// Leaving are clusters that no service names any more and that still
	// serve their last streams.
	Leaving []string     `json:"leaving_clusters"`
	Nodes   []NodeStatus `json:"nodes"`
}

// NodeStatus is one connected node.
type NodeStatus struct {
	Node string `json:"node"`
	// Kind is "envoy" or "service".
	Kind string `json:"kind"`
	// Version is the last published one that the node acknowledged as a whole; 0 is none.
	Version int64 `json:"version"`
	// LastNack is the last refusal on this connection; null when there was none.
	LastNack *Nack `json:"last_nack"`
}

// Nack is a refusal by a node.
type Nack struct {
	// Type is listener, route, cluster or region_config.
	Type   string    `json:"type"`
	Detail string    `json:"detail"`
	Time   time.Time `json:"time"`
}

// Status returns the state as of now; it is safe for any goroutine.
func (s *Server) Status() Status {
	st := *s.status.Load()
	st.Nodes = s.nodes.list()
	return st
}

// StatusHandler serves Status as JSON.
func (s *Server) StatusHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.MarshalIndent(s.Status(), "", "  ")
		if err != nil {
			http.Error(w, "status cannot be encoded", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if _, err := w.Write(append(body, '\n')); err != nil {
			s.opts.Logger.Debug("status reader left", "error", err)
		}
	})
}

// list returns the connected nodes, ordered by name.
func (n *nodes) list() []NodeStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]NodeStatus, 0, len(n.streams))
	for _, s := range n.streams {
		if s.node != "" {
			list = append(list, NodeStatus{Node: s.node, Kind: s.kind(), Version: s.version, LastNack: s.lastNack})
		}
	}
	slices.SortFunc(list, func(a, b NodeStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Version, b.Version))
	})
	return list
}

// report brings metrics and status up to date with the loop's state.
func (p *plane) report() {
	m := p.server.metrics
	for kind, n := range p.nodes.count() {
		m.connected.WithLabelValues(kind).Set(float64(n))
	}
	version := p.published.GetVersion()
	m.version.Set(float64(version))
	m.withheld.Set(float64(len(p.withheld)))
	if p.rollout == nil {
		p.nodes.mark(version, map[string]map[string]string{
			resource.ListenerType:   p.listeners.versions,
			resource.RouteType:      p.routes.versions,
			resource.ClusterType:    p.wantedClusters(),
			config.RegionConfigType: p.regions.versions,
		})
	}
	p.server.status.Store(&Status{
		Region:       p.accepted.GetRegion(),
		Version:      version,
		Waiting:      p.rollout != nil,
		ConfigErrors: append([]string{}, p.configErrors...),
		Withheld:     append([]string{}, p.withheld...),
		Leaving:      append([]string{}, slices.Sorted(maps.Keys(p.leaving))...),
	})
}
