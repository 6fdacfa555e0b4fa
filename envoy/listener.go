package envoy

import (
	"fmt"

	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	keywayv1 "keyway/api/keyway/v1"
)

const (
	// maxHeaderKiB bounds a request's headers; a larger one gets 431.
	maxHeaderKiB = 60
	// headersTimeout and requestTimeout bound clients that stall while
	// sending: the first before the headers are whole, the second before the
	// body is, in seconds.
	headersTimeoutSeconds = 10
	requestTimeoutSeconds = 120
	// maxClientStreams is how many requests one HTTP/2 client connection may have open.
	maxClientStreams = 2000
	// flushMillis is how long the access log may wait for company; settlement
	// of requests that nobody watched hangs on it.
	flushMillis = 50
	// flushBytes is what a worker keeps until then; beyond it Envoy drops entries,
	// of some 3 KB each, while those before them are being sent. Hundreds of
	// clients that leave in one moment must not be taken for broken providers.
	flushBytes = 1 << 20
	// runningPerLease is how often within a lease the log tells of a request
	// that still runs.
	runningPerLease = 3
)

// ingressListener is where clients come in: ext_authz, then the watch, then the router.
func ingressListener(cfg *keywayv1.Config) (*listenerv3.Listener, error) {
	hcm, err := ingressHCM(cfg)
	if err != nil {
		return nil, err
	}
	packed, err := pack(hcm)
	if err != nil {
		return nil, err
	}
	chain := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{
		Name:       "envoy.filters.network.http_connection_manager",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed},
	}}}
	if t := cfg.GetListener().GetTls(); t != nil {
		chain.TransportSocket, err = downstreamTLS(t)
		if err != nil {
			return nil, err
		}
	}
	return &listenerv3.Listener{
		Name: ListenerIngress,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address:       cfg.GetListener().GetAddress(),
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: cfg.GetListener().GetPort()},
		}}},
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(connBuffer),
		SocketOptions:                 []*corev3.SocketOption{unsentLimit()},
		FilterChains:                  []*listenerv3.FilterChain{chain},
	}, nil
}

// unsentLimit bounds what the kernel takes for a client beyond what may be under
// way to it: else a reader that stops is given megabytes before its provider is
// held up. The numbers are those of Linux, IPPROTO_TCP and TCP_NOTSENT_LOWAT; a
// connection inherits the option from its listener.
func unsentLimit() *corev3.SocketOption {
	return &corev3.SocketOption{
		Description: "TCP_NOTSENT_LOWAT",
		Level:       6,
		Name:        25,
		Value:       &corev3.SocketOption_IntValue{IntValue: maxUnsent},
		State:       corev3.SocketOption_STATE_LISTENING,
	}
}

func downstreamTLS(t *keywayv1.TLS) (*corev3.TransportSocket, error) {
	config, err := pack(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		AlpnProtocols: []string{"h2", "http/1.1"},
		TlsCertificates: []*tlsv3.TlsCertificate{{
			CertificateChain: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: t.GetCertFile()}},
			PrivateKey:       &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: t.GetKeyFile()}},
		}},
	}})
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config},
	}, nil
}

func ingressHCM(cfg *keywayv1.Config) (*hcmv3.HttpConnectionManager, error) {
	filters, err := ingressFilters(cfg)
	if err != nil {
		return nil, err
	}
	early, err := dropClientHeaders()
	if err != nil {
		return nil, err
	}
	logs, err := accessLogs()
	if err != nil {
		return nil, err
	}
	replies, err := localReplies()
	if err != nil {
		return nil, err
	}
	return &hcmv3.HttpConnectionManager{
		StatPrefix: ListenerIngress,
		CodecType:  hcmv3.HttpConnectionManager_AUTO,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			RouteConfigName: ListenerIngress,
			ConfigSource:    adsSource(),
		}},
		// Every client is an outsider, a local one too: nobody's x-envoy-*
		// headers are obeyed, and the request id is always our own.
		UseRemoteAddress:             wrapperspb.Bool(true),
		InternalAddressConfig:        noInsiders(),
		GenerateRequestId:            wrapperspb.Bool(true),
		AlwaysSetRequestIdInResponse: true,
		// A thinking model may be silent for longer than any idle limit here.
		StreamIdleTimeout:     durationpb.New(0),
		RequestHeadersTimeout: &durationpb.Duration{Seconds: headersTimeoutSeconds},
		RequestTimeout:        &durationpb.Duration{Seconds: requestTimeoutSeconds},
		MaxRequestHeadersKb:   wrapperspb.UInt32(maxHeaderKiB),
		ServerName:            "keyway",
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{
			// Underscores would let x_api_key pass for x-api-key behind us.
			HeadersWithUnderscoresAction: corev3.HttpProtocolOptions_DROP_HEADER,
		},
		// Some proxies in front, nginx as it comes, still speak HTTP/1.0.
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{AcceptHttp_10: true, DefaultHostForHttp_10: "keyway"},
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
			MaxConcurrentStreams:        wrapperspb.UInt32(maxClientStreams),
			InitialStreamWindowSize:     wrapperspb.UInt32(streamWindow),
			InitialConnectionWindowSize: wrapperspb.UInt32(connWindow),
		},
		NormalizePath:                 wrapperspb.Bool(true),
		MergeSlashes:                  true,
		HttpFilters:                   filters,
		EarlyHeaderMutationExtensions: []*corev3.TypedExtensionConfig{early},
		AccessLog:                     logs,
		// An attempt that no service was asked for, and an answer that none reads, are
		// seen to run by this alone.
		AccessLogOptions: &hcmv3.HttpConnectionManager_HcmAccessLogOptions{
			AccessLogFlushInterval: durationpb.New(cfg.GetLimits().GetLease().AsDuration() / runningPerLease),
		},
		LocalReplyConfig: replies,
	}, nil
}

