package wire

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// shown are the kinds of limits for which the dialects have names (PROTOCOLS
// §7.1); what is left is money and places, of which their SDKs know nothing.
var shown = map[domain.LimitKind]string{domain.LimitRPM: "requests", domain.LimitTPM: "tokens"}

// limitNames are the dialects' names of one kind's headers: limit, remaining, reset.
var limitNames = map[domain.Dialect]func(kind string) [3]string{
	domain.DialectOpenAI: func(k string) [3]string {
		return [3]string{"x-ratelimit-limit-" + k, "x-ratelimit-remaining-" + k, "x-ratelimit-reset-" + k}
	},
	domain.DialectAnthropic: func(k string) [3]string {
		return [3]string{"anthropic-ratelimit-" + k + "-limit", "anthropic-ratelimit-" + k + "-remaining", "anthropic-ratelimit-" + k + "-reset"}
	},
}

// resets read a reset as the dialects' SDKs do.
var resets = map[domain.Dialect]func(t *testing.T, value string, now time.Time) time.Duration{
	domain.DialectOpenAI: func(t *testing.T, value string, _ time.Time) time.Duration {
		d, err := time.ParseDuration(value)
		require.NoError(t, err)
		return d
	},
	domain.DialectAnthropic: func(t *testing.T, value string, now time.Time) time.Duration {
		require.Regexp(t, regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`), value)
		at, err := time.Parse(time.RFC3339, value)
		require.NoError(t, err)
		return at.Sub(now)
	},
}

// TestLimitHeadersOfEveryKind: each kind of limit, admitted and refused, in
// each dialect, under that dialect's names and in its forms.
func TestLimitHeadersOfEveryKind(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 23, 59, 59, 400_000_000, time.FixedZone("", -7200))
	const wait = 1700 * time.Millisecond
	for _, kind := range []domain.LimitKind{
		domain.LimitRPM, domain.LimitTPM, domain.LimitInFlight, domain.LimitBudgetDay, domain.LimitBudgetMonth,
	} {
		for dialect, names := range limitNames {
			for name, headers := range map[string][]Header{
				"admitted": LimitHeaders(dialect, []domain.Hold{{Kind: kind, Limit: 1_000_000}},
					domain.Admission{Remaining: []int64{7}, Reset: []time.Duration{wait}}, now),
				"refused": LimitHeaders(dialect, nil,
					domain.Admission{Refusal: &domain.Refusal{Kind: kind, Limit: 1_000_000, Remaining: 7, RetryAfter: wait}}, now),
			} {
				t.Run(string(kind)+"/"+string(dialect)+"/"+name, func(t *testing.T) {
					t.Parallel()
					got := map[string]string{}
					for _, h := range headers {
						got[h.Name] = h.Value
						assert.NotEmpty(t, h.Value, h.Name)
					}
					word, has := shown[kind]
					if !has {
						assert.Empty(t, got)
						return
					}
					want := names(word)
					assert.ElementsMatch(t, want[:], slices.Collect(maps.Keys(got)))
					assert.Equal(t, "1000000", got[want[0]], "plain integers")
					assert.Equal(t, "7", got[want[1]])
					reset := resets[dialect](t, got[want[2]], now)
					assert.GreaterOrEqual(t, reset, wait, "not before there is room again")
					assert.Less(t, reset, wait+time.Second)
				})
			}
		}
	}
}

// TestRetryAfter: a wait is a whole number of seconds, at least one, never
// shorter than what is needed nor longer than a minute, the same in both
// dialects; and there is none where waiting does not help.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	limited := func(d time.Duration) *domain.Error {
		return &domain.Error{Code: domain.CodeRateLimited, Limit: &domain.Refusal{Kind: domain.LimitRPM, RetryAfter: d}}
	}
	for _, tt := range []struct {
		name            string
		err             *domain.Error
		seconds, millis int64
	}{
		{"of the limit", limited(2 * time.Second), 2, 2000},
		{"rounded up", limited(2001 * time.Millisecond), 3, 2001},
		{"less than a millisecond", limited(time.Microsecond), 1, 1},
		{"almost a minute", limited(time.Minute - time.Millisecond), 60, 59_999},
		{"a minute", limited(time.Minute), 60, 60_000},
		{"more than a minute", limited(time.Minute + time.Nanosecond), 60, 60_000},
		{"longer than a minute", limited(time.Hour), 60, 60_000},
		{"its own before that of the limit", &domain.Error{
			Code: domain.CodeRateLimited, RetryAfter: 4 * time.Second, Limit: &domain.Refusal{RetryAfter: time.Second},
		}, 4, 4000},
		{"not known", limited(0), 1, 1000},
		{"the store is away", &domain.Error{Code: domain.CodeUnavailable}, 2, 2000},
		{"larger than the limit", &domain.Error{Code: domain.CodeRateLimited, NoRetry: true, Limit: &domain.Refusal{Kind: domain.LimitTPM}}, 0, 0},
		{"a budget is spent", &domain.Error{Code: domain.CodeBudget, Limit: &domain.Refusal{Kind: domain.LimitBudgetDay, RetryAfter: time.Hour}}, 0, 0},
		{"a bad request", &domain.Error{Code: domain.CodeInvalidRequest}, 0, 0},
	} {
		for _, dialect := range []domain.Dialect{domain.DialectOpenAI, domain.DialectAnthropic} {
			t.Run(tt.name+"/"+string(dialect), func(t *testing.T) {
				t.Parallel()
				got := map[string]string{}
				for _, h := range ErrorHeaders(dialect, tt.err) {
					got[h.Name] = h.Value
				}
				if tt.seconds == 0 {
					assert.NotContains(t, got, "retry-after")
					assert.NotContains(t, got, "retry-after-ms")
					assert.Equal(t, tt.err.Code != domain.CodeInvalidRequest, got["x-should-retry"] == "false")
					return
				}
				assert.Equal(t, strconv.FormatInt(tt.seconds, 10), got["retry-after"])
				assert.Equal(t, strconv.FormatInt(tt.millis, 10), got["retry-after-ms"])
				assert.NotContains(t, got, "x-should-retry")
			})
		}
	}
}
