package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	priorityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/router/cluster_specifiers/priority_group/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	keywayv1 "keyway/api/keyway/v1"
)

const (
	// defaultRetries stands where authz set no bound; authz always does.
	defaultRetries = 3
	// retryBase and retryMax keep the pause between two channels short: the
	// next one is another account, not the one that is overloaded.
	retryBaseMillis = 5
	retryMaxMillis  = 50
)

// patchRoom is how many bytes a channel's patches may add to the largest body
// where Envoy itself applies them: it holds the result to the same limit.
const patchRoom = 64 << 10

// ingressRoute sends attempt n of a request to the nth cluster of its ranked list.
func ingressRoute(cfg *keywayv1.Config) (*routev3.RouteConfiguration, error) {
	specifier, err := pack(&priorityv3.PriorityGroupClusterSpecifier{
		// The configured group is where an unreadable decision ends.
		PriorityGroups: []*priorityv3.PriorityGroup{{
			Name:     "sink",
			Clusters: []*priorityv3.ClusterWeight{{ClusterName: ClusterSink, Weight: wrapperspb.UInt32(1)}},
		}},
		OverrideMetadataNamespace: MetadataNamespace,
	})
	if err != nil {
		return nil, err
	}
	watch, err := pack(&routev3.FilterConfig{Config: &anypb.Any{}})
	if err != nil {
		return nil, err
	}
	relay, err := relayRoute(cfg)
	if err != nil {
		return nil, err
	}
	return &routev3.RouteConfiguration{
		Name:                 ListenerIngress,
		TypedPerFilterConfig: map[string]*anypb.Any{filterWatch: watch},
		VirtualHosts: []*routev3.VirtualHost{{
			Name:                       "keyway",
			Domains:                    []string{"*"},
			IncludeRequestAttemptCount: true, // native egress asks which candidate it is
			Routes: []*routev3.Route{relay, {
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				// The retry check still sees it; the client never does.
				ResponseHeadersToRemove: []string{HeaderRetry},
				RequestBodyBufferLimit:  wrapperspb.UInt64(cfg.GetLimits().GetMaxRequestBytes() + patchRoom),
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_InlineClusterSpecifierPlugin{InlineClusterSpecifierPlugin: &routev3.ClusterSpecifierPlugin{
						Extension: &corev3.TypedExtensionConfig{
							Name:        "envoy.router.cluster_specifier_plugin.priority_group",
							TypedConfig: specifier,
						},
					}},
					// An answer may take as long as it takes; the wait for its
					// first byte is bounded per attempt by authz.
					Timeout: durationpb.New(0),
					RetryPolicy: &routev3.RetryPolicy{
						RetryOn: "connect-failure,refused-stream,reset,retriable-headers",
						RetriableHeaders: []*routev3.HeaderMatcher{{
							Name:                 HeaderRetry,
							HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
						}},
						NumRetries:            wrapperspb.UInt32(defaultRetries),
						RefreshClusterOnRetry: true,
						RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
							BaseInterval: &durationpb.Duration{Nanos: retryBaseMillis * 1_000_000},
							MaxInterval:  &durationpb.Duration{Nanos: retryMaxMillis * 1_000_000},
						},
					},
				}},
			}},
		}},
	}, nil
}

// relayRoute takes what authz has marked for the relay, which watches, retries
// and settles by itself.
func relayRoute(cfg *keywayv1.Config) (*routev3.Route, error) {
	// By the time that authz says so the filter is part of the chain: only its
	// own switch is looked at again.
	unwatched, err := pack(&extprocv3.ExtProcPerRoute{Override: &extprocv3.ExtProcPerRoute_Disabled{Disabled: true}})
	if err != nil {
		return nil, err
	}
	return &routev3.Route{
		Match: &routev3.RouteMatch{
			PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"},
			Headers:       []*routev3.HeaderMatcher{present(HeaderRelay)},
		},
		TypedPerFilterConfig: map[string]*anypb.Any{filterWatch: unwatched},
		RequestHeadersToAdd: []*corev3.HeaderValueOption{{
			Header:       header(HeaderDecision, dynamicMetadata(MetadataNamespace, MetadataDecision)),
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
		RequestHeadersToRemove: []string{HeaderRelay},
		RequestBodyBufferLimit: wrapperspb.UInt64(cfg.GetLimits().GetMaxRequestBytes()),
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: ClusterRelay},
			Timeout:          durationpb.New(0),
		}},
	}, nil
}

// exactly matches one string.
func exactly(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}}
}
