package domain

import (
	"errors"
	"fmt"
	"time"
)

// Code names why a request was refused or failed. It is the whole vocabulary
// that may reach a client; wire turns it into the dialect's own status, type
// and code (PROTOCOLS §7.3).
type Code string

// The codes, each with the HTTP status it becomes.
const (
	CodeInvalidKey      Code = "invalid_api_key"        // 401
	CodeKeyDisabled     Code = "key_disabled"           // 401
	CodeKeyExpired      Code = "key_expired"            // 401
	CodeModelNotFound   Code = "model_not_found"        // 404: unknown, or not allowed for the key
	CodeModelMissing    Code = "model_missing"          // 400
	CodeInvalidRequest  Code = "invalid_request"        // 400
	CodeNotFound        Code = "not_found"              // 404: path not served
	CodeMethod          Code = "method_not_allowed"     // 405
	CodeTooLarge        Code = "request_too_large"      // 413
	CodeUnsupportedBody Code = "unsupported_media_type" // 415: content-encoding or content-type
	CodeRateLimited     Code = "rate_limit_exceeded"    // 429: RPM, TPM, in_flight, slots
	CodeBudget          Code = "insufficient_quota"     // 429 OpenAI, 402 Anthropic
	CodeBalance         Code = "insufficient_balance"   // 402
	CodeUnavailable     Code = "service_unavailable"    // 503: store down, draining
	CodeNoChannel       Code = "no_channel"             // 503: no usable channel for the model
	CodeUpstream        Code = "upstream_error"         // 502
	CodeUpstreamTimeout Code = "upstream_timeout"       // 504
	CodeInternal        Code = "internal_error"         // 500
)

// Error is an error that a client may see. Message is a full sentence that
// says what to do; it never holds a key, a prompt or an internal address.
type Error struct {
	Code    Code
	Message string
	// Param is the request field at fault, such as "model"; "" for none.
	Param string
	// RetryAfter is how long the client should wait; 0 sends no header.
	RetryAfter time.Duration
	// NoRetry tells SDKs that waiting does not help (x-should-retry: false).
	NoRetry bool
	// Limit is the limit that refused; nil unless Code is CodeRateLimited, CodeBudget or CodeBalance.
	Limit *Refusal
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

// Errorf makes an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AsError returns err as an *Error; anything that is not one becomes
// CodeInternal with an opaque message, so that no detail leaks.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: CodeInternal, Message: "The gateway could not handle this request. Try again; if it persists, give your operator the request id."}
}

// Sentinel errors between packages; none of them reaches a client as it is.
var (
	// ErrNotFound: the record asked for does not exist.
	ErrNotFound = errors.New("not found")
	// ErrStoreDown: the regional store does not answer; the outcome of a write is unknown.
	ErrStoreDown = errors.New("regional store does not answer")
	// ErrRefused: the regional store answered that it cannot take this write, and never will.
	ErrRefused = errors.New("regional store refuses it for good")
)
