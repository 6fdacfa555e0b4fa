package envoy

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// accessLogs tell extproc of the ends that nobody watched, and of requests that
// still run, with the metadata of the request. What authz refused holds nothing.
// The end of an answer that the watch left unread comes at once: its client's next
// request may need the room in the limits that it frees.
func accessLogs() ([]*accesslogv3.AccessLog, error) {
	unread := byMetadata(WatchNamespace, MetadataUnread, anyValue(), false)
	// The filter has no negation, but what the watch notes is never null.
	read := byMetadata(WatchNamespace, MetadataUnread, &matcherv3.ValueMatcher{
		MatchPattern: &matcherv3.ValueMatcher_NullMatch_{NullMatch: &matcherv3.ValueMatcher_NullMatch{}},
	}, true)
	unseen := byMetadata(WatchNamespace, MetadataSeen, &matcherv3.ValueMatcher{
		MatchPattern: &matcherv3.ValueMatcher_BoolMatch{BoolMatch: false},
	}, true)
	admitted := byMetadata(MetadataNamespace, MetadataDecision, anyValue(), false)
	buffered, err := accessLog(flushBytes, and(admitted, unseen, or(read, byType(accesslogdatav3.AccessLogType_DownstreamPeriodic))))
	if err != nil {
		return nil, err
	}
	prompt, err := accessLog(0, and(unread, byType(accesslogdatav3.AccessLogType_DownstreamEnd)))
	if err != nil {
		return nil, err
	}
	return []*accesslogv3.AccessLog{buffered, prompt}, nil
}

// accessLog sends the entries that pass the filter, in batches of some bytes; 0 is
// each by itself.
func accessLog(bytes uint32, filter *accesslogv3.AccessLogFilter) (*accesslogv3.AccessLog, error) {
	config, err := pack(&grpclogv3.HttpGrpcAccessLogConfig{CommonConfig: &grpclogv3.CommonGrpcAccessLogConfig{
		LogName:             LogName,
		GrpcService:         grpcService(ClusterALS),
		TransportApiVersion: corev3.ApiVersion_V3,
		BufferFlushInterval: &durationpb.Duration{Nanos: flushMillis * 1_000_000},
		BufferSizeBytes:     wrapperspb.UInt32(bytes),
	}})
	if err != nil {
		return nil, err
	}
	return &accesslogv3.AccessLog{
		Name:       "envoy.access_loggers.http_grpc",
		Filter:     filter,
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: config},
	}, nil
}

// byMetadata lets an entry pass whose metadata matches; missing says whether one
// without the metadata passes.
func byMetadata(namespace, key string, value *matcherv3.ValueMatcher, missing bool) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_MetadataFilter{MetadataFilter: &accesslogv3.MetadataFilter{
		Matcher: &matcherv3.MetadataMatcher{
			Filter: namespace,
			Path:   []*matcherv3.MetadataMatcher_PathSegment{{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}}},
			Value:  value,
		},
		MatchIfKeyNotFound: wrapperspb.Bool(missing),
	}}}
}

func byType(t accesslogdatav3.AccessLogType) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{LogTypeFilter: &accesslogv3.LogTypeFilter{
		Types: []accesslogdatav3.AccessLogType{t},
	}}}
}

func anyValue() *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
}
