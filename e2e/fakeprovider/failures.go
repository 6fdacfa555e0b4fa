package fakeprovider

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sort"
	"strconv"
	"time"
)

// failure is one named way to refuse, in both dialects.
type failure struct {
	status          int
	anthropicStatus int
	// openAIType and openAICode, anthropicType and anthropicCode
	// (details.error_code) go into the body; "" becomes null or stays away.
	openAIType, openAICode       string
	anthropicType, anthropicCode string
	message                      string
	// html is the whole body of a failure that does not come from the API itself.
	html string
}

var failures = map[string]failure{
	"rate_limit_exceeded": {
		status: 429, openAIType: "rate_limit_error", openAICode: "rate_limit_exceeded",
		anthropicType: "rate_limit_error", message: "Rate limit reached for this model.",
	},
	"slow_down": {
		status: 429, openAIType: "rate_limit_error", openAICode: "slow_down",
		anthropicType: "rate_limit_error", message: "Traffic grew too fast; slow down.",
	},
	"insufficient_quota":                moneyFailure("insufficient_quota"),
	"credit_balance_exhausted":          moneyFailure("credit_balance_exhausted"),
	"organization_spend_limit_exceeded": moneyFailure("organization_spend_limit_exceeded"),
	"project_spend_limit_exceeded":      moneyFailure("project_spend_limit_exceeded"),
	"billing": {
		status: 402, openAIType: "billing_error", openAICode: "billing_error",
		anthropicType: "billing_error", message: "Payment is required.",
	},
	"overloaded": {
		status: 503, anthropicStatus: 529, openAIType: "service_unavailable_error", openAICode: "server_is_overloaded",
		anthropicType: "overloaded_error", message: "The service is overloaded.",
	},
	"server_error": {
		status: 500, openAIType: "server_error", openAICode: "server_error",
		anthropicType: "api_error", message: "The server had an error while processing your request.",
	},
	"timeout": {
		status: 504, openAIType: "server_error", openAICode: "timeout",
		anthropicType: "timeout_error", message: "The request timed out.",
	},
	"bad_request": {
		status: 400, openAIType: "invalid_request_error", openAICode: "invalid_value",
		anthropicType: "invalid_request_error", message: "The request is not valid.",
	},
	"context_length_exceeded": {
		status: 400, openAIType: "invalid_request_error", openAICode: "context_length_exceeded",
		anthropicType: "invalid_request_error", message: "The prompt is longer than the context window.",
	},
	"invalid_api_key": {
		status: 401, openAIType: "invalid_request_error", openAICode: "invalid_api_key",
		anthropicType: "authentication_error", message: "Incorrect API key provided.",
	},
	"permission": {
		status: 403, openAIType: "invalid_request_error", openAICode: "permission_denied",
		anthropicType: "permission_error", message: "The key may not do this.",
	},
	"model_not_found": {
		status: 404, openAIType: "invalid_request_error", openAICode: "model_not_found",
		anthropicType: "not_found_error", message: "The model does not exist.",
	},
	"html": {status: 502, html: "<html><head><title>502 Bad Gateway</title></head><body>upstream edge</body></html>"},
}

func moneyFailure(code string) failure {
	return failure{
		status: 429, openAIType: "insufficient_quota", openAICode: code,
		anthropicType: "rate_limit_error", anthropicCode: "enforced_spend_limit_reached",
		message: "You exceeded your current quota; check your plan and billing details.",
	}
}

