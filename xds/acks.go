package xds

import (
	"maps"
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"keyway/config"
)

// settle records the answer to resp: bad resources are refused, all others of
// it acknowledged (a node applies the good ones of a response it refuses).
func (s *subscribed) settle(resp *discoveryv3.DeltaDiscoveryResponse, bad []string) {
	for _, res := range resp.GetResources() {
		if slices.Contains(bad, res.GetName()) {
			s.refused[res.GetName()] = res.GetVersion()
			continue
		}
		s.acked[res.GetName()] = res.GetVersion()
		delete(s.refused, res.GetName())
	}
	for _, name := range resp.GetRemovedResources() {
		delete(s.acked, name)
		delete(s.refused, name)
	}
}

// faulty returns the resources that a NACK's detail is about. Envoy names each
// as "name: reason"; where none is named, all of them are in doubt.
func faulty(resp *discoveryv3.DeltaDiscoveryResponse, detail string) []string {
	var named, all []string
	for _, res := range resp.GetResources() {
		all = append(all, res.GetName())
		mark := res.GetName() + ": "
		if strings.HasPrefix(detail, mark) || strings.Contains(detail, " "+mark) {
			named = append(named, res.GetName())
		}
	}
	if len(named) > 0 {
		return named
	}
	return all
}

// answer is what a node has said to one resource version.
type answer int

const (
	pending answer = iota
	ackedThis
	refusedThis
)

func (s *subscribed) answerTo(name, version string) answer {
	switch version {
	case s.acked[name]:
		return ackedThis
	case s.refused[name]:
		return refusedThis
	}
	return pending
}

// unanswered returns the Envoys, by node id, that have not yet answered for
// some cluster version of wanted.
func (n *nodes) unanswered(wanted map[string]string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var silent []string
	for _, s := range n.streams {
		sub := s.types[resource.ClusterType]
		if sub == nil {
			continue
		}
		for name, version := range wanted {
			if sub.answerTo(name, version) == pending {
				silent = append(silent, s.node)
				break
			}
		}
	}
	slices.Sort(silent)
	return slices.Compact(silent)
}

// lacking returns the clusters of wanted that some connected Envoy refused and
// has no earlier version of: a request sent there would fail for good.
func (n *nodes) lacking(wanted map[string]string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lacking := make(map[string]struct{})
	for _, s := range n.streams {
		sub := s.types[resource.ClusterType]
		if sub == nil {
			continue
		}
		for name, version := range wanted {
			if sub.answerTo(name, version) == refusedThis && sub.acked[name] == "" {
				lacking[name] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(lacking))
}

// servicesAgree reports whether every connected service runs on the given
// version of the named RegionConfig.
func (n *nodes) servicesAgree(name, version string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.streams {
		if sub := s.types[config.RegionConfigType]; sub != nil && sub.acked[name] != version {
			return false
		}
	}
	return true
}

// count returns the open streams by kind; one that has not spoken yet is none.
func (n *nodes) count() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	counts := map[string]int{kindEnvoy: 0, kindService: 0}
	for _, s := range n.streams {
		if s.node != "" {
			counts[s.kind()]++
		}
	}
	return counts
}

// highestReported is the highest configuration version any service ever said it runs on.
func (n *nodes) highestReported() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reported
}

// mark notes version on every stream that has acknowledged all of served,
// which holds resource versions by type URL and name.
func (n *nodes) mark(version int64, served map[string]map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.streams {
		if s.node != "" && s.inSync(served) {
			s.version = version
		}
	}
}

// inSync looks only at the types the node asked for, and there at the
// resources it was sent or has to have: an Envoy asks for routes by name.
func (n *nodeStream) inSync(served map[string]map[string]string) bool {
	for typeURL, sub := range n.types {
		if len(sub.open) > 0 {
			return false
		}
		for name, version := range served[typeURL] {
			if sub.acked[name] == "" && sub.refused[name] == "" && typeURL == resource.RouteType {
				continue
			}
			if sub.answerTo(name, version) != ackedThis {
				return false
			}
		}
	}
	return true
}
