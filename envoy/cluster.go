package envoy

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

const (
	// unreachable is every circuit breaker's threshold: admission bounds the
	// load, and a breaker's overflow is a final 503 that no retry follows.
	unreachable = 1_000_000
	// connBuffer bounds what one connection may hold in user space, and is the
	// size of the pieces in which bodies pass. At 64 KiB a client that reads
	// slowly costs twice as much, and long bodies a tenth less processor time.
	connBuffer = 16 << 10
	// maxUnsent is how much the kernel takes for a client ahead of its window.
	maxUnsent = 64 << 10
	// streamWindow and connWindow: a stalled stream must not use up the
	// connection's window, or fresh streams on it would stall too.
	streamWindow = 64 << 10
	connWindow   = 256 << 20
	// filterTimeout bounds one ext_authz call and one ext_proc message; the default is 200 ms.
	filterTimeout = 5 * time.Second
	// maxPingTimeout bounds how long a connection may be silent after a PING.
	maxPingTimeout = 10 * time.Second
	// systemCAs is where Debian, and the Envoy images built on it, keep the public roots.
	systemCAs = "/etc/ssl/certs/ca-certificates.crt"
)

const httpOptionsKey = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// breakers lifts all four limits of a cluster.
func breakers() *clusterv3.CircuitBreakers {
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		Priority:           corev3.RoutingPriority_DEFAULT,
		MaxConnections:     wrapperspb.UInt32(unreachable),
		MaxPendingRequests: wrapperspb.UInt32(unreachable),
		MaxRequests:        wrapperspb.UInt32(unreachable),
		MaxRetries:         wrapperspb.UInt32(unreachable),
	}}}
}

// channelCluster is one channel's cluster: its own pool, its own filters.
func channelCluster(ch *keywayv1.Channel, p *keywayv1.Provider) (*clusterv3.Cluster, error) {
	base, err := url.Parse(p.GetBaseUrl())
	if err != nil {
		return nil, fmt.Errorf("parse base_url: %w", err)
	}
	host, port, err := hostPort(base)
	if err != nil {
		return nil, err
	}
	options, err := channelHTTP(ch, p, base)
	if err != nil {
		return nil, err
	}
	name := ClusterOf(ch.GetName())
	c := &clusterv3.Cluster{
		Name:                          name,
		ConnectTimeout:                p.GetConnectTimeout(),
		CircuitBreakers:               breakers(),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(connBuffer),
		UpstreamConnectionOptions:     tcpKeepalive(),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{httpOptionsKey: options},
		// Priority 1 always refuses: an upstream that does not resolve becomes
		// a connect failure, which is retried on the next channel, instead of
		// "no healthy upstream", which is final.
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{
				{Priority: 0, LbEndpoints: []*endpointv3.LbEndpoint{endpoint(host, port)}},
				{Priority: 1, LbEndpoints: []*endpointv3.LbEndpoint{endpoint("127.0.0.1", 1)}},
			},
		},
	}
	if _, err := netip.ParseAddr(host); err == nil {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	} else {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		c.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED
		c.RespectDnsTtl = true //nolint:staticcheck // Its successor, the DNS cluster extension, is not part of the measured set-up.
	}
	if base.Scheme == "https" {
		c.TransportSocket, err = upstreamTLS(host, p.GetCaFile())
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// hostPort splits a provider's base URL; the port falls back to the scheme's own.
func hostPort(base *url.URL) (host string, port uint32, err error) {
	host = base.Hostname()
	raw := base.Port()
	if raw == "" {
		raw = map[string]string{"https": "443", "http": "80"}[base.Scheme]
	}
	n, err := strconv.ParseUint(raw, 10, 16)
	if host == "" || err != nil {
		return "", 0, fmt.Errorf("base_url %q has no usable host and port", base.Redacted())
	}
	return host, uint32(n), nil
}

func endpoint(host string, port uint32) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address:       host,
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
		}}},
	}}}
}

// upstreamTLS checks the provider's certificate against its own name. The SNI
// is static: taking it from the request would send the client's Host.
func upstreamTLS(host, caFile string) (*corev3.TransportSocket, error) {
	if caFile == "" {
		caFile = systemCAs
	}
	sni, sans := peerName(host)
	return tlsSocket(&tlsv3.UpstreamTlsContext{
		Sni: sni,
		CommonTlsContext: &tlsv3.CommonTlsContext{
			ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa:                 fileSource(caFile),
				MatchTypedSubjectAltNames: sans,
			}},
		},
	})
}

// channelHTTP is the channel's filter chain and codec. Only its request phase
// is asynchronous; the response phase is the synchronous verdict script. That
// is rule 1 of ARCHITECTURE §1, and a test holds every snapshot to it.
func channelHTTP(ch *keywayv1.Channel, p *keywayv1.Provider, base *url.URL) (*anypb.Any, error) {
	filters, err := channelFilters(ch, p, base)
	if err != nil {
		return nil, err
	}
	options := &httpv3.HttpProtocolOptions{HttpFilters: filters}
	h2 := &corev3.Http2ProtocolOptions{
		InitialStreamWindowSize:     wrapperspb.UInt32(streamWindow),
		InitialConnectionWindowSize: wrapperspb.UInt32(connWindow),
		ConnectionKeepalive:         keepalive(p.GetHttp2Ping().AsDuration()),
	}
	version := p.GetHttp()
	switch {
	case version == "http2":
		options.UpstreamProtocolOptions = explicitHTTP2(h2)
	case version == "http1", base.Scheme != "https":
		options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}},
		}}
	default:
		options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_AutoConfig{AutoConfig: &httpv3.HttpProtocolOptions_AutoHttpConfig{
			HttpProtocolOptions:  &corev3.Http1ProtocolOptions{},
			Http2ProtocolOptions: h2,
		}}
	}
	return pack(options)
}

