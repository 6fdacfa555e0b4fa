package wire

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"keyway/domain"
)

// Failure is what an upstream gave in place of an answer, as far as it was seen.
type Failure struct {
	// Status is the HTTP status; 0 when there was no answer, or it broke off.
	Status int
	// Headers are those that may say how long to wait, in lower case.
	Headers []Header
	// Body is the beginning of an error body; nil when it was not read.
	Body []byte
	// Error is what was reported inside an answer with a good status.
	Error StreamError
}

// ReadFailure reads the detail that a channel's verdict script took down: one
// "name: value" line per header, a blank line, the beginning of the body.
func ReadFailure(status int, detail []byte) Failure {
	f := Failure{Status: status}
	for len(detail) > 0 {
		line, rest, _ := bytes.Cut(detail, []byte("\n"))
		detail = rest
		if len(line) == 0 {
			f.Body = detail
			break
		}
		if name, value, ok := strings.Cut(string(line), ": "); ok {
			f.Headers = append(f.Headers, Header{Name: name, Value: value})
		}
	}
	return f
}

// Verdict is what a failure says of its channel.
type Verdict struct {
	// Reason is ReasonNone for a fault of the request, which is no evidence.
	Reason domain.CooldownReason
	// Wait is the longest time that the upstream asked for; 0 for none.
	Wait time.Duration
	// Certain: this one failure is enough. Others may be one request's bad luck.
	Certain bool
	// Everywhere: it is about the account, not about one class of models.
	Everywhere bool
}

// Judge says what f is evidence of. now is when it came.
func (f Failure) Judge(now time.Time) Verdict {
	told := readErrorBody(f.Body)
	told.codes = append(told.codes, f.Error.Type, f.Error.Code)
	told.messages = append(told.messages, f.Error.Message)
	v := Verdict{Reason: f.reason(told.codes)}
	switch v.Reason {
	case domain.ReasonQuota, domain.ReasonAuth:
		v.Certain, v.Everywhere = true, true
		return v
	case domain.ReasonRate, domain.ReasonOverload, domain.ReasonServer:
		v.Wait = f.wait(told, v.Reason, now)
	case domain.ReasonNone, domain.ReasonUnanswered:
	}
	v.Certain = v.Reason == domain.ReasonRate || v.Wait > 0
	return v
}

// The words of PROTOCOLS §7.2 and §10 by which providers tell their errors apart.
var (
	moneyCodes = []string{
		"insufficient_quota", "billing_error", "credit_balance_exhausted", "organization_usage_limit_exceeded",
		"organization_spend_limit_exceeded", "project_spend_limit_exceeded",
		"enforced_spend_limit_reached", "contract_spend_limit_reached", "Arrearage",
	}
	rateCodes     = []string{"rate_limit_error", "rate_limit_exceeded", "slow_down", "RESOURCE_EXHAUSTED"}
	overloadCodes = []string{"overloaded_error", "server_is_overloaded", "service_unavailable_error", "UNAVAILABLE"}
	serverCodes   = []string{"server_error", "api_error", "timeout_error", "internal_error", "internal_server_error", "INTERNAL"}
	authCodes     = []string{"invalid_api_key", "authentication_error", "account_deactivated"}
)

// reason reads status and codes together: the codes tell money from a rate, and
// stand alone where an error came inside a good answer.
func (f Failure) reason(codes []string) domain.CooldownReason {
	says := func(known []string) bool {
		return slices.ContainsFunc(codes, func(code string) bool { return slices.Contains(known, code) })
	}
	status := f.Status
	if status >= 200 && status < 300 {
		status = statusInside(codes)
	}
	switch {
	case f.Status == 0:
		return domain.ReasonUnanswered
	case status == 402, says(moneyCodes) && (status < 400 || slices.Contains([]int{400, 403, 429}, status)):
		return domain.ReasonQuota
	case status == 401, status == 403 && says(authCodes):
		return domain.ReasonAuth
	case status == 429, status < 400 && says(rateCodes):
		return domain.ReasonRate
	case status == 503, status == 529, status < 400 && says(overloadCodes):
		return domain.ReasonOverload
	case status == 403, status >= 500, status/100 == 3, status < 400 && says(serverCodes):
		return domain.ReasonServer
	}
	return domain.ReasonNone
}

// statusInside is the HTTP status that some gateways give as the code of an
// error inside an answer; 0 for none.
func statusInside(codes []string) int {
	for _, code := range codes {
		if n, err := strconv.Atoi(code); err == nil && n >= 400 && n < 600 {
			return n
		}
	}
	return 0
}

