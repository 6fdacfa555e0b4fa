package wire

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func TestErrorBodies(t *testing.T) {
	t.Parallel()
	hard := "He said \"no\"\n\\ <b> 中"
	tests := []struct {
		name              string
		err               *domain.Error
		openAI, anthropic int
		body, otherBody   string
		headers           []Header
	}{
		{
			"bad key", domain.Errorf(domain.CodeInvalidKey, "No."), 401, 401,
			`{"error":{"message":"No.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`,
			`{"type":"error","error":{"type":"authentication_error","message":"No."},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}, {"x-should-retry", "false"}},
		},
		{
			"unknown model", &domain.Error{Code: domain.CodeModelNotFound, Message: hard, Param: "model"}, 404, 404,
			`{"error":{"message":"He said \"no\"\n\\ <b> 中","type":"invalid_request_error","param":"model","code":"model_not_found"}}`,
			`{"type":"error","error":{"type":"not_found_error","message":"He said \"no\"\n\\ <b> 中"},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}},
		},
		{
			"rate", &domain.Error{Code: domain.CodeRateLimited, Message: "Slow.", RetryAfter: 1500 * time.Millisecond}, 429, 429,
			`{"error":{"message":"Slow.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}`,
			`{"type":"error","error":{"type":"rate_limit_error","message":"Slow."},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}, {"retry-after", "2"}, {"retry-after-ms", "1500"}},
		},
		{
			"long wait is capped", &domain.Error{Code: domain.CodeRateLimited, Message: "Slow.", Limit: &domain.Refusal{RetryAfter: time.Hour}}, 429, 429,
			`{"error":{"message":"Slow.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}`,
			`{"type":"error","error":{"type":"rate_limit_error","message":"Slow."},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}, {"retry-after", "60"}, {"retry-after-ms", "60000"}},
		},
		{
			"waiting does not help", &domain.Error{Code: domain.CodeRateLimited, Message: "Big.", NoRetry: true, RetryAfter: time.Second}, 429, 429,
			`{"error":{"message":"Big.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}`,
			`{"type":"error","error":{"type":"rate_limit_error","message":"Big."},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}, {"x-should-retry", "false"}},
		},
		{
			"budget", domain.Errorf(domain.CodeBudget, "Spent."), 429, 402,
			`{"error":{"message":"Spent.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`,
			`{"type":"error","error":{"type":"billing_error","message":"Spent."},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}, {"x-should-retry", "false"}},
		},
		{
			"balance", domain.Errorf(domain.CodeBalance, "Empty."), 402, 402,
			`{"error":{"message":"Empty.","type":"insufficient_quota","param":null,"code":"credit_balance_exhausted"}}`,
			`{"type":"error","error":{"type":"billing_error","message":"Empty."},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}, {"x-should-retry", "false"}},
		},
		{
			"store away", domain.Errorf(domain.CodeUnavailable, "Away."), 503, 503,
			`{"error":{"message":"Away.","type":"service_unavailable_error","param":null,"code":"service_unavailable"}}`,
			`{"type":"error","error":{"type":"overloaded_error","message":"Away."},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}, {"retry-after", "2"}, {"retry-after-ms", "2000"}},
		},
		{
			"too large", domain.Errorf(domain.CodeTooLarge, "Big."), 413, 413,
			`{"error":{"message":"Big.","type":"invalid_request_error","param":null,"code":"request_too_large"}}`,
			`{"type":"error","error":{"type":"request_too_large","message":"Big."},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}},
		},
		{
			"code without a row", domain.Errorf("surprise", "Oh."), 500, 500,
			`{"error":{"message":"Oh.","type":"server_error","param":null,"code":"internal_error"}}`,
			`{"type":"error","error":{"type":"api_error","message":"Oh."},"request_id":"req_1"}`,
			[]Header{{"content-type", "application/json"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tt.openAI, Status(domain.DialectOpenAI, tt.err.Code))
			assert.Equal(t, tt.anthropic, Status(domain.DialectAnthropic, tt.err.Code))
			assert.JSONEq(t, tt.body, string(ErrorBody(domain.DialectOpenAI, tt.err, "req_1")))
			assert.JSONEq(t, tt.otherBody, string(ErrorBody(domain.DialectAnthropic, tt.err, "req_1")))
			for _, d := range []domain.Dialect{domain.DialectOpenAI, domain.DialectAnthropic} {
				assert.Equal(t, tt.headers, ErrorHeaders(d, tt.err))
			}
		})
	}
}

func TestEveryCodeHasItsAnswer(t *testing.T) {
	t.Parallel()
	for code, status := range map[domain.Code]int{
		domain.CodeInvalidKey: 401, domain.CodeKeyDisabled: 401, domain.CodeKeyExpired: 401,
		domain.CodeModelNotFound: 404, domain.CodeModelMissing: 400, domain.CodeInvalidRequest: 400,
		domain.CodeNotFound: 404, domain.CodeMethod: 405, domain.CodeTooLarge: 413, domain.CodeUnsupportedBody: 415,
		domain.CodeRateLimited: 429, domain.CodeBudget: 429, domain.CodeBalance: 402, domain.CodeUnavailable: 503, domain.CodeNoChannel: 503,
		domain.CodeUpstream: 502, domain.CodeUpstreamTimeout: 504, domain.CodeInternal: 500,
	} {
		assert.Equal(t, status, Status(domain.DialectOpenAI, code), code)
		assert.GreaterOrEqual(t, Status(domain.DialectAnthropic, code), 400, code)
		assert.NotEmpty(t, answers[code].anthropicType, code)
		assert.NotEmpty(t, http.StatusText(answers[code].anthropicStatus), code)
	}
}

func TestErrorFrames(t *testing.T) {
	t.Parallel()
	e := &domain.Error{Code: domain.CodeUpstream, Message: "Gone\n\"away\"."}
	c := FrameContext{RequestID: "req_1", Sequence: 8}
	nested := `{"message":"Gone\n\"away\".","type":"server_error","param":null,"code":"upstream_error"}`
	tests := []struct {
		api         domain.API
		event, data string
	}{
		{domain.APIChat, "", `{"error":` + nested + `}`},
		{domain.APICompletions, "", `{"error":` + nested + `}`},
		{domain.APIResponses, "error", `{"type":"error","code":"upstream_error","message":"Gone\n\"away\".","param":null,"sequence_number":8,"error":` + nested + `}`},
		{domain.APIMessages, "error", `{"type":"error","error":{"type":"api_error","message":"Gone\n\"away\"."},"request_id":"req_1"}`},
	}
	for _, tt := range tests {
		t.Run(string(tt.api), func(t *testing.T) {
			t.Parallel()
			frame := string(ErrorFrame(tt.api, e, c))
			head, ok := strings.CutSuffix(frame, "\n\n")
			require.True(t, ok)
			if tt.event != "" {
				head, ok = strings.CutPrefix(head, "event: "+tt.event+"\n")
				require.True(t, ok)
			}
			data, ok := strings.CutPrefix(head, "data: ")
			require.True(t, ok)
			assert.NotContains(t, data, "\n")
			assert.JSONEq(t, tt.data, data)
		})
	}
}

func TestHeartbeatsPassTheWatcher(t *testing.T) {
	t.Parallel()
	assert.Equal(t, ": ping\n", string(Heartbeat(domain.APIChat)), "one line end: two break SDKs")
	assert.Equal(t, ": ping\n", string(Heartbeat(domain.APIResponses)))
	beat := string(Heartbeat(domain.APIMessages))
	data, ok := strings.CutPrefix(beat, "event: ping\ndata: ")
	require.True(t, ok)
	assert.True(t, json.Valid([]byte(data)))
	assert.True(t, strings.HasSuffix(beat, "}\n\n"))
}

func TestLimitHeaders(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.FixedZone("", 3600))
	holds := []domain.Hold{
		{Kind: domain.LimitRPM, Scope: domain.ScopeKey, Limit: 60, Amount: 1},
		{Kind: domain.LimitTPM, Scope: domain.ScopeKey, Limit: 1000, Amount: 10},
		{Kind: domain.LimitInFlight, Scope: domain.ScopeKey, Limit: 3, Amount: 1},
		{Kind: domain.LimitTPM, Scope: domain.ScopeIdentity, Limit: 9000, Amount: 10},
		{Kind: domain.LimitBudgetDay, Scope: domain.ScopeIdentity, Limit: 5, Amount: 1},
		{Kind: domain.LimitRPM, Scope: domain.ScopeRegion, Limit: 5, Amount: 1}, // less is left, and it is nobody's business
	}
	adm := domain.Admission{
		Remaining: []int64{59, 990, 2, 80, 4, 1},
		Reset:     []time.Duration{time.Second, 600 * time.Millisecond, 0, 6*time.Minute + 200*time.Microsecond, 0, 0},
	}
	assert.Equal(t, []Header{
		{"x-ratelimit-limit-requests", "60"},
		{"x-ratelimit-remaining-requests", "59"},
		{"x-ratelimit-reset-requests", "1s"},
		{"x-ratelimit-limit-tokens", "9000"},
		{"x-ratelimit-remaining-tokens", "80"},
		{"x-ratelimit-reset-tokens", "6m0s"},
	}, LimitHeaders(domain.DialectOpenAI, holds, adm, now))
	assert.Equal(t, []Header{
		{"anthropic-ratelimit-requests-limit", "60"},
		{"anthropic-ratelimit-requests-remaining", "59"},
		{"anthropic-ratelimit-requests-reset", "2026-11-29T11:00:01Z"},
		{"anthropic-ratelimit-tokens-limit", "9000"},
		{"anthropic-ratelimit-tokens-remaining", "80"},
		{"anthropic-ratelimit-tokens-reset", "2026-11-29T11:06:00Z"},
	}, LimitHeaders(domain.DialectAnthropic, holds, adm, now))

	refused := domain.Admission{Refusal: &domain.Refusal{Kind: domain.LimitRPM, Limit: 60, Remaining: 0, RetryAfter: 12 * time.Millisecond}}
	assert.Equal(t, []Header{
		{"x-ratelimit-limit-requests", "60"},
		{"x-ratelimit-remaining-requests", "0"},
		{"x-ratelimit-reset-requests", "12ms"},
	}, LimitHeaders(domain.DialectOpenAI, holds, refused, now))
	assert.Empty(t, LimitHeaders(domain.DialectOpenAI, nil, domain.Admission{}, now))
}

// Whatever a provider says of the time to wait, a client is told whole seconds
// or milliseconds, a minute at most, or nothing.
func TestWaitHeaders(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ seconds, millis, wantSeconds, wantMillis string }{
		{"", "", "", ""},
		{"7", "", "7", ""},
		{"0.3", "300", "1", "300"},
		{"3600", "3600000", "60", "60000"},
		{"6m30s", "0.5", "60", "1"},
		{"Tue, 01 Dec 2026 12:00:30 GMT", "", "30", ""},
		{"Fri, 01 Jan 2100 00:00:00 GMT", "", "60", ""},
		{"Tue, 01 Dec 2020 12:00:30 GMT", "0", "", ""},
		{"1796126405", "", "5", ""},
		{"-5", "-5", "", ""},
		{"soon", "later", "", ""},
		{"99999999999999999999", "1e9", "60", ""},
	} {
		headers, want := map[string][]string{}, []Header(nil)
		for _, h := range []struct{ name, value, want string }{{"retry-after", tc.seconds, tc.wantSeconds}, {"retry-after-ms", tc.millis, tc.wantMillis}} {
			if h.value != "" {
				headers[h.name] = []string{h.value, "1"}
			}
			if h.want != "" {
				want = append(want, Header{h.name, h.want})
			}
		}
		assert.Equal(t, want, WaitHeaders(headers, failedAt), "%+v", tc)
	}
}

func TestResponseHeaders(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"openai-organization", "OpenAI-Project", "anthropic-organization-id", "Anthropic-Workspace-Id", "Set-Cookie",
		"request-id", "Retry-After", "retry-after-ms", "ratelimit", "RateLimit-Remaining", "X-Rate-Limit-Reset", "www-authenticate",
		"Strict-Transport-Security", "nel", "via", "access-control-allow-origin", "x-litellm-key-spend", "X-Envoy-Upstream-Service-Time", "x-keyway-model",
		"x-ratelimit-remaining-tokens", "anthropic-ratelimit-unified-5h-reset", "CF-Ray", "cf-cache-status", "alt-svc",
	} {
		assert.True(t, StripResponseHeader(name), name)
	}
	for _, name := range []string{"content-type", "openai-processing-ms", "openai-version", "x-request-id", "x-should-retry", "date", "location"} {
		assert.False(t, StripResponseHeader(name), name)
	}
	assert.Empty(t, RequestIDHeaders(domain.DialectOpenAI, "req_1"))
	assert.Equal(t, []Header{{Name: "request-id", Value: "req_1"}}, RequestIDHeaders(domain.DialectAnthropic, "req_1"))
}

