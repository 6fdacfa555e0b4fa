package envoy

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// Resources are what a region's Envoys get over xDS, by resource name.
type Resources struct {
	Listeners map[string]*listenerv3.Listener
	Routes    map[string]*routev3.RouteConfiguration
	Clusters  map[string]*clusterv3.Cluster
	// Secrets are the references to the SKs of native channels, by the name of
	// the SDS resource that their clusters ask for.
	Secrets map[string]string
}

// Build makes the Envoy resources of cfg, which must have passed
// config.Load: defaults filled in and every reference valid.
func Build(cfg *keywayv1.Config) (Resources, error) {
	res := Resources{
		Listeners: map[string]*listenerv3.Listener{},
		Routes:    map[string]*routev3.RouteConfiguration{},
		Clusters:  map[string]*clusterv3.Cluster{},
		Secrets:   map[string]string{},
	}
	listener, err := ingressListener(cfg)
	if err != nil {
		return Resources{}, fmt.Errorf("build listener: %w", err)
	}
	route, err := ingressRoute(cfg)
	if err != nil {
		return Resources{}, fmt.Errorf("build route: %w", err)
	}
	res.Listeners[listener.GetName()] = listener
	res.Routes[route.GetName()] = route
	providers := map[string]*keywayv1.Provider{}
	for _, p := range cfg.GetProviders() {
		providers[p.GetName()] = p
	}
	for _, ch := range cfg.GetChannels() {
		provider, ok := providers[ch.GetProvider()]
		if !ok {
			return Resources{}, fmt.Errorf("build cluster of channel %q: unknown provider %q", ch.GetName(), ch.GetProvider())
		}
		cluster, err := channelCluster(ch, provider)
		if err != nil {
			return Resources{}, fmt.Errorf("build cluster of channel %q: %w", ch.GetName(), err)
		}
		res.Clusters[cluster.GetName()] = cluster
		if domain.Egress(ch.GetEgress()) == domain.EgressNative {
			res.Secrets[SecretOf(ch.GetName())] = ch.GetSecret()
		}
	}
	return res, nil
}

// pack wraps m for a typed_config. Marshalling deterministically keeps equal
// resources equal byte for byte, so that nothing unchanged is pushed again.
func pack(m proto.Message) (*anypb.Any, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return &anypb.Any{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()), Value: raw}, nil
}