// wait is the longest time that any part of f asks for.
func (f Failure) wait(told errorBody, reason domain.CooldownReason, now time.Time) time.Duration {
	longest := time.Duration(0)
	take := func(wait time.Duration, ok bool) {
		if ok {
			longest = max(longest, wait)
		}
	}
	for _, h := range f.Headers {
		switch {
		case h.Name == "retry-after":
			take(ParseWait(h.Value, now))
		case h.Name == "retry-after-ms":
			take(parseMillis(h.Value))
		case reason == domain.ReasonRate && isReset(h.Name) && f.usedUp(h.Name):
			take(ParseWait(h.Value, now))
		}
	}
	for _, value := range told.waits {
		take(ParseWait(value, now))
	}
	for _, value := range told.millis {
		take(parseMillis(value))
	}
	for _, message := range told.messages {
		take(waitInMessage(message))
	}
	return longest
}

// TellsWait reports whether a header, in lower case, may say how long to wait.
func TellsWait(name string) bool {
	return strings.Contains(name, "retry-after") || strings.Contains(name, "ratelimit")
}

// isReset reports whether a header says when a limit is full again.
func isReset(name string) bool {
	return strings.Contains(name, "ratelimit") && strings.Contains(name, "reset")
}

// usedUp reports whether the limit whose reset stands in the header name may be
// the one that refused: its twin does not say that there is something left.
func (f Failure) usedUp(name string) bool {
	twin := strings.Replace(name, "reset", "remaining", 1)
	for _, h := range f.Headers {
		if h.Name == twin {
			left, err := strconv.ParseInt(strings.TrimSpace(h.Value), 10, 64)
			return err != nil || left <= 0
		}
	}
	return true
}

// errorBody is what an error body says, in any of the shapes of PROTOCOLS §7.2.
type errorBody struct {
	codes, messages []string
	// waits and millis are times to wait, in seconds or a form of their own, and
	// in milliseconds.
	waits, millis []string
}

// keep is where a value goes.
type keep func(*errorBody) *[]string

var (
	keepCode    keep = func(b *errorBody) *[]string { return &b.codes }
	keepMessage keep = func(b *errorBody) *[]string { return &b.messages }
	keepWait    keep = func(b *errorBody) *[]string { return &b.waits }
	keepMillis  keep = func(b *errorBody) *[]string { return &b.millis }
)

// errorPlaces are the places in an error body that are believed; arrays do not
// show in them. Others may repeat what the client sent.
var errorPlaces = map[string]keep{
	"type": keepCode, "code": keepCode,
	"error.type": keepCode, "error.code": keepCode, "error.status": keepCode, "error.details.error_code": keepCode,
	"message": keepMessage, "error": keepMessage, "error.message": keepMessage,
	"retry_after": keepWait, "error.retry_after": keepWait, "error.metadata.retry_after": keepWait, "error.details.retryDelay": keepWait,
	"retry_after_ms": keepMillis, "error.retry_after_ms": keepMillis,
}

// readErrorBody reads the beginning of a body as far as it is JSON: what was
// cut off is not missed.
func readErrorBody(raw []byte) (b errorBody) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	// at holds, by depth, the key that is open; "" inside an array.
	var at []string
	key := false // the next token of the innermost object is a key
	var inObject []bool
	for {
		token, err := dec.Token()
		if err != nil {
			return b
		}
		switch token {
		case json.Delim('{'):
			at, inObject, key = append(at, ""), append(inObject, true), true
			continue
		case json.Delim('['):
			at, inObject, key = append(at, ""), append(inObject, false), false
			continue
		case json.Delim('}'), json.Delim(']'):
			at, inObject = at[:len(at)-1], inObject[:len(inObject)-1]
		default:
			if name, ok := token.(string); ok && key {
				at[len(at)-1], key = name, false
				continue
			}
			b.take(at, token)
		}
		key = len(inObject) > 0 && inObject[len(inObject)-1]
	}
}

// take keeps a value that stands at one of errorPlaces.
func (b *errorBody) take(at []string, token json.Token) {
	var text string
	switch v := token.(type) {
	case string:
		text = v
	case json.Number:
		text = v.String()
	default:
		return
	}
	path := strings.Join(slices.DeleteFunc(slices.Clone(at), func(key string) bool { return key == "" }), ".")
	if keep, ok := errorPlaces[path]; ok {
		list := keep(b)
		*list = append(*list, text)
	}
}
