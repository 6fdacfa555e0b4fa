package wire

import (
	"cmp"
	"encoding/json"
	"net/http"

	"keyway/domain"
)

// answer is how one code is told to a client of each dialect (PROTOCOLS §7.3).
// openAICode "" is sent as null.
type answer struct {
	openAIStatus    int
	openAIType      string
	openAICode      string
	anthropicStatus int
	anthropicType   string
}

const (
	typeInvalid     = "invalid_request_error"
	typeServer      = "server_error"
	typeUnavailable = "service_unavailable_error"
	typeAPI         = "api_error"
	typeOverloaded  = "overloaded_error"
	typeAuth        = "authentication_error"
	typeNotFound    = "not_found_error"
	typeRate        = "rate_limit_error"
)

var answers = map[domain.Code]answer{
	domain.CodeInvalidKey:      {http.StatusUnauthorized, typeInvalid, "invalid_api_key", http.StatusUnauthorized, typeAuth},
	domain.CodeKeyDisabled:     {http.StatusUnauthorized, typeInvalid, "key_disabled", http.StatusUnauthorized, typeAuth},
	domain.CodeKeyExpired:      {http.StatusUnauthorized, typeInvalid, "key_expired", http.StatusUnauthorized, typeAuth},
	domain.CodeModelNotFound:   {http.StatusNotFound, typeInvalid, "model_not_found", http.StatusNotFound, typeNotFound},
	domain.CodeModelMissing:    {http.StatusBadRequest, typeInvalid, "missing_required_parameter", http.StatusBadRequest, typeInvalid},
	domain.CodeInvalidRequest:  {http.StatusBadRequest, typeInvalid, "", http.StatusBadRequest, typeInvalid},
	domain.CodeNotFound:        {http.StatusNotFound, typeInvalid, "", http.StatusNotFound, typeNotFound},
	domain.CodeMethod:          {http.StatusMethodNotAllowed, typeInvalid, "method_not_allowed", http.StatusMethodNotAllowed, typeInvalid},
	domain.CodeTooLarge:        {http.StatusRequestEntityTooLarge, typeInvalid, "request_too_large", http.StatusRequestEntityTooLarge, "request_too_large"},
	domain.CodeUnsupportedBody: {http.StatusUnsupportedMediaType, typeInvalid, "unsupported_media_type", http.StatusUnsupportedMediaType, typeInvalid},
	domain.CodeRateLimited:     {http.StatusTooManyRequests, typeRate, "rate_limit_exceeded", http.StatusTooManyRequests, typeRate},
	domain.CodeBudget:          {http.StatusTooManyRequests, "insufficient_quota", "insufficient_quota", http.StatusPaymentRequired, "billing_error"},
	domain.CodeBalance:         {http.StatusPaymentRequired, "insufficient_quota", "credit_balance_exhausted", http.StatusPaymentRequired, "billing_error"},
	domain.CodeUnavailable:     {http.StatusServiceUnavailable, typeUnavailable, "service_unavailable", http.StatusServiceUnavailable, typeOverloaded},
	domain.CodeNoChannel:       {http.StatusServiceUnavailable, typeUnavailable, "no_channel", http.StatusServiceUnavailable, typeOverloaded},
	domain.CodeUpstream:        {http.StatusBadGateway, typeServer, "upstream_error", http.StatusInternalServerError, typeAPI},
	domain.CodeUpstreamTimeout: {http.StatusGatewayTimeout, typeServer, "upstream_timeout", http.StatusGatewayTimeout, "timeout_error"},
	domain.CodeInternal:        {http.StatusInternalServerError, typeServer, "internal_error", http.StatusInternalServerError, typeAPI},
}

// answerFor falls back to CodeInternal: a code without a row must not reach a client.
func answerFor(c domain.Code) answer {
	if a, ok := answers[c]; ok {
		return a
	}
	return answers[domain.CodeInternal]
}

// Status returns the HTTP status of an error in a dialect.
func Status(d domain.Dialect, c domain.Code) int {
	a := answerFor(c)
	if d == domain.DialectAnthropic {
		return a.anthropicStatus
	}
	return a.openAIStatus
}

