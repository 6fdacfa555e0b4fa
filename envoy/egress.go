package envoy

import (
	"fmt"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	headermetav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// egressMode is that of the socket: only Envoy's own user may call providers.
	egressMode = 0o700
	// egressStreams is how many requests one connection takes, so that a caller
	// opens several: one connection is served by one of Envoy's threads.
	egressStreams = 100
	// egressHeaderKiB has room for what the ingress lets in and the decision.
	egressHeaderKiB = maxHeaderKiB + 2*(MaxEgressDecision+1)>>10
	// egressBody is the largest body that a configuration allows.
	egressBody = 64 << 20
)

// MaxEgressDecision bounds each form of the decision in a call to the egress
// listener, in bytes: a longer header is not taken over into metadata.
const MaxEgressDecision = 8<<10 - 1

// egressListener is where the relay and the workers call channels, so that no
// other process needs a secret key. It takes the channel's cluster and a decision
// in headers, and hands the decision on in the same place as ext_authz does.
func egressListener(address string) (*listenerv3.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return nil, fmt.Errorf("%q is not unix:/path; nobody but Envoy's own user may reach it", address)
	}
	hcm, err := egressHCM()
	if err != nil {
		return nil, err
	}
	packed, err := pack(hcm)
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{
		Name: ListenerEgress,
		Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{
			Path: path, Mode: egressMode,
		}}},
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(connBuffer),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed},
		}}}},
	}, nil
}

func egressHCM() (*hcmv3.HttpConnectionManager, error) {
	decision, err := pack(&headermetav3.Config{RequestRules: []*headermetav3.Config_Rule{
		{
			Header: HeaderDecision,
			OnHeaderPresent: &headermetav3.Config_KeyValuePair{
				MetadataNamespace: MetadataNamespace, Key: MetadataDecision, Type: headermetav3.Config_STRING,
			},
			Remove: true,
		},
		{
			Header: HeaderNative, // of several lines, which no header has
			OnHeaderPresent: &headermetav3.Config_KeyValuePair{
				MetadataNamespace: MetadataNamespace, Key: MetadataNative, Type: headermetav3.Config_STRING,
				Encode: headermetav3.Config_BASE64,
			},
			Remove: true,
		},
	}})
	if err != nil {
		return nil, err
	}
	router, err := pack(&routerv3.Router{SuppressEnvoyHeaders: true})
	if err != nil {
		return nil, err
	}
	return &hcmv3.HttpConnectionManager{
		StatPrefix:     ListenerEgress,
		CodecType:      hcmv3.HttpConnectionManager_AUTO,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: egressRoute()},
		// As at the ingress; the request id is the one that the ingress gave.
		UseRemoteAddress:          wrapperspb.Bool(true),
		InternalAddressConfig:     noInsiders(),
		PreserveExternalRequestId: true,
		StreamIdleTimeout:         durationpb.New(0),
		RequestHeadersTimeout:     &durationpb.Duration{Seconds: headersTimeoutSeconds},
		MaxRequestHeadersKb:       wrapperspb.UInt32(egressHeaderKiB),
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{
			HeadersWithUnderscoresAction: corev3.HttpProtocolOptions_DROP_HEADER,
		},
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
			MaxConcurrentStreams:        wrapperspb.UInt32(egressStreams),
			InitialStreamWindowSize:     wrapperspb.UInt32(streamWindow),
			InitialConnectionWindowSize: wrapperspb.UInt32(connWindow),
		},
		HttpFilters: []*hcmv3.HttpFilter{
			httpFilter("keyway.decision", decision),
			httpFilter("envoy.filters.http.router", router),
		},
		// A caller must tell Envoy's own answers from a provider's.
		LocalReplyConfig: &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{{
			Filter:       compare(accesslogv3.ComparisonFilter_GE, 400),
			HeadersToAdd: []*corev3.HeaderValueOption{{Header: header(HeaderReply, "%RESPONSE_CODE_DETAILS%")}},
		}}},
	}, nil
}

// egressRoute leads to channels only, and only with a decision. The mark of the
// verdict script stays: it is the caller that goes on to the next channel.
func egressRoute() *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name: ListenerEgress,
		VirtualHosts: []*routev3.VirtualHost{{
			Name:                       "keyway",
			Domains:                    []string{"*"},
			IncludeRequestAttemptCount: true,
			Routes: []*routev3.Route{
				{
					Match: &routev3.RouteMatch{
						PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"},
						Headers: []*routev3.HeaderMatcher{
							{Name: HeaderChannel, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
								MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: channelClusterPrefix},
							}}},
							present(HeaderDecision),
						},
					},
					RequestHeadersToRemove: []string{HeaderChannel},
					RequestBodyBufferLimit: wrapperspb.UInt64(egressBody + patchRoom),
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_ClusterHeader{ClusterHeader: HeaderChannel},
						Timeout:          durationpb.New(0),
					}},
				},
				{
					Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
					Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
						Status: 400,
						Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{
							InlineString: "This listener calls channels; it needs " + HeaderChannel + " and " + HeaderDecision + ".",
						}},
					}},
				},
			},
		}},
	}
}

// present matches a header with any value.
func present(name string) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
}

// noInsiders makes everyone an outsider, so that nobody's x-envoy-* headers are obeyed.
func noInsiders() *hcmv3.HttpConnectionManager_InternalAddressConfig {
	return &hcmv3.HttpConnectionManager_InternalAddressConfig{CidrRanges: []*corev3.CidrRange{
		{AddressPrefix: "192.0.2.255", PrefixLen: wrapperspb.UInt32(32)},
	}}
}