func failureNames() []string {
	names := make([]string, 0, len(failures))
	for name := range failures {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// failureForStatus is what a bare status means.
func failureForStatus(status int) failure {
	names := map[int]string{
		400: "bad_request", 401: "invalid_api_key", 402: "billing", 403: "permission", 404: "model_not_found",
		429: "rate_limit_exceeded", 503: "overloaded", 504: "timeout", 529: "overloaded",
	}
	name, known := names[status]
	switch {
	case known:
	case status < 500:
		name = "bad_request"
	default:
		name = "server_error"
	}
	f := failures[name]
	f.status, f.anthropicStatus = status, status
	return f
}

// renderFailure makes the error response that the script asks for.
func renderFailure(c *call, s *Script) answer {
	f := failureForStatus(s.Status)
	if s.Fail != "" {
		f = failures[s.Fail]
		if s.Status != 0 {
			f.status, f.anthropicStatus = s.Status, s.Status
		}
	}
	if s.RetryAfter != nil && s.RetryAfter.Form == "body" {
		f.message += " Please try again in " + s.RetryAfter.wait().String() + "."
	}
	return f.answer(c)
}

func (f failure) answer(c *call) answer {
	status := f.status
	if c.op.anthropic() && f.anthropicStatus != 0 {
		status = f.anthropicStatus
	}
	if f.html != "" {
		return answer{status: status, contentType: "text/html", frames: [][]byte{[]byte(f.html)}}
	}
	return answer{status: status, contentType: "application/json", frames: [][]byte{f.body(c)}}
}

func (f failure) body(c *call) []byte {
	type object = map[string]any
	if c.op.anthropic() {
		inner := object{"type": f.anthropicType, "message": f.message}
		if f.anthropicCode != "" {
			inner["details"] = object{"error_code": f.anthropicCode}
		}
		return marshal(object{"type": "error", "error": inner, "request_id": c.requestID()})
	}
	return marshal(object{"error": object{"message": f.message, "type": f.openAIType, "param": nil, "code": orNull(f.openAICode)}})
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// marshal encodes values that always can be.
func marshal(v any) []byte {
	out, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("fakeprovider: marshal own value: %v", err))
	}
	return out
}

// errorFrame is the in-band error e as frame number at of the stream.
func (r *rendering) errorFrame(e InBandError, at int) []byte {
	kind, code, message := e.Type, e.Code, e.Message
	if message == "" {
		message = "The server had an error while processing your request."
	}
	if r.c.op == opMessages {
		if kind == "" {
			kind = "overloaded_error"
		}
		return eventFrame("error", string(marshal(map[string]any{
			"type": "error", "error": map[string]any{"type": kind, "message": message}, "request_id": r.c.requestID(),
		})))
	}
	if kind == "" {
		kind = "server_error"
	}
	flat := map[string]any{"message": message, "type": kind, "param": nil, "code": orNull(code)}
	if r.c.op != opResponses {
		if e.Form == "bare" {
			flat["object"] = "error"
			return dataFrame(string(marshal(flat)))
		}
		return dataFrame(string(marshal(map[string]any{"error": flat})))
	}
	event := map[string]any{"type": "error", "sequence_number": at}
	if e.Form != "nested" {
		event["message"], event["param"], event["code"] = message, nil, orNull(code)
	}
	if e.Form == "nested" || e.Form == "both" {
		event["error"] = flat
	}
	return eventFrame("error", string(marshal(event)))
}

// setHeaders writes the wait into h at time now.
func (a RetryAfter) setHeaders(h http.Header, c *call, now time.Time) {
	wait, until := a.wait(), now.Add(a.wait())
	switch a.Form {
	case "", "seconds":
		h.Set("Retry-After", strconv.FormatFloat(a.Seconds, 'f', -1, 64))
	case "date":
		h.Set("Retry-After", until.UTC().Format(http.TimeFormat))
	case "duration":
		h.Set("Retry-After", wait.String())
	case "ms":
		h.Set("Retry-After-Ms", strconv.FormatInt(wait.Milliseconds(), 10))
	case "epoch":
		h.Set("Retry-After", strconv.FormatInt(until.Unix(), 10))
	case "epoch_ms":
		h.Set("Retry-After", strconv.FormatInt(until.UnixMilli(), 10))
	case "reset":
		if c.op.anthropic() {
			h.Set("Anthropic-Ratelimit-Tokens-Remaining", "0")
			h.Set("Anthropic-Ratelimit-Tokens-Reset", until.UTC().Format(time.RFC3339))
			return
		}
		h.Set("X-Ratelimit-Remaining-Tokens", "0")
		h.Set("X-Ratelimit-Reset-Tokens", wait.String())
	}
}