func adsSource() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

// filterWatch is the watch's name in the filter chain.
const filterWatch = "keyway.watch"

func ingressFilters(cfg *keywayv1.Config) ([]*hcmv3.HttpFilter, error) {
	authz, err := pack(&extauthzv3.ExtAuthz{
		TransportApiVersion: corev3.ApiVersion_V3,
		Services: &extauthzv3.ExtAuthz_GrpcService{GrpcService: func() *corev3.GrpcService {
			g := grpcService(ClusterAuthz)
			g.Timeout = durationpb.New(filterTimeout)
			return g
		}()},
		// The credential carriers that authz removes are the header change
		// that makes this act, and the route reads authz's metadata.
		ClearRouteCache: true,
		StatusOnError:   &typev3.HttpStatus{Code: typev3.StatusCode(StatusAuthzError)},
		WithRequestBody: &extauthzv3.BufferSettings{
			// One byte more than is allowed: Envoy cuts a body whose last
			// piece crosses its limit, and authz must be able to tell.
			MaxRequestBytes: uint32(cfg.GetLimits().GetMaxRequestBytes()) + 1,
			PackAsBytes:     true,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("ext_authz: %w", err)
	}
	watch, err := pack(watchFilter())
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	router, err := pack(&routerv3.Router{SuppressEnvoyHeaders: true})
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	// The watch is enabled by the route. A request that Envoy refuses before it
	// has one (431, 400, 408) is answered and its connection closed at once: an
	// asynchronous filter would lose that answer.
	watchByRoute := httpFilter(filterWatch, watch)
	watchByRoute.Disabled = true
	return []*hcmv3.HttpFilter{
		httpFilter("envoy.filters.http.ext_authz", authz),
		watchByRoute,
		httpFilter("envoy.filters.http.router", router),
	}, nil
}

// watchFilter sees responses only. Its base mode is NONE: for an answer that
// is to be watched the service overrides it, everything else never crosses Go.
func watchFilter() *extprocv3.ExternalProcessor {
	return &extprocv3.ExternalProcessor{
		GrpcService: grpcService(ClusterWatch,
			header(HeaderSide, SideWatch),
			header(HeaderDecision, dynamicMetadata(MetadataNamespace, MetadataDecision)),
			header(HeaderAttempts, dynamicMetadata(AttemptsNamespace, MetadataAttempts)),
		),
		MessageTimeout:           durationpb.New(filterTimeout),
		StatusOnError:            &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
		AllowModeOverride:        true,
		AllowContentLengthHeader: true,
		// A provider's own x-envoy-* headers are among what no client may see.
		MutationRules: &mutationrulesv3.HeaderMutationRules{AllowEnvoy: wrapperspb.Bool(true)},
		ProcessingMode: &extprocv3.ProcessingMode{
			RequestHeaderMode:   extprocv3.ProcessingMode_SKIP,
			RequestBodyMode:     extprocv3.ProcessingMode_NONE,
			RequestTrailerMode:  extprocv3.ProcessingMode_SKIP,
			ResponseHeaderMode:  extprocv3.ProcessingMode_SEND,
			ResponseBodyMode:    extprocv3.ProcessingMode_NONE,
			ResponseTrailerMode: extprocv3.ProcessingMode_SKIP,
		},
		MetadataOptions: &extprocv3.MetadataOptions{
			ReceivingNamespaces: &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{WatchNamespace}},
		},
		ResponseAttributes: []string{AttributeCluster, AttributeAttempts, AttributeResponseCode},
	}
}

// dropClientHeaders removes what only Keyway itself may say, before routing
// reads it: a forged one would choose the route.
func dropClientHeaders() (*corev3.TypedExtensionConfig, error) {
	var mutations []*mutationrulesv3.HeaderMutation
	for _, name := range []string{HeaderRelay, HeaderDecision, HeaderChannel, HeaderUpstream, HeaderAttempt, HeaderAttempts, HeaderSide, HeaderRetry, HeaderReply, HeaderNative} {
		mutations = append(mutations, &mutationrulesv3.HeaderMutation{
			Action: &mutationrulesv3.HeaderMutation_Remove{Remove: name},
		})
	}
	config, err := pack(&earlyv3.HeaderMutation{Mutations: mutations})
	if err != nil {
		return nil, err
	}
	return &corev3.TypedExtensionConfig{Name: "envoy.http.early_header_mutation.header_mutation", TypedConfig: config}, nil
}
