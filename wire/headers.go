package wire

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"keyway/domain"
)

// maxRetryAfter is the longest wait that is ever asked of a client: some SDKs
// obey any number, however large (PROTOCOLS §0.10).
const maxRetryAfter = 60 * time.Second

// The waits asked for where an error does not know its own.
const (
	defaultUnavailableWait = 2 * time.Second
	defaultRateWait        = time.Second
)

// Header is one HTTP header, its name in lower case.
type Header struct{ Name, Value string }

// RequestIDHeaders name our request id where the dialect's SDKs read it, beside
// x-request-id, which Envoy sets on every answer.
func RequestIDHeaders(d domain.Dialect, id string) []Header {
	if d == domain.DialectAnthropic {
		return []Header{{Name: "request-id", Value: id}}
	}
	return nil
}

// ErrorHeaders returns the headers of an error answer, but for the request id and the limits.
func ErrorHeaders(d domain.Dialect, e *domain.Error) []Header {
	list := []Header{{"content-type", "application/json"}}
	if hopeless(e) {
		return append(list, Header{"x-should-retry", "false"})
	}
	wait := retryAfter(e)
	if wait <= 0 {
		return list
	}
	return append(list, Header{"retry-after", inUnits(wait, time.Second)}, Header{"retry-after-ms", inUnits(wait, time.Millisecond)})
}

// hopeless reports whether sending the same request again cannot succeed.
func hopeless(e *domain.Error) bool {
	switch e.Code {
	case domain.CodeInvalidKey, domain.CodeKeyDisabled, domain.CodeKeyExpired, domain.CodeBudget, domain.CodeBalance:
		return true
	}
	return e.NoRetry
}

func retryAfter(e *domain.Error) time.Duration {
	wait := e.RetryAfter
	if wait <= 0 && e.Limit != nil {
		wait = e.Limit.RetryAfter
	}
	if wait <= 0 {
		switch e.Code {
		case domain.CodeUnavailable, domain.CodeNoChannel:
			wait = defaultUnavailableWait
		case domain.CodeRateLimited:
			wait = defaultRateWait
		}
	}
	return min(wait, maxRetryAfter)
}

// limitView is what a client is shown of one kind of limit.
type limitView struct {
	limit, remaining int64
	reset            time.Duration
}

// LimitHeaders returns the limits of requests and of tokens as headers in the
// dialect's own names. holds and adm belong together: adm.Remaining and
// adm.Reset go by the order of holds. Of two limits of one kind, the one with
// less remaining is shown; the region's, which tell of others' traffic, are not.
// remaining may be more than limit, where a bucket's burst is. now is when adm was
// given.
func LimitHeaders(d domain.Dialect, holds []domain.Hold, adm domain.Admission, now time.Time) []Header {
	var list []Header
	for _, k := range []struct {
		kind domain.LimitKind
		name string
	}{{domain.LimitRPM, "requests"}, {domain.LimitTPM, "tokens"}} {
		v, ok := tightest(k.kind, holds, adm)
		if !ok {
			continue
		}
		limit, remaining := strconv.FormatInt(v.limit, 10), strconv.FormatInt(v.remaining, 10)
		if d == domain.DialectAnthropic {
			prefix := "anthropic-ratelimit-" + k.name
			list = append(list, Header{prefix + "-limit", limit}, Header{prefix + "-remaining", remaining},
				Header{prefix + "-reset", wholeSecond(now.Add(v.reset.Round(time.Millisecond)))})
			continue
		}
		list = append(list, Header{"x-ratelimit-limit-" + k.name, limit}, Header{"x-ratelimit-remaining-" + k.name, remaining},
			Header{"x-ratelimit-reset-" + k.name, v.reset.Round(time.Millisecond).String()})
	}
	return list
}

// wholeSecond writes t as the next whole second: a client that waits until
// then must not come too early.
func wholeSecond(t time.Time) string {
	return t.Add(time.Second - time.Nanosecond).UTC().Truncate(time.Second).Format(time.RFC3339)
}

func tightest(kind domain.LimitKind, holds []domain.Hold, adm domain.Admission) (v limitView, ok bool) {
	for i, h := range holds {
		if h.Kind != kind || h.Scope == domain.ScopeRegion || i >= len(adm.Remaining) {
			continue
		}
		c := limitView{limit: h.Limit, remaining: max(0, adm.Remaining[i])}
		if i < len(adm.Reset) {
			c.reset = adm.Reset[i]
		}
		if !ok || c.remaining < v.remaining {
			v, ok = c, true
		}
	}
	if r := adm.Refusal; r != nil && r.Kind == kind && r.Scope != domain.ScopeRegion && (!ok || r.Remaining < v.remaining) {
		return limitView{limit: r.Limit, remaining: max(0, r.Remaining), reset: r.RetryAfter}, true
	}
	return v, ok
}

