package sdk_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyway/e2e/fakeprovider"
	"keyway/e2e/sdk"
	"keyway/e2e/sdk/sdkcase"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "sk-fake"

// expectation is a case and what every SDK must make of it.
type expectation struct {
	sdk.Case
	text, finish string
	counts       sdkcase.Counts
	noUsage      bool
	// classes are the error's class in Python, Node and Go; empty for success.
	classes map[sdk.Lang]string
	// err holds the fields of the error that every SDK offers here; a field
	// that is "" is not compared.
	err sdkcase.Error
	// check is for what is particular; nil checks no more.
	check func(t *testing.T, r sdk.Result)
}

func ptr[T any](v T) *T { return &v }

func same(class, goType string) map[sdk.Lang]string {
	return map[sdk.Lang]string{sdk.Python: class, sdk.Node: class, sdk.Go: goType}
}

const (
	goOpenAI    = "*openai.Error"
	goAnthropic = "*anthropic.Error"
)

// successes are answers that work.
func successes() []expectation {
	two := sdkcase.Counts{Input: 2, Output: 8}
	text := fakeprovider.Text(8)
	tool := func(t *testing.T, r sdk.Result) {
		t.Helper()
		assert.Equal(t, []sdkcase.ToolCall{{Name: "get_weather", Arguments: `{"city":"Paris"}`}}, r.ToolCalls)
	}
	streamed := func(chunks int) func(*testing.T, sdk.Result) {
		return func(t *testing.T, r sdk.Result) {
			t.Helper()
			assert.Equal(t, chunks, r.Chunks)
			assert.Positive(t, r.FirstChunkMs)
		}
	}
	return []expectation{
		{Case: sdk.Case{Name: "chat", API: sdkcase.Chat}, text: text, finish: "stop", counts: two, check: func(t *testing.T, r sdk.Result) {
			t.Helper()
			assert.Equal(t, "m1", r.Model)
			assert.NotEmpty(t, r.Headers["x-request-id"])
			assert.Equal(t, 1, r.Attempts)
		}},
		{Case: sdk.Case{Name: "chat with system, cap and n", API: sdkcase.Chat, System: "be kind", MaxTokens: 3, N: 2}, text: fakeprovider.Text(3), finish: "length", counts: sdkcase.Counts{Input: 4, Output: 6}},
		{Case: sdk.Case{Name: "chat tools", API: sdkcase.Chat, Tools: true}, finish: "tool_calls", counts: two, check: tool},
		{Case: sdk.Case{Name: "chat stream", API: sdkcase.Chat, Stream: true}, text: text, finish: "stop", noUsage: true, check: streamed(10)},
		{Case: sdk.Case{Name: "chat stream with usage", API: sdkcase.Chat, Stream: true, IncludeUsage: ptr(true)}, text: text, finish: "stop", counts: two, check: streamed(11)},
		{Case: sdk.Case{Name: "chat stream without usage", API: sdkcase.Chat, Stream: true, IncludeUsage: ptr(false)}, text: text, finish: "stop", noUsage: true},
		{Case: sdk.Case{Name: "chat stream tools", API: sdkcase.Chat, Stream: true, Tools: true}, finish: "tool_calls", noUsage: true, check: tool},
		{Case: sdk.Case{Name: "completions", API: sdkcase.Completions}, text: text, finish: "stop", counts: two},
		{Case: sdk.Case{Name: "completions stream", API: sdkcase.Completions, Stream: true, IncludeUsage: ptr(true)}, text: text, finish: "stop", counts: two},
		{Case: sdk.Case{Name: "responses", API: sdkcase.Responses}, text: text, finish: "completed", counts: two},
		{Case: sdk.Case{Name: "responses stream", API: sdkcase.Responses, Stream: true}, text: text, finish: "completed", counts: two},
		{Case: sdk.Case{Name: "responses stream incomplete", API: sdkcase.Responses, Stream: true, MaxTokens: 3}, text: fakeprovider.Text(3), finish: "max_output_tokens", counts: sdkcase.Counts{Input: 2, Output: 3}},
		{Case: sdk.Case{Name: "responses tools", API: sdkcase.Responses, Tools: true}, finish: "completed", counts: two, check: tool},
		{Case: sdk.Case{Name: "responses stream tools", API: sdkcase.Responses, Stream: true, Tools: true}, finish: "completed", counts: two, check: tool},
		{Case: sdk.Case{Name: "messages", API: sdkcase.Messages, System: "be kind"}, text: text, finish: "end_turn", counts: sdkcase.Counts{Input: 4, Output: 8}, check: func(t *testing.T, r sdk.Result) {
			t.Helper()
			assert.NotEmpty(t, r.Headers["request-id"])
		}},
		{Case: sdk.Case{Name: "messages stream", API: sdkcase.Messages, Stream: true, MaxTokens: 3}, text: fakeprovider.Text(3), finish: "max_tokens", counts: sdkcase.Counts{Input: 2, Output: 3}},
		{Case: sdk.Case{Name: "messages tools", API: sdkcase.Messages, Tools: true}, finish: "tool_use", counts: two, check: tool},
		{Case: sdk.Case{Name: "messages stream tools", API: sdkcase.Messages, Stream: true, Tools: true}, finish: "tool_use", counts: two, check: tool},
		{Case: sdk.Case{Name: "messages stream with cache", API: sdkcase.Messages, Stream: true, Prompt: `[[fake:{"usage":{"input_uncached":10,"cache_read":90,"cache_write":7,"cache_write_1h":3,"output":20}}]]`}, text: text, finish: "end_turn", counts: sdkcase.Counts{Input: 10, CacheRead: 90, CacheWrite: 7, Output: 20}},
		{Case: sdk.Case{Name: "chat with cache and reasoning", API: sdkcase.Chat, Prompt: `[[fake:{"usage":{"input_uncached":10,"cache_read":90,"output":20,"reasoning":15}}]]`}, text: text, finish: "stop", counts: sdkcase.Counts{Input: 100, CacheRead: 90, Output: 20, Reasoning: 15}},
		{Case: sdk.Case{Name: "count tokens", API: sdkcase.CountTokens}, counts: sdkcase.Counts{Input: 2}},
		{Case: sdk.Case{Name: "embeddings", API: sdkcase.Embeddings, Inputs: []string{"one", "two three"}, Dimensions: 4}, counts: sdkcase.Counts{Input: 3}, check: vectors(1, 2)},
		{Case: sdk.Case{Name: "embeddings float", API: sdkcase.Embeddings, Inputs: []string{"one"}, Dimensions: 4, EncodingFormat: "float"}, counts: sdkcase.Counts{Input: 1}, check: vectors(1)},
		{Case: sdk.Case{Name: "cancel a chat", API: sdkcase.Chat, Stream: true, CancelAfter: 3, Prompt: `[[fake:{"pauses_ms":{"3":60000}}]]`}, text: fakeprovider.Text(2), noUsage: true, check: cancelled},
		{Case: sdk.Case{Name: "cancel a response", API: sdkcase.Responses, Stream: true, CancelAfter: 5, Prompt: `[[fake:{"pauses_ms":{"5":60000}}]]`}, text: fakeprovider.Text(1), noUsage: true, check: cancelled},
		{Case: sdk.Case{Name: "retry", API: sdkcase.Chat, Prompt: `[[fake:{"status":500,"headers":{"retry-after-ms":"1"}}]]`, MaxRetries: 2}, noUsage: true, classes: same("InternalServerError", goOpenAI), check: func(t *testing.T, r sdk.Result) {
			t.Helper()
			assert.Equal(t, 3, r.Attempts)
		}},
	}
}