func TestCleanQuery(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"":                          "",
		"beta=true":                 "beta=true",
		"beta":                      "beta",
		"key=kw_secret":             "",
		"key=kw_secret&beta=true":   "beta=true",
		"beta=true&model=other":     "beta=true",
		"beta=a&beta=b":             "beta=a",
		"beta=true;model=x":         "",
		"b%65ta=true":               "",
		"beta=%26model%3Dx":         "",
		"api-version=1&beta2=true":  "",
		"beta=2026-10-21_x.1&&&a=b": "beta=2026-10-21_x.1",
	} {
		assert.Equal(t, want, CleanQuery(domain.APIMessages, query), query)
		assert.Empty(t, CleanQuery(domain.APIChat, query), query)
	}
	for query, want := range map[string]string{
		"stream=true&starting_after=4&model=x&key=kw_secret":            "stream=true&starting_after=4",
		"include[]=a.b&include[]=c&include%5B%5D=d&limit=2&limit=99":    "include[]=a.b&include[]=c&include%5B%5D=d&limit=2",
		"stream=true%26key%3Dx&order=asc&after=msg_1&unknown=1&after2=": "order=asc&after=msg_1",
	} {
		assert.Equal(t, want, CleanQuery(domain.APIStored, query), query)
	}
	for query, want := range map[string]string{
		"purpose=batch&limit=2&limit=3":                                             "purpose=batch&limit=2&limit=3",
		"a=b&KEY=kw_secret&api_key=x&k%65y=y&%6Bey=z&Access_Token=t&api-key&c=%2Fd": "a=b&c=%2Fd",
		"=x&&%zz=1&a b=c&a#b=d&a\x00=e":                                             "",
	} {
		assert.Equal(t, want, CleanQuery(domain.APIRawOpenAI, query), query)
		assert.Equal(t, want, CleanQuery(domain.APIRawAnthropic, query), query)
	}
}

