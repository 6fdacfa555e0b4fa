package wire

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"keyway/domain"
)

var failedAt = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func TestParseWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want time.Duration
	}{
		{"20", 20 * time.Second},
		{" 20 ", 20 * time.Second},
		{"0.5", 500 * time.Millisecond},
		{"0", 0},
		{"999999999", longestWait},
		{"1796126460", time.Minute},
		{"1796126460000", time.Minute},
		{"1796126000", 0},
		{"99999999999999999999999", longestWait},
		{"6m30s", 6*time.Minute + 30*time.Second},
		{"6m0s", 6 * time.Minute},
		{"12ms", 12 * time.Millisecond},
		{"1d2h", 26 * time.Hour},
		{"2d", 48 * time.Hour},
		{"99999d", longestWait},
		{"57.8s", 57800 * time.Millisecond},
		{"Tue, 01 Dec 2026 12:01:30 GMT", 90 * time.Second},
		{"Tuesday, 01-Dec-26 12:01:30 GMT", 90 * time.Second},
		{"Tue Dec  1 12:01:30 2026", 90 * time.Second},
		{"2026-12-01T12:00:45Z", 45 * time.Second},
		{"2026-12-01T13:00:45.5+01:00", 45500 * time.Millisecond},
		{"2020-01-01T00:00:00Z", 0},
	} {
		got, ok := ParseWait(tt.text, failedAt)
		assert.True(t, ok, tt.text)
		assert.Equal(t, tt.want, got, tt.text)
	}
	for _, text := range []string{"", "soon", "-5", "-5s", "1e9", "inf", "NaN", "0x10", "1.2.3", ".", "d", "5x", "1d-2h", "٣"} {
		_, ok := ParseWait(text, failedAt)
		assert.False(t, ok, text)
	}
}

func TestWaitInMessage(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]time.Duration{
		"Rate limit reached. Please try again in 20s.":                 20 * time.Second,
		"Please try again in 1.242s. Visit https://example.com":        1242 * time.Millisecond,
		"Please try again in 6m0s.":                                    6 * time.Minute,
		"Please try again in 300ms":                                    300 * time.Millisecond,
		"Try again in 20 seconds!":                                     20 * time.Second,
		"try again in 300 ms.":                                         300 * time.Millisecond,
		"try again in 2 minutes":                                       2 * time.Minute,
		"Quota exceeded. Please retry in 57.808s.":                     57808 * time.Millisecond,
		"Try again in a while. Or retry after 3 hours, if you like it": 3 * time.Hour,
	} {
		got, ok := waitInMessage(message)
		assert.True(t, ok, message)
		assert.Equal(t, want, got, message)
	}
	for _, message := range []string{"", "try again in", "try again in ", "try again in 5", "try again in 5 moons", "try later"} {
		_, ok := waitInMessage(message)
		assert.False(t, ok, message)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	detail := func(parts ...string) []byte { return []byte(strings.Join(parts, "\n")) }
	openAI := func(kind, code, message string) string {
		return `{"error":{"message":"` + message + `","type":"` + kind + `","param":null,"code":"` + code + `"}}`
	}
	const second = time.Second
	for _, tt := range []struct {
		name   string
		status int
		detail []byte
		want   Verdict
	}{
		{"no answer", 0, nil, Verdict{Reason: domain.ReasonUnanswered}},
		{"429 alone", 429, nil, Verdict{Reason: domain.ReasonRate, Certain: true}},
		{
			"429 with seconds", 429, detail("retry-after: 20", "", openAI("rate_limit_error", "rate_limit_exceeded", "Slow.")),
			Verdict{Reason: domain.ReasonRate, Wait: 20 * second, Certain: true},
		},
		{
			"the longest wins", 429, detail("retry-after: 5", "retry-after-ms: 7500", "x-ratelimit-reset-tokens: 6m30s", "", openAI("rate_limit_error", "", "try again in 9s")),
			Verdict{Reason: domain.ReasonRate, Wait: 390 * second, Certain: true},
		},
		{"milliseconds", 429, detail("retry-after-ms: 1500", "", ""), Verdict{Reason: domain.ReasonRate, Wait: 1500 * time.Millisecond, Certain: true}},
		{
			"of two limits the one that is used up", 429, detail(
				"x-ratelimit-remaining-requests: 17", "x-ratelimit-reset-requests: 1h", "x-ratelimit-remaining-tokens: 0", "x-ratelimit-reset-tokens: 12s", "", ""),
			Verdict{Reason: domain.ReasonRate, Wait: 12 * second, Certain: true},
		},
		{
			"the reset of Messages", 429, detail(
				"anthropic-ratelimit-input-tokens-remaining: 0", "anthropic-ratelimit-input-tokens-reset: 2026-12-01T12:00:40Z",
				"anthropic-ratelimit-requests-remaining: 4", "anthropic-ratelimit-requests-reset: 2026-12-01T13:00:00Z", "", ""),
			Verdict{Reason: domain.ReasonRate, Wait: 40 * second, Certain: true},
		},
		{
			"a reset in epoch seconds", 429, detail("anthropic-ratelimit-unified-5h-reset: 1796126460", "", ""),
			Verdict{Reason: domain.ReasonRate, Wait: time.Minute, Certain: true},
		},
		{
			"only in the body", 429, detail("", `[{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"Quota.","details":[{"@type":"x"},{"@type":"RetryInfo","retryDelay":"19s"}]}}]`),
			Verdict{Reason: domain.ReasonRate, Wait: 19 * second, Certain: true},
		},
		{"garbage", 429, detail("retry-after: soon", "", "<html>"), Verdict{Reason: domain.ReasonRate, Certain: true}},
		{
			"money in a 429", 429, detail("retry-after: 20", "", openAI("insufficient_quota", "insufficient_quota", "Pay.")),
			Verdict{Reason: domain.ReasonQuota, Certain: true, Everywhere: true},
		},
		{
			"money in a 429 of Messages", 429, detail("", `{"type":"error","error":{"type":"rate_limit_error","message":"m","details":{"error_code":"enforced_spend_limit_reached"}}}`),
			Verdict{Reason: domain.ReasonQuota, Certain: true, Everywhere: true},
		},
		{"money in a 400", 400, detail("", openAI("invalid_request_error", "credit_balance_exhausted", "Pay.")), Verdict{Reason: domain.ReasonQuota, Certain: true, Everywhere: true}},
		{"money of DashScope", 400, detail("", `{"code":"Arrearage","message":"m","request_id":"r"}`), Verdict{Reason: domain.ReasonQuota, Certain: true, Everywhere: true}},
		{"402", 402, nil, Verdict{Reason: domain.ReasonQuota, Certain: true, Everywhere: true}},
		{"money only as the client's own words", 400, detail("", openAI("invalid_request_error", "invalid_value", `Invalid value: 'insufficient_quota'.`)), Verdict{}},
		{"money in what is echoed", 400, detail("", `{"detail":[{"type":"missing","input":{"type":"insufficient_quota","code":"insufficient_quota"}}]}`), Verdict{}},
		{"401", 401, nil, Verdict{Reason: domain.ReasonAuth, Certain: true, Everywhere: true}},
		{"403", 403, detail("", openAI("invalid_request_error", "permission_denied", "No.")), Verdict{Reason: domain.ReasonServer}},
		{"403 that names the key", 403, detail("", openAI("invalid_request_error", "account_deactivated", "No.")), Verdict{Reason: domain.ReasonAuth, Certain: true, Everywhere: true}},
		{"500", 500, nil, Verdict{Reason: domain.ReasonServer}},
		{"what an edge made up", 524, nil, Verdict{Reason: domain.ReasonServer}},
		{"a redirect", 308, detail("retry-after: 3", "", ""), Verdict{Reason: domain.ReasonServer, Wait: 3 * second, Certain: true}},
		{"a redirect that looks like an error inside an answer", 302, detail("", openAI("", "429", "")), Verdict{Reason: domain.ReasonServer}},
		{"an HTML page", 502, detail("", "<html>"), Verdict{Reason: domain.ReasonServer}},
		{"503", 503, nil, Verdict{Reason: domain.ReasonOverload}},
		{"503 that names a time", 503, detail("retry-after: 3", "", ""), Verdict{Reason: domain.ReasonOverload, Wait: 3 * second, Certain: true}},
		{"529", 529, nil, Verdict{Reason: domain.ReasonOverload}},
		{"a fault of the client", 400, detail("", openAI("invalid_request_error", "context_length_exceeded", "try again in 5s")), Verdict{}},
		{"404", 404, nil, Verdict{}},
		{"422", 422, nil, Verdict{}},
		{"cut off in the message", 429, detail("", `{"error":{"type":"insufficient_quota","message":"You exc`), Verdict{Reason: domain.ReasonQuota, Certain: true, Everywhere: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tt.want, ReadFailure(tt.status, tt.detail).Judge(failedAt))
		})
	}
}

func TestJudgeErrorInsideAnAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind, code, message string
		want                Verdict
	}{
		{"rate_limit_error", "", "", Verdict{Reason: domain.ReasonRate, Certain: true}},
		{"", "rate_limit_exceeded", "Please try again in 8s.", Verdict{Reason: domain.ReasonRate, Wait: 8 * time.Second, Certain: true}},
		{"overloaded_error", "", "", Verdict{Reason: domain.ReasonOverload}},
		{"insufficient_quota", "insufficient_quota", "", Verdict{Reason: domain.ReasonQuota, Certain: true, Everywhere: true}},
		{"server_error", "", "", Verdict{Reason: domain.ReasonServer}},
		{"", "429", "", Verdict{Reason: domain.ReasonRate, Certain: true}},
		{"", "502", "", Verdict{Reason: domain.ReasonServer}},
		{"", "402", "", Verdict{Reason: domain.ReasonQuota, Certain: true, Everywhere: true}},
		{"invalid_request_error", "content_filter", "", Verdict{}},
		{"", "", "", Verdict{}},
	} {
		f := Failure{Status: 200, Error: StreamError{Type: tt.kind, Code: tt.code, Message: tt.message}}
		assert.Equal(t, tt.want, f.Judge(failedAt), "%s %s", tt.kind, tt.code)
	}
}

func FuzzJudge(f *testing.F) {
	for _, seed := range []string{
		"retry-after: 20\n\n{\"error\":{\"message\":\"try again in 5s\",\"code\":429}}", "x-ratelimit-reset-tokens: 6m30s\n\n[{\"error\":[[{}", "\n{\"a\":{]", "retry-after: 1d\n",
	} {
		f.Add(429, []byte(seed))
	}
	f.Fuzz(func(t *testing.T, status int, detail []byte) {
		v := ReadFailure(status, detail).Judge(failedAt)
		if v.Wait < 0 || v.Wait > longestWait {
			t.Fatalf("a wait of %s", v.Wait)
		}
		if v.Wait > 0 && !v.Certain {
			t.Fatal("a time was named and one failure is not enough")
		}
		if v.Reason == domain.ReasonNone && v != (Verdict{}) {
			t.Fatalf("no evidence, and yet %+v", v)
		}
	})
}