// keepalive finds connections whose peer is gone without a word: a PING each
// interval, and the end where nothing at all comes for a third of it. An
// interval of 0 is no PING.
func keepalive(interval time.Duration) *corev3.KeepaliveSettings {
	if interval == 0 {
		return nil
	}
	return &corev3.KeepaliveSettings{
		Interval: durationpb.New(interval),
		Timeout:  durationpb.New(min(interval/3, maxPingTimeout)),
		// Connections that were made together do not stay in step.
		IntervalJitter: &typev3.Percent{Value: 15},
	}
}

// tcpKeepalive finds dead connections that have no PING of their own, those of
// HTTP/1.1, within a minute: the kernel asks after 30 s of silence, and gives up
// when three questions go unanswered.
func tcpKeepalive() *clusterv3.UpstreamConnectionOptions {
	return &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{
		KeepaliveTime:     wrapperspb.UInt32(30),
		KeepaliveInterval: wrapperspb.UInt32(10),
		KeepaliveProbes:   wrapperspb.UInt32(3),
	}}
}

// channelFilters are the filters of the channel's form of egress, the verdict
// and the codec.
func channelFilters(ch *keywayv1.Channel, p *keywayv1.Provider, base *url.URL) ([]*hcmv3.HttpFilter, error) {
	codec, err := pack(&codecv3.UpstreamCodec{})
	if err != nil {
		return nil, err
	}
	last := httpFilter("envoy.filters.http.upstream_codec", codec)
	if domain.Egress(ch.GetEgress()) == domain.EgressNative {
		filters, err := nativeFilters(ch, p, base)
		return append(filters, last), err
	}
	egress, err := pack(egressFilter(ch.GetName(), p.GetBaseUrl()))
	if err != nil {
		return nil, err
	}
	verdict, err := luaFilter(verdictScript(ch.GetName()))
	if err != nil {
		return nil, err
	}
	return []*hcmv3.HttpFilter{httpFilter("keyway.egress", egress), httpFilter("keyway.verdict", verdict), last}, nil
}

func luaFilter(source string) (*anypb.Any, error) {
	return pack(&luav3.Lua{DefaultSourceCode: &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineString{InlineString: source},
	}})
}

func explicitHTTP2(h2 *corev3.Http2ProtocolOptions) *httpv3.HttpProtocolOptions_ExplicitHttpConfig_ {
	return &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: h2},
	}}
}

func httpFilter(name string, config *anypb.Any) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}}
}

// egressFilter sets credential, path, host and body of one attempt. It takes
// no part in the response.
func egressFilter(channel, baseURL string) *extprocv3.ExternalProcessor {
	return &extprocv3.ExternalProcessor{
		GrpcService: grpcService(ClusterEgress,
			header(HeaderSide, SideEgress),
			header(HeaderChannel, channel),
			// Values are formats, in which a percent sign is written twice.
			header(HeaderUpstream, strings.ReplaceAll(baseURL, "%", "%%")),
			header(HeaderDecision, dynamicMetadata(MetadataNamespace, MetadataDecision)),
			header(HeaderAttempt, "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"),
			header(HeaderAttempts, dynamicMetadata(AttemptsNamespace, MetadataAttempts)),
		),
		MessageTimeout:           durationpb.New(filterTimeout),
		StatusOnError:            &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
		AllowModeOverride:        true,
		AllowContentLengthHeader: true,
		// Envoy's own x-envoy-* headers are among what no provider may see.
		MutationRules: &mutationv3.HeaderMutationRules{AllowAllRouting: wrapperspb.Bool(true), AllowEnvoy: wrapperspb.Bool(true)},
		ProcessingMode: &extprocv3.ProcessingMode{
			RequestHeaderMode:   extprocv3.ProcessingMode_SEND,
			RequestBodyMode:     extprocv3.ProcessingMode_NONE,
			RequestTrailerMode:  extprocv3.ProcessingMode_SKIP,
			ResponseHeaderMode:  extprocv3.ProcessingMode_SKIP,
			ResponseBodyMode:    extprocv3.ProcessingMode_NONE,
			ResponseTrailerMode: extprocv3.ProcessingMode_SKIP,
		},
	}
}

func dynamicMetadata(namespace, key string) string {
	return "%DYNAMIC_METADATA(" + namespace + ":" + key + ")%"
}

func header(key, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: key, Value: value}
}

func grpcService(cluster string, metadata ...*corev3.HeaderValue) *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
			ClusterName: cluster,
		}},
		InitialMetadata: metadata,
	}
}