// The error shapes of PROTOCOLS §7.2, with the order of the vendors' own.
type (
	openAIError struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	openAIBody struct {
		Error openAIError `json:"error"`
	}
	anthropicError struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	anthropicBody struct {
		Type      string         `json:"type"`
		Error     anthropicError `json:"error"`
		RequestID string         `json:"request_id,omitempty"`
	}
	// responsesEvent has the fields flat, as the specification shows them, and
	// nested, as the live service sends them: only both together raise in every SDK.
	responsesEvent struct {
		Type           string      `json:"type"`
		Code           *string     `json:"code"`
		Message        string      `json:"message"`
		Param          *string     `json:"param"`
		SequenceNumber int64       `json:"sequence_number"`
		Error          openAIError `json:"error"`
	}
)

// ErrorBody returns the JSON body of an error in a dialect. requestID is ours;
// the OpenAI dialect has no place for it but the header.
func ErrorBody(d domain.Dialect, e *domain.Error, requestID string) []byte {
	if d == domain.DialectAnthropic {
		return marshal(anthropicErrorOf(e, requestID))
	}
	return marshal(openAIBody{Error: openAIErrorOf(e)})
}

// FrameContext is what an error frame must fit in with.
type FrameContext struct {
	RequestID string
	// Sequence is the next sequence_number of a Responses stream.
	Sequence int64
}

// ErrorFrame returns the event that ends a stream of api by an error. It must
// follow a blank line, and nothing may follow it.
func ErrorFrame(api domain.API, e *domain.Error, c FrameContext) []byte {
	switch api {
	case domain.APIMessages:
		return frame("event: error\ndata: ", marshal(anthropicErrorOf(e, c.RequestID)))
	case domain.APIResponses:
		o := openAIErrorOf(e)
		return frame("event: error\ndata: ", marshal(responsesEvent{
			Type: "error", Code: o.Code, Message: o.Message, Param: o.Param,
			SequenceNumber: c.Sequence, Error: o,
		}))
	}
	return frame("data: ", marshal(openAIBody{Error: openAIErrorOf(e)}))
}

// UpstreamErrorFrame is ErrorFrame in the provider's own words.
func UpstreamErrorFrame(api domain.API, e StreamError, c FrameContext) []byte {
	switch api {
	case domain.APIMessages:
		return frame("event: error\ndata: ", marshal(anthropicBody{
			Type: "error", Error: anthropicError{Type: cmp.Or(e.Type, typeAPI), Message: e.Message}, RequestID: c.RequestID,
		}))
	case domain.APIResponses:
		o := openAIError{Message: e.Message, Type: cmp.Or(e.Type, typeServer), Code: orNull(e.Code)}
		return frame("event: error\ndata: ", marshal(responsesEvent{
			Type: "error", Code: o.Code, Message: o.Message, SequenceNumber: c.Sequence, Error: o,
		}))
	}
	return frame("data: ", marshal(openAIBody{Error: openAIError{
		Message: e.Message, Type: cmp.Or(e.Type, typeServer), Code: orNull(e.Code),
	}}))
}

func frame(head string, data []byte) []byte {
	out := make([]byte, 0, len(head)+len(data)+2)
	out = append(out, head...)
	out = append(out, data...)
	return append(out, "\n\n"...)
}

// Heartbeat returns the bytes that keep a silent stream of api alive, in the
// form that every SDK survives (PROTOCOLS §0.1). It may stand only at a frame
// boundary.
func Heartbeat(api domain.API) []byte {
	if api == domain.APIMessages {
		return []byte("event: ping\ndata: {\"type\": \"ping\"}\n\n")
	}
	return []byte(": ping\n")
}

func openAIErrorOf(e *domain.Error) openAIError {
	a := answerFor(e.Code)
	return openAIError{Message: e.Message, Type: a.openAIType, Param: orNull(e.Param), Code: orNull(a.openAICode)}
}

func anthropicErrorOf(e *domain.Error, requestID string) anthropicBody {
	return anthropicBody{
		Type:      "error",
		Error:     anthropicError{Type: answerFor(e.Code).anthropicType, Message: e.Message},
		RequestID: requestID,
	}
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		// The types above hold strings and integers only, which always marshal.
		panic("wire: marshal an error body: " + err.Error())
	}
	return b
}