// CredentialHeaders are the request headers in which a client may carry a key,
// in lower case. All are removed from a request that goes to a provider. The
// list must not be altered.
var CredentialHeaders = []string{"authorization", "x-api-key", "api-key", "x-goog-api-key", "xi-api-key"}

// StripResponseHeader reports whether a provider's response header, in any
// case, must not reach the client as it is: it tells of the provider's account,
// its limits, its edge or its own origin, not of the answer (PROTOCOLS §0.15), or
// has a name by which only the gateway speaks. What a client learns of the times
// to wait comes from WaitHeaders.
func StripResponseHeader(name string) bool {
	name = strings.ToLower(name)
	return slices.Contains(strippedNames, name) ||
		slices.ContainsFunc(strippedPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

var strippedNames = []string{
	"openai-organization", "openai-project", "anthropic-organization-id", "anthropic-workspace-id", "set-cookie",
	"request-id", "retry-after", "retry-after-ms", "ratelimit", "x-ratelimit",
	// How the provider wants to be asked, which the gateway's credential answers.
	"www-authenticate", "proxy-authenticate", "authentication-info", "proxy-authentication-info",
	// These speak for the origin that sends them, and that is the gateway.
	"alt-svc", "strict-transport-security", "clear-site-data", "nel", "report-to", "reporting-endpoints", "via", "x-powered-by",
}

var strippedPrefixes = []string{
	"x-ratelimit-", "x-rate-limit-", "ratelimit-", "anthropic-ratelimit-", "anthropic-priority-", "anthropic-fast-",
	"cf-", "x-litellm-", "access-control-", "x-envoy-", "x-keyway-",
}

// WaitHeaders are the times to wait that an upstream's headers, lower-case, tell
// its client, in the forms and within the bounds that every SDK can take. A date
// far ahead, a duration or an epoch would be obeyed for hours by some and
// misread by others, and nonsense is left out.
func WaitHeaders(headers map[string][]string, now time.Time) (list []Header) {
	if values := headers["retry-after"]; len(values) > 0 {
		if wait, ok := ParseWait(values[0], now); ok && wait > 0 {
			list = append(list, Header{"retry-after", inUnits(wait, time.Second)})
		}
	}
	if values := headers["retry-after-ms"]; len(values) > 0 {
		if wait, ok := parseMillis(values[0]); ok && wait > 0 {
			list = append(list, Header{"retry-after-ms", inUnits(wait, time.Millisecond)})
		}
	}
	return list
}

// inUnits writes a wait, but not more than maxRetryAfter, in whole units, rounded
// up: who waits so long must not come too early.
func inUnits(wait, unit time.Duration) string {
	return strconv.FormatInt(int64((min(wait, maxRetryAfter)+unit-1)/unit), 10)
}

// queryNames are the parameters that may go to a provider, beside the flag beta
// of the Messages APIs. A key, or a model that contradicts the body's, could
// stand in any other.
var queryNames = map[domain.API][]string{
	domain.APIMessages:    {"beta"},
	domain.APICountTokens: {"beta"},
	domain.APIStored: {
		"stream", "starting_after", "include_obfuscation", "include", "include[]", "include%5B%5D", "after", "before", "limit", "order",
	},
}

// carriers are names under which some provider reads a credential in a query.
var carriers = []string{"key", "api_key", "api-key", "apikey", "x-api-key", "access_token", "access-token", "token", "auth_token", "authorization"}

// CleanQuery returns what of a request's raw query may go to a provider, in its
// order. Of a request that passes raw it is everything but credentials.
func CleanQuery(api domain.API, rawQuery string) string {
	var kept, seen []string
	for pair := range strings.SplitSeq(rawQuery, "&") {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case api.IsRaw():
			if decoded, err := url.QueryUnescape(name); err == nil && decoded != "" && !slices.Contains(carriers, strings.ToLower(decoded)) && plainQuery(pair) {
				kept = append(kept, pair)
			}
		case slices.Contains(queryNames[api], name) && plainValue(value) && !slices.Contains(seen, name):
			kept = append(kept, pair)
			if !strings.HasPrefix(name, "include") {
				seen = append(seen, name) // what two readers could read differently comes once
			}
		}
	}
	return strings.Join(kept, "&")
}

// plainQuery reports whether a pair holds nothing that must be escaped in a query.
func plainQuery(pair string) bool {
	return !strings.ContainsFunc(pair, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("#;\"<>\\^`{|}", r) })
}

func plainValue(s string) bool {
	for i := range len(s) {
		if charClasses[s[i]] > classDigit && s[i] != '-' && s[i] != '_' && s[i] != '.' {
			return false
		}
	}
	return true
}
