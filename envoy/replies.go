package envoy

import (
	"cmp"
	"fmt"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"keyway/domain"
)

// reply is what a client gets for one kind of answer that Envoy itself makes.
// Envoy's own text names clusters and addresses, so it is never passed on.
type reply struct {
	// details, when given, begin the response code details.
	details string
	// from and to bound the status, inclusive.
	from, to uint32
	// flags, when given, must hold one of the response's flags.
	flags []string
	// status replaces the status when it is not 0, anthropicStatus that of the
	// Anthropic dialect.
	status, anthropicStatus uint32
	message                 string
	openAIType, openAICode  string
	anthropicType           string
}

// replies are tried in this order.
var replies = []reply{
	{
		from: StatusAuthzError, to: StatusAuthzError, status: 503,
		message:    "The gateway cannot admit requests at the moment. Try again in a second.",
		openAIType: "service_unavailable_error", openAICode: string(domain.CodeUnavailable), anthropicType: "overloaded_error",
	},
	{
		// The SK of a native channel is gone: our fault, not the client's key's.
		details: DetailsNoCredential, from: 401, to: 401, status: 503,
		message:    "The gateway has no credential for the provider of this model at the moment. Try again in a second.",
		openAIType: "service_unavailable_error", openAICode: string(domain.CodeUnavailable), anthropicType: "overloaded_error",
	},
	{
		from: 413, to: 413,
		message:    "The request body is larger than this gateway accepts. Send a smaller one.",
		openAIType: "invalid_request_error", openAICode: string(domain.CodeTooLarge), anthropicType: "request_too_large",
	},
	{
		from: 431, to: 431,
		message:    "The request headers are larger than this gateway accepts. Send fewer or shorter ones.",
		openAIType: "invalid_request_error", openAICode: "request_headers_too_large", anthropicType: "invalid_request_error",
	},
	{
		from: 408, to: 408,
		message:    "The request did not arrive in time. Send it again.",
		openAIType: "invalid_request_error", openAICode: "request_timeout", anthropicType: "timeout_error",
	},
	{
		from: 504, to: 504,
		message:    "No provider began to answer in time. Try again.",
		openAIType: "server_error", openAICode: string(domain.CodeUpstreamTimeout), anthropicType: "timeout_error",
	},
	{
		// Connections refused, reset or broken, after the last channel: the
		// providers' fault, not ours (PROTOCOLS §7.3).
		from: 503, to: 503, flags: []string{"UF", "UC", "UR", "UPE", "URX"}, status: 502, anthropicStatus: 500,
		message:    "No provider could be reached for this request. Try again.",
		openAIType: "server_error", openAICode: string(domain.CodeUpstream), anthropicType: "api_error",
	},
	{
		from: 503, to: 503,
		message:    "No provider could be reached for this request. Try again.",
		openAIType: "service_unavailable_error", openAICode: string(domain.CodeUnavailable), anthropicType: "overloaded_error",
	},
	{
		from: 500, to: 599,
		message:    "The gateway could not complete this request. Try again; if it persists, give your operator the request id.",
		openAIType: "server_error", openAICode: string(domain.CodeUpstream), anthropicType: "api_error",
	},
	{
		from: 400, to: 499,
		message:    "The request is not valid HTTP for this gateway.",
		openAIType: "invalid_request_error", openAICode: string(domain.CodeInvalidRequest), anthropicType: "invalid_request_error",
	},
}

// DetailsPrefix begins the response code details of every answer that extproc
// gives in place of an upstream.
const DetailsPrefix = "keyway_"

// localReplies gives every answer of Envoy's own the client's error shape. What
// authz or extproc wrote passes as it is.
func localReplies() (*hcmv3.LocalReplyConfig, error) {
	ours, err := detailsBeginWith(DetailsPrefix)
	if err != nil {
		return nil, err
	}
	written := or(and(flag("UAEX"), compare(accesslogv3.ComparisonFilter_LE, StatusAuthzError-1)), ours)
	config := &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{{
		Filter: written,
		BodyFormatOverride: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: "%LOCAL_REPLY_BODY%"},
			}},
			ContentType: "application/json",
		},
	}}}
	for _, r := range replies {
		for _, dialect := range []domain.Dialect{domain.DialectAnthropic, domain.DialectOpenAI} {
			mapper, err := r.mapper(dialect)
			if err != nil {
				return nil, err
			}
			config.Mappers = append(config.Mappers, mapper)
		}
	}
	return config, nil
}

