package wire

import (
	"strconv"
	"strings"
	"time"
)

// Quota is what a provider says is left of an account's rate limit.
type Quota struct {
	// Left is the unused share, 0 to 1.
	Left float64
	// Ends is the time until it is whole again; above 0.
	Ends time.Duration
}

// quotaKinds are the limits that answers tell of, in the forms of the dialects.
var quotaKinds = []struct{ limit, remaining, reset string }{
	{"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"},
	{"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"},
	{"anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"},
	{"anthropic-ratelimit-input-tokens-limit", "anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"},
	{"anthropic-ratelimit-output-tokens-limit", "anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"},
	{"anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"},
}

// ReadQuota reads the scarcest of the limits that an answer's headers tell of;
// ok is false when they tell of none. Names are in lower case.
func ReadQuota(headers map[string][]string, now time.Time) (q Quota, ok bool) {
	for _, k := range quotaKinds {
		limit, known := quotaNumber(headers[k.limit])
		left, told := quotaNumber(headers[k.remaining])
		if !known || !told || limit <= 0 || left < 0 || len(headers[k.reset]) == 0 {
			continue
		}
		ends, readable := ParseWait(headers[k.reset][0], now)
		share := min(float64(left)/float64(limit), 1)
		if readable && ends > 0 && (!ok || share < q.Left) {
			q, ok = Quota{Left: share, Ends: ends}, true
		}
	}
	return q, ok
}

func quotaNumber(values []string) (int64, bool) {
	if len(values) == 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(values[0]), 10, 64)
	return n, err == nil
}