func cancelled(t *testing.T, r sdk.Result) {
	t.Helper()
	assert.True(t, r.Cancelled)
	assert.Less(t, r.Ms, 50_000.0, "the SDK did not wait for the rest")
}

// vectors checks the embeddings of inputs of those token counts.
func vectors(tokens ...int64) func(*testing.T, sdk.Result) {
	return func(t *testing.T, r sdk.Result) {
		t.Helper()
		require.Len(t, r.Embeddings, len(tokens))
		for i, n := range tokens {
			for j, v := range fakeprovider.Vector(n, 4) {
				assert.InDelta(t, v, r.Embeddings[i][j], 1e-9)
			}
		}
	}
}

// failures are answers that the SDKs turn into errors.
func failures() []expectation {
	prompt := func(script string) string { return "[[fake:" + script + "]]" }
	stream := same("APIError", "*ssestream.StreamError")
	return []expectation{
		{
			Case: sdk.Case{Name: "chat bad key", API: sdkcase.Chat, APIKey: "sk-wrong"}, classes: same("AuthenticationError", goOpenAI),
			err: sdkcase.Error{Status: 401, Type: "invalid_request_error", Code: "invalid_api_key", Message: "Incorrect API key provided."},
		},
		{
			Case: sdk.Case{Name: "messages bad key", API: sdkcase.Messages, APIKey: "sk-wrong"}, classes: same("AuthenticationError", goAnthropic),
			err: sdkcase.Error{Status: 401, Type: "authentication_error", Message: "Incorrect API key provided."},
		},
		{
			Case: sdk.Case{Name: "chat unknown model", API: sdkcase.Chat, Prompt: prompt(`{"fail":"model_not_found"}`)}, classes: same("NotFoundError", goOpenAI),
			err: sdkcase.Error{Status: 404, Code: "model_not_found"},
		},
		{
			Case: sdk.Case{Name: "chat rate limit", API: sdkcase.Chat, Stream: true, Prompt: prompt(`{"fail":"rate_limit_exceeded"}`)}, classes: same("RateLimitError", goOpenAI),
			err: sdkcase.Error{Status: 429, Code: "rate_limit_exceeded"},
		},
		{
			Case: sdk.Case{Name: "responses overloaded", API: sdkcase.Responses, Prompt: prompt(`{"fail":"overloaded"}`)}, classes: same("InternalServerError", goOpenAI),
			err: sdkcase.Error{Status: 503, Type: "service_unavailable_error"},
		},
		{
			Case: sdk.Case{Name: "messages overloaded", API: sdkcase.Messages, Stream: true, Prompt: prompt(`{"fail":"overloaded"}`)}, classes: same("OverloadedError", goAnthropic),
			err: sdkcase.Error{Status: 529, Type: "overloaded_error"},
		},
		{
			Case: sdk.Case{Name: "messages out of money", API: sdkcase.Messages, Prompt: prompt(`{"fail":"insufficient_quota"}`)}, classes: same("EnforcedSpendLimitReachedError", goAnthropic),
			err: sdkcase.Error{Status: 429, Code: "enforced_spend_limit_reached"},
		},
		{
			Case: sdk.Case{Name: "embeddings bad request", API: sdkcase.Embeddings, Prompt: prompt(`{"status":400}`)}, classes: same("BadRequestError", goOpenAI),
			err: sdkcase.Error{Status: 400},
		},
		{
			Case: sdk.Case{Name: "chat error in the stream", API: sdkcase.Chat, Stream: true, Prompt: prompt(`{"error":{"after_frames":3,"message":"boom","type":"server_error","code":"c1"}}`)}, text: fakeprovider.Text(2), classes: stream,
			err: sdkcase.Error{Type: "server_error", Code: "c1", Message: "boom"},
		},
		{
			Case: sdk.Case{Name: "responses error in the stream", API: sdkcase.Responses, Stream: true, Prompt: prompt(`{"error":{"after_frames":5,"message":"boom","form":"both"}}`)}, text: fakeprovider.Text(1), classes: stream,
			err: sdkcase.Error{Message: "boom"},
		},
		{
			Case: sdk.Case{Name: "messages error in the stream", API: sdkcase.Messages, Stream: true, Prompt: prompt(`{"error":{"after_frames":4,"message":"boom"}}`)}, text: fakeprovider.Text(1),
			classes: map[sdk.Lang]string{sdk.Python: "APIStatusError", sdk.Node: "APIError", sdk.Go: goAnthropic},
			err:     sdkcase.Error{Type: "overloaded_error", Message: "boom"},
		},
		{
			Case: sdk.Case{Name: "chat reset", API: sdkcase.Chat, Stream: true, Prompt: prompt(`{"reset_after":{"frames":3}}`)}, text: fakeprovider.Text(2),
			classes: map[sdk.Lang]string{sdk.Python: "APIConnectionError", sdk.Node: "TypeError", sdk.Go: "*net.OpError"},
		},
		{
			Case:    sdk.Case{Name: "chat timeout", API: sdkcase.Chat, TimeoutSeconds: 0.3, Prompt: prompt(`{"delay_headers_ms":60000}`)},
			classes: map[sdk.Lang]string{sdk.Python: "APITimeoutError", sdk.Node: "APIConnectionTimeoutError", sdk.Go: "context.deadlineExceededError"},
		},
	}
}

