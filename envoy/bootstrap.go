package envoy

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// BootstrapOptions say where an Envoy finds the services of its region. An
// address is "host:port" or "unix:/path".
type BootstrapOptions struct {
	// NodeID must be unique among the Envoys of the region; it begins with "envoy-".
	NodeID string
	Region string
	XDS    string
	Authz  string
	// Extproc is where the extproc service listens: watch side, egress side
	// and access log, over separate clusters.
	Extproc string
	// Relay is where extproc's relay listens; "" has none, and requests of models
	// with early_heartbeat then get 503.
	Relay string
	// Egress is the socket, "unix:/path", at which the relay and the workers call
	// channels; "" has none.
	Egress string
	// Admin is the admin listener, "host:port"; "" for none.
	Admin string
	// TLS is for the services whose address is "host:port", but not for the relay,
	// which is on Envoy's own machine; the zero value is plain text.
	TLS BootstrapTLS
}

// Limits of the gRPC clusters. A service that stalls for seconds and comes back
// must not be cut off for the frames it then answers at once.
const (
	serviceBuffer       = 1 << 20
	serviceStreams      = 2000
	maxOutboundFrames   = 10_000_000
	maxOutboundControls = 100_000
	// The egress cluster's write limits must stay out of reach (rule 2 of
	// ARCHITECTURE §1): the buffer is beyond what admission lets in flight, the
	// stream window above twice the largest body, the connection window the
	// largest there is.
	egressBuffer       = 1 << 30
	egressStreamWindow = 192 << 20
	egressConnWindow   = 1<<31 - 1
)

// Bootstrap makes the static part of an Envoy of the region: the clusters of
// the services and the way to the control plane.
func Bootstrap(o BootstrapOptions) (*bootstrapv3.Bootstrap, error) {
	clusters, err := serviceClusters(o)
	if err != nil {
		return nil, err
	}
	var listeners []*listenerv3.Listener
	if o.Egress != "" {
		egress, err := egressListener(o.Egress)
		if err != nil {
			return nil, fmt.Errorf("build listener %s: %w", ListenerEgress, err)
		}
		listeners = append(listeners, egress)
	}
	limit, err := connectionLimit()
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: o.NodeID, Cluster: o.Region},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			LdsConfig: adsSource(),
			CdsConfig: adsSource(),
			AdsConfig: &corev3.ApiConfigSource{
				ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
				TransportApiVersion: corev3.ApiVersion_V3,
				GrpcServices:        []*corev3.GrpcService{grpcService(ClusterXDS)},
			},
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: clusters, Listeners: listeners},
		OverloadManager: limit,
	}
	if o.Admin != "" {
		host, port, err := splitAddress(o.Admin)
		if err != nil {
			return nil, fmt.Errorf("admin address: %w", err)
		}
		b.Admin = &bootstrapv3.Admin{Address: socketAddress(host, port)}
	}
	return b, nil
}

// serviceClusters are those of the services, the relay and the sink.
func serviceClusters(o BootstrapOptions) ([]*clusterv3.Cluster, error) {
	egressHTTP2 := serviceHTTP2()
	egressHTTP2.InitialStreamWindowSize = wrapperspb.UInt32(egressStreamWindow)
	egressHTTP2.InitialConnectionWindowSize = wrapperspb.UInt32(egressConnWindow)
	var clusters []*clusterv3.Cluster
	for _, s := range []struct {
		name, address string
		buffer        uint32
		http2         *corev3.Http2ProtocolOptions
	}{
		{ClusterXDS, o.XDS, serviceBuffer, serviceHTTP2()},
		{ClusterAuthz, o.Authz, serviceBuffer, serviceHTTP2()},
		{ClusterWatch, o.Extproc, serviceBuffer, serviceHTTP2()},
		{ClusterEgress, o.Extproc, egressBuffer, egressHTTP2},
		{ClusterALS, o.Extproc, serviceBuffer, serviceHTTP2()},
	} {
		c, err := serviceCluster(s.name, s.address, s.http2)
		if err == nil {
			c.TransportSocket, err = serviceTLS(s.address, o.TLS)
		}
		if err != nil {
			return nil, fmt.Errorf("build cluster %s: %w", s.name, err)
		}
		c.PerConnectionBufferLimitBytes = wrapperspb.UInt32(s.buffer)
		clusters = append(clusters, c)
	}
	relay, err := relayCluster(o.Relay)
	if err != nil {
		return nil, fmt.Errorf("build cluster %s: %w", ClusterRelay, err)
	}
	return append(clusters, relay, emptyCluster(ClusterSink)), nil
}

// emptyCluster has no endpoint: what is sent there gets 503.
func emptyCluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		CircuitBreakers:      breakers(),
	}
}

// relayCluster leads to the relay. Its buffers are those of a channel, so that a
// slow client slows the relay down.
func relayCluster(address string) (*clusterv3.Cluster, error) {
	if address == "" {
		return emptyCluster(ClusterRelay), nil
	}
	c, err := serviceCluster(ClusterRelay, address, serviceHTTP2())
	if err != nil {
		return nil, err
	}
	c.PerConnectionBufferLimitBytes = wrapperspb.UInt32(connBuffer)
	return c, nil
}

// maxConnections bounds client connections on purpose: without a bound Envoy
// takes as many as the kernel gives.
const maxConnections = 100_000

func connectionLimit() (*overloadv3.OverloadManager, error) {
	monitor, err := pack(&connectionsv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: maxConnections})
	if err != nil {
		return nil, err
	}
	return &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{{
		Name:       "envoy.resource_monitors.global_downstream_max_connections",
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: monitor},
	}}}, nil
}

func serviceHTTP2() *corev3.Http2ProtocolOptions {
	return &corev3.Http2ProtocolOptions{
		MaxConcurrentStreams:        wrapperspb.UInt32(serviceStreams),
		InitialStreamWindowSize:     wrapperspb.UInt32(streamWindow),
		InitialConnectionWindowSize: wrapperspb.UInt32(connWindow),
		MaxOutboundFrames:           wrapperspb.UInt32(maxOutboundFrames),
		MaxOutboundControlFrames:    wrapperspb.UInt32(maxOutboundControls),
	}
}

func serviceCluster(name, address string, http2 *corev3.Http2ProtocolOptions) (*clusterv3.Cluster, error) {
	packed, err := pack(&httpv3.HttpProtocolOptions{UpstreamProtocolOptions: explicitHTTP2(http2)})
	if err != nil {
		return nil, err
	}
	c := &clusterv3.Cluster{
		Name:                          name,
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:                &durationpb.Duration{Seconds: 2},
		CircuitBreakers:               breakers(),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{httpOptionsKey: packed},
	}
	var at *corev3.Address
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		at = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	} else {
		host, port, err := splitAddress(address)
		if err != nil {
			return nil, err
		}
		at = socketAddress(host, port)
		if _, err := netip.ParseAddr(host); err != nil {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
			c.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED
		}
	}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at}},
		}}}},
	}
	return c, nil
}

func splitAddress(address string) (host string, port uint32, err error) {
	host, raw, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port or unix:/path: %w", address, err)
	}
	n, err := strconv.ParseUint(raw, 10, 16)
	if err != nil || host == "" {
		return "", 0, fmt.Errorf("%q is not host:port or unix:/path", address)
	}
	return host, uint32(n), nil
}

func socketAddress(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}
