package envoy

// Names shared between the Envoy configuration and the Go services. A change
// here is a change of the contract and needs all parts of a region at once.
const (
	// MetadataNamespace is where ext_authz puts what authz answers.
	MetadataNamespace = "envoy.filters.http.ext_authz"
	// MetadataDecision holds the encoded Decision.
	MetadataDecision = "decision"
	// MetadataNative holds what native egress needs of the decision (Native).
	MetadataNative = "native"
	// MetadataDialect holds the client's dialect, for the error mappers.
	MetadataDialect = "api"
	// MetadataGroups holds the ranked clusters for the priority_group specifier.
	MetadataGroups = "priority_groups"

	// AttemptsNamespace and MetadataAttempts hold what earlier attempts
	// answered, as the verdict script notes it: the channel, "=", the status, for
	// some a "," and details in base64, and ";".
	AttemptsNamespace = "keyway"
	MetadataAttempts  = "attempts"

	// WatchNamespace is where the watch notes what the access log has to tell.
	// MetadataSeen is true once the watch has the whole answer: then it is nothing.
	// MetadataUnread says that the watch leaves a good answer unread, so that the log
	// alone tells its end; it is the provider's request id, "" for none.
	WatchNamespace = "keyway.watch"
	MetadataSeen   = "seen"
	MetadataUnread = "unread"

	// HeaderDecision, HeaderChannel, HeaderAttempt, HeaderAttempts and
	// HeaderSide travel as initial metadata of a gRPC stream to extproc.
	HeaderDecision = "x-keyway-decision"
	HeaderChannel  = "x-keyway-channel"
	// HeaderUpstream is the base URL that the channel's cluster leads to, so
	// that a credential never goes to a provider that it is not for.
	HeaderUpstream = "x-keyway-upstream"
	HeaderAttempt  = "x-keyway-attempt"
	HeaderAttempts = "x-keyway-attempts"
	HeaderSide     = "x-keyway-side"
	// SideEgress and SideWatch are the values of HeaderSide.
	SideEgress = "egress"
	SideWatch  = "watch"

	// HeaderRetry marks an upstream answer that the next channel should
	// replace; its value is the class. It never reaches a client.
	HeaderRetry = "x-keyway-retry"
	// HeaderRelay sends a request to the relay; authz alone sets it.
	HeaderRelay = "x-keyway-relay"
	// HeaderNative brings MetadataNative to the egress listener, in base64.
	HeaderNative = "x-keyway-native"
	// HeaderReply marks an answer of the egress listener that is Envoy's own; its
	// value is Envoy's word for the reason.
	HeaderReply = "x-keyway-reply"

	// HeaderMaxRetries and HeaderPerTryTimeout are how authz bounds the
	// attempts of one request.
	HeaderMaxRetries    = "x-envoy-max-retries"
	HeaderPerTryTimeout = "x-envoy-upstream-rq-per-try-timeout-ms"

	// AttributeCluster and the others are the attributes the watch side asks for.
	AttributeCluster      = "xds.cluster_name"
	AttributeAttempts     = "upstream.request_attempt_count"
	AttributeResponseCode = "response.code_details"

	// ListenerIngress is the name of the listener, its route and its stats prefix.
	ListenerIngress = "keyway_ingress"
	// ListenerEgress is where the relay and the workers call channels.
	ListenerEgress = "keyway_egress"

	// ClusterAuthz and the others are the clusters of the bootstrap.
	ClusterAuthz  = "keyway_authz"
	ClusterWatch  = "keyway_extproc_watch"
	ClusterEgress = "keyway_extproc_egress"
	ClusterALS    = "keyway_als"
	ClusterXDS    = "keyway_xds"
	ClusterRelay  = "keyway_relay"
	// ClusterSink has no endpoint: a request whose decision is unreadable ends there with a 503.
	ClusterSink = "keyway_sink"

	// LogName is the access log's name.
	LogName = "keyway"

	// RegionConfigType is the type URL of the services' own resource.
	RegionConfigType = "type.googleapis.com/keyway.v1.RegionConfig"
)

// StatusAuthzError is the status that ext_authz gives when authz does not
// answer. Nothing else uses it, so that the error mapper can tell "authz is
// away" from a refusal that authz wrote; the client sees 503.
const StatusAuthzError = 511

// channelClusterPrefix keeps channel names apart from the clusters of the bootstrap.
const channelClusterPrefix = "ch_"

// ClusterOf is the cluster name of a channel.
func ClusterOf(channel string) string { return channelClusterPrefix + channel }

// ChannelOf is the channel whose cluster has this name; ok is false for any other cluster.
func ChannelOf(cluster string) (channel string, ok bool) {
	if len(cluster) <= len(channelClusterPrefix) || cluster[:len(channelClusterPrefix)] != channelClusterPrefix {
		return "", false
	}
	return cluster[len(channelClusterPrefix):], true
}