// runAll runs the cases of all expectations with lang, or skips the test.
func runAll(t *testing.T, lang sdk.Lang, all []expectation) []sdk.Result {
	t.Helper()
	provider, err := fakeprovider.New(fakeprovider.Options{Faces: []fakeprovider.FaceOptions{{Name: "a", WantKey: key}}})
	require.NoError(t, err)
	require.NoError(t, provider.Start())
	t.Cleanup(provider.Close)
	cases := make([]sdk.Case, len(all))
	for i, e := range all {
		cases[i] = e.Case
		if e.Prompt == "" {
			cases[i].Prompt = "one two"
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	results, err := sdk.Run(ctx, lang, sdk.Env{BaseURL: provider.Face("a").URL(), APIKey: key, Model: "m1"}, cases)
	if errors.Is(err, sdk.ErrNoRuntime) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.Len(t, results, len(cases))
	return results
}

func TestSDKs(t *testing.T) {
	t.Parallel()
	for _, lang := range sdk.Langs() {
		t.Run(string(lang), func(t *testing.T) {
			t.Parallel()
			all := append(successes(), failures()...)
			for i, got := range runAll(t, lang, all) {
				want := all[i]
				t.Run(want.Name, func(t *testing.T) { want.compare(t, lang, got) })
			}
		})
	}
}

// compare checks one result.
func (want expectation) compare(t *testing.T, lang sdk.Lang, got sdk.Result) {
	t.Helper()
	assert.Equal(t, want.Name, got.Case)
	if want.text != "" || want.classes == nil {
		assert.Equal(t, want.text, got.Text)
	}
	if want.check != nil {
		want.check(t, got)
	}
	if want.classes == nil {
		assert.Nil(t, got.Error)
		assert.True(t, got.OK)
		assert.Equal(t, want.finish, got.FinishReason)
		counts, ok := got.Counts()
		assert.Equal(t, !want.noUsage, ok, "usage %s", got.Usage)
		assert.Equal(t, want.counts, counts)
		return
	}
	require.NotNil(t, got.Error)
	assert.False(t, got.OK)
	assert.Equal(t, want.classes[lang], got.Error.Class)
	for _, field := range []struct{ name, want, got string }{
		{"type", want.err.Type, got.Error.Type},
		{"code", want.err.Code, got.Error.Code},
		{"message", want.err.Message, got.Error.Message},
	} {
		if field.want != "" {
			assert.Equal(t, field.want, field.got, field.name)
		}
	}
	if want.err.Status != 0 {
		assert.Equal(t, want.err.Status, got.Error.Status)
		assert.True(t, strings.HasPrefix(got.Error.RequestID, "req_fake_"), got.Error.RequestID)
	}
}