// mapper makes the mapper of r for one dialect. The Anthropic ones stand
// first and ask for it; the OpenAI ones take what is left.
func (r reply) mapper(dialect domain.Dialect) (*hcmv3.ResponseMapper, error) {
	m := &hcmv3.ResponseMapper{Filter: statusIn(r.from, r.to)}
	if len(r.flags) > 0 {
		m.Filter = and(m.Filter, flag(r.flags...))
	}
	if r.details != "" {
		begins, err := detailsBeginWith(r.details)
		if err != nil {
			return nil, err
		}
		m.Filter = and(m.Filter, begins)
	}
	status := r.status
	var body map[string]any
	if dialect == domain.DialectAnthropic {
		status = cmp.Or(r.anthropicStatus, r.status)
		m.Filter = and(isAnthropic(), m.Filter)
		body = map[string]any{
			"type":       "error",
			"error":      map[string]any{"type": r.anthropicType, "message": r.message},
			"request_id": "%REQ(x-request-id)%",
		}
	} else {
		body = map[string]any{"error": map[string]any{
			"message": r.message, "type": r.openAIType, "param": nil, "code": r.openAICode,
		}}
	}
	format, err := structpb.NewStruct(body)
	if err != nil {
		return nil, err
	}
	m.BodyFormatOverride = &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: format},
	}
	if status != 0 {
		m.StatusCode = wrapperspb.UInt32(status)
	}
	if cmp.Or(status, r.to) == 503 {
		m.HeadersToAdd = append(m.HeadersToAdd, &corev3.HeaderValueOption{Header: header("retry-after", "1")})
	}
	if dialect == domain.DialectAnthropic {
		// Anthropic's SDKs read the id here and nowhere else.
		m.HeadersToAdd = append(m.HeadersToAdd, &corev3.HeaderValueOption{
			Header: header("request-id", "%REQ(x-request-id)%"), AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return m, nil
}

// isAnthropic asks the path, or authz's word where the path has been rewritten
// by an attempt.
func isAnthropic() *accesslogv3.AccessLogFilter {
	return or(
		&accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_HeaderFilter{HeaderFilter: &accesslogv3.HeaderFilter{Header: &routev3.HeaderMatcher{
			Name: ":path",
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: domain.APIMessages.Path()},
			}},
		}}}},
		byMetadata(MetadataNamespace, MetadataDialect,
			&matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: exactly(string(domain.DialectAnthropic))}}, false),
	)
}

func statusIn(from, to uint32) *accesslogv3.AccessLogFilter {
	if from == to {
		return compare(accesslogv3.ComparisonFilter_EQ, from)
	}
	return and(compare(accesslogv3.ComparisonFilter_GE, from), compare(accesslogv3.ComparisonFilter_LE, to))
}

func compare(op accesslogv3.ComparisonFilter_Op, value uint32) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_StatusCodeFilter{StatusCodeFilter: &accesslogv3.StatusCodeFilter{
		Comparison: &accesslogv3.ComparisonFilter{
			Op: op,
			// The runtime key is mandatory; nobody sets this one.
			Value: &corev3.RuntimeUInt32{DefaultValue: value, RuntimeKey: "keyway.unused"},
		},
	}}}
}

func flag(names ...string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: names},
	}}
}

// detailsBeginWith asks the response code details.
func detailsBeginWith(prefix string) (*accesslogv3.AccessLogFilter, error) {
	expression, err := pack(&celv3.ExpressionFilter{Expression: fmt.Sprintf("response.code_details.startsWith(%q)", prefix)})
	if err != nil {
		return nil, err
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
		Name:       "envoy.access_loggers.extension_filters.cel",
		ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: expression},
	}}}, nil
}

func or(filters ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_OrFilter{OrFilter: &accesslogv3.OrFilter{Filters: filters}}}
}

func and(filters ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{AndFilter: &accesslogv3.AndFilter{Filters: filters}}}
}