func TestUpstreamErrorFramesKeepTheProvidersWords(t *testing.T) {
	t.Parallel()
	told := StreamError{Type: "insufficient_quota", Code: "spend", Message: "No money."}
	c := FrameContext{RequestID: "req-1", Sequence: 3}
	assert.Equal(t, `data: {"error":{"message":"No money.","type":"insufficient_quota","param":null,"code":"spend"}}`+"\n\n",
		string(UpstreamErrorFrame(domain.APIChat, told, c)))
	assert.Equal(t, "event: error\n"+`data: {"type":"error","code":"spend","message":"No money.","param":null,"sequence_number":3,"error":{"message":"No money.","type":"insufficient_quota","param":null,"code":"spend"}}`+"\n\n",
		string(UpstreamErrorFrame(domain.APIResponses, told, c)))
	assert.Equal(t, "event: error\n"+`data: {"type":"error","error":{"type":"api_error","message":"Oh."},"request_id":"req-1"}`+"\n\n",
		string(UpstreamErrorFrame(domain.APIMessages, StreamError{Message: "Oh."}, c)))
}

func TestAbortSaysWhy(t *testing.T) {
	t.Parallel()
	late := &domain.Error{Code: domain.CodeUpstreamTimeout, Message: "Too late."}
	w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatSSE})
	w.Write([]byte(`data: {"choices":[`))
	assert.Equal(t, "\n\n"+`data: {"error":{"message":"Too late.","type":"server_error","param":null,"code":"upstream_timeout"}}`+"\n\n", string(w.Abort(late)))
	w = NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatSSE})
	w.Write([]byte("data: [DONE]\n\n"))
	assert.Empty(t, w.Abort(late), "it had its end")
	w = NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatJSON})
	assert.False(t, w.AtBoundary(), "a document has no place for a heartbeat")
	assert.Empty(t, w.Abort(late))
}
