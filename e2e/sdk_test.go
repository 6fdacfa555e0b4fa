package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
	"keyway/e2e/sdk"
	"keyway/e2e/sdk/sdkcase"
)

// sdkUsage is what the provider reports in every case; each part is different,
// so that no two can be confused.
const sdkUsage = `[[fake:{"usage":{"input_uncached":31,"cache_read":7,"output":11,"reasoning":3},"count":5}]] hello`

// sdkSilence is the same answer with a pause in it, and a line in each event after
// which some SDKs stumble over heartbeats of another form.
const sdkSilence = `[[fake:{"usage":{"input_uncached":31,"cache_read":7,"output":11,"reasoning":3},"count":5,"interleave":"id: 7\n","pauses_ms":{"4":900}}]] hello`

// sdkThinking is silent before it begins.
const sdkThinking = `[[fake:{"usage":{"input_uncached":31,"cache_read":7,"output":11,"reasoning":3},"count":5,"interleave":"id: 7\n","delay_headers_ms":500,"delay_first_byte_ms":500}]] hello`

// sdkCases are the calls that must work as they do against the provider itself.
func sdkCases() []sdkcase.Case {
	asked, refused := true, false
	var cases []sdkcase.Case
	for _, stream := range []bool{false, true} {
		name := func(api string) string { return fmt.Sprintf("%s stream=%t", api, stream) }
		cases = append(cases,
			sdkcase.Case{Name: name("chat"), API: sdkcase.Chat, Stream: stream, Prompt: sdkUsage},
			sdkcase.Case{Name: name("completions"), API: sdkcase.Completions, Stream: stream, Prompt: sdkUsage},
			sdkcase.Case{Name: name("responses"), API: sdkcase.Responses, Stream: stream, Prompt: sdkUsage},
			sdkcase.Case{Name: name("messages"), API: sdkcase.Messages, Stream: stream, Prompt: sdkUsage},
			sdkcase.Case{Name: name("chat tools"), API: sdkcase.Chat, Stream: stream, Tools: true, Prompt: `[[fake:{"tool_call":true}]] weather`},
			sdkcase.Case{Name: name("messages tools"), API: sdkcase.Messages, Stream: stream, Tools: true, Prompt: `[[fake:{"tool_call":true}]] weather`},
		)
	}
	for _, api := range []sdkcase.API{sdkcase.Chat, sdkcase.Completions, sdkcase.Responses, sdkcase.Messages} {
		cases = append(cases,
			sdkcase.Case{Name: string(api) + " with heartbeats", API: api, Stream: true, Model: "quiet-a", Prompt: sdkSilence},
			sdkcase.Case{Name: string(api) + " with early heartbeats", API: api, Stream: true, Model: "think-a", Prompt: sdkThinking},
		)
	}
	return append(cases,
		sdkcase.Case{Name: "chat usage asked", API: sdkcase.Chat, Stream: true, IncludeUsage: &asked, Prompt: sdkUsage},
		sdkcase.Case{Name: "chat usage declined", API: sdkcase.Chat, Stream: true, IncludeUsage: &refused, Prompt: sdkUsage},
		sdkcase.Case{Name: "embeddings", API: sdkcase.Embeddings, Inputs: []string{"one two", "three"}},
		sdkcase.Case{Name: "embeddings float", API: sdkcase.Embeddings, Prompt: "one two", EncodingFormat: "float"},
		sdkcase.Case{
			Name: "chat after a failed channel", API: sdkcase.Chat, Stream: true, Model: "two",
			Prompt: `[[fake:{"only_face":"a","status":500}]] hello`,
		},
	)
}

// sdkErrors are the calls that must fail as the SDK's users know it.
func sdkErrors() []sdkcase.Case {
	var cases []sdkcase.Case
	for _, api := range []sdkcase.API{sdkcase.Chat, sdkcase.Responses, sdkcase.Messages} {
		name := func(what string) string { return fmt.Sprintf("%s %s", api, what) }
		cases = append(cases,
			sdkcase.Case{Name: name("bad key"), API: api, APIKey: "kw_wrong", Prompt: "hi", MaxRetries: 2},
			sdkcase.Case{Name: name("unknown model"), API: api, Model: "nobody", Prompt: "hi", MaxRetries: 2},
			sdkcase.Case{Name: name("provider's 400"), API: api, Prompt: `[[fake:{"status":400}]] hi`},
			sdkcase.Case{Name: name("every channel fails"), API: api, Model: "only-a", Prompt: `[[fake:{"status":503}]] hi`},
		)
	}
	return append(cases,
		sdkcase.Case{Name: "chat error in the stream", API: sdkcase.Chat, Stream: true, Prompt: `[[fake:{"error":{"after":2}}]] hi`},
		sdkcase.Case{Name: "messages error in the stream", API: sdkcase.Messages, Stream: true, Prompt: `[[fake:{"error":{"after":2}}]] hi`},
		sdkcase.Case{Name: "chat error behind heartbeats", API: sdkcase.Chat, Stream: true, Model: "think-a", Prompt: `[[fake:{"delay_headers_ms":500,"status":500}]] hi`},
		sdkcase.Case{Name: "responses error behind heartbeats", API: sdkcase.Responses, Stream: true, Model: "think-a", Prompt: `[[fake:{"delay_headers_ms":500,"status":500}]] hi`},
		sdkcase.Case{Name: "messages error behind heartbeats", API: sdkcase.Messages, Stream: true, Model: "think-a", Prompt: `[[fake:{"delay_headers_ms":500,"status":500}]] hi`},
		sdkcase.Case{Name: "responses of a dead upstream", API: sdkcase.Responses, Stream: true, Model: "dead-a", Prompt: `[[fake:{"hang_after":{"frames":3}}]] hi`},
		sdkcase.Case{Name: "chat stream without an end", API: sdkcase.Chat, Stream: true, Prompt: `[[fake:{"terminal":"none"}]] hi`},
		sdkcase.Case{Name: "responses stream without an end", API: sdkcase.Responses, Stream: true, Prompt: `[[fake:{"terminal":"none"}]] hi`},
		sdkcase.Case{Name: "messages stream without an end", API: sdkcase.Messages, Stream: true, Prompt: `[[fake:{"terminal":"none"}]] hi`},
	)
}

// The official SDKs, unmodified: what they show their users is what the
// provider said, and the ledger holds the same to the token.
func TestOfficialSDKs(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, lang := range sdk.Langs() {
		t.Run(string(lang), func(t *testing.T) {
			t.Parallel()
			key, id := s.key(t, "--identity", "wide", "--name", "sdk-"+string(lang))
			env := sdkcase.Env{BaseURL: s.ready.BaseURL, APIKey: key, Model: "m"}
			cases := sdkCases()
			results, err := sdk.Run(t.Context(), lang, env, cases)
			require.NoError(t, err)
			require.Len(t, results, len(cases))
			rows := map[string]domain.UsageRecord{}
			for _, r := range s.records(t, id, len(cases)) {
				rows[r.RequestID] = r
			}
			for i, result := range results {
				checkSDKResult(t, cases[i], result, rows)
			}
		})
	}
}

func checkSDKResult(t *testing.T, c sdkcase.Case, result sdkcase.Result, rows map[string]domain.UsageRecord) {
	t.Helper()
	require.True(t, result.OK, "%s: %+v", c.Name, result.Error)
	require.Equal(t, 1, result.Attempts, c.Name)
	row, ok := rows[requestIDOf(result)]
	require.True(t, ok, "%s: no row of request %q", c.Name, requestIDOf(result))
	require.Equal(t, domain.OutcomeSuccess, row.Outcome, c.Name)
	require.Equal(t, domain.SourceUpstream, row.Source, c.Name)
	if slices.Contains([]string{sdkUsage, sdkSilence, sdkThinking}, c.Prompt) {
		require.Equal(t, fakeprovider.Text(5), result.Text, c.Name)
		require.Equal(t, domain.Usage{InputUncached: 31, CacheRead: 7, Output: 11, Reasoning: row.Usage.Reasoning}, row.Usage, c.Name)
	}
	if c.Tools {
		require.Len(t, result.ToolCalls, 1, c.Name)
		require.Equal(t, "get_weather", result.ToolCalls[0].Name, c.Name)
		require.True(t, json.Valid([]byte(result.ToolCalls[0].Arguments)), "%s: %s", c.Name, result.ToolCalls[0].Arguments)
	}
	if c.API == sdkcase.Embeddings {
		require.Len(t, result.Embeddings, max(len(c.Inputs), 1), c.Name)
	}
	hidden := c.Stream && (c.API == sdkcase.Chat || c.API == sdkcase.Completions) && (c.IncludeUsage == nil || !*c.IncludeUsage)
	counts, shown := result.Counts()
	require.Equal(t, !hidden, shown, "%s: usage is shown to a client that would have got it: %s", c.Name, result.Usage)
	if shown {
		input := row.Usage.Input()
		if c.API == sdkcase.Messages {
			input = row.Usage.InputUncached
		}
		require.Equal(t, sdkcase.Counts{Input: input, CacheRead: row.Usage.CacheRead, CacheWrite: row.Usage.CacheWrite, Output: row.Usage.Output, Reasoning: row.Usage.Reasoning}, counts, c.Name)
	}
	if c.Model == "two" {
		require.Equal(t, []domain.Attempt{{Channel: "first", Status: 500}, {Channel: "second", Status: 200}}, row.Attempts, c.Name)
	}
}

func requestIDOf(r sdkcase.Result) string {
	if id := r.Headers["request-id"]; id != "" {
		return id
	}
	return r.Headers["x-request-id"]
}

func TestOfficialSDKsSeeErrorsTheyKnow(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, lang := range sdk.Langs() {
		t.Run(string(lang), func(t *testing.T) {
			t.Parallel()
			key, _ := s.key(t, "--identity", "wide")
			cases := sdkErrors()
			results, err := sdk.Run(t.Context(), lang, sdkcase.Env{BaseURL: s.ready.BaseURL, APIKey: key, Model: "m"}, cases)
			require.NoError(t, err)
			for i, r := range results {
				c := cases[i]
				require.False(t, r.OK, "%s: the SDK saw no error", c.Name)
				require.NotNil(t, r.Error, c.Name)
				require.Equal(t, 1, r.Attempts, "%s: an SDK must not repeat what cannot help", c.Name)
				want := map[string]int{"bad key": 401, "unknown model": 404, "provider's 400": 400, "every channel fails": 503}
				for what, status := range want {
					if c.Name == string(c.API)+" "+what {
						require.Equal(t, status, r.Error.Status, "%s: %+v", c.Name, r.Error)
						require.NotEmpty(t, r.Error.Message, c.Name)
						require.NotEmpty(t, r.Error.Type, "%s: the body is not in the dialect's shape: %+v", c.Name, r.Error)
					}
				}
			}
		})
	}
}

// The last openai-go that fell over heartbeats of other gateways reads those of
// this one, on both ways.
func TestOldGoSDKSurvivesHeartbeats(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	key, _ := s.key(t, "--identity", "wide", "--policy", "wide")
	old := filepath.Join(t.TempDir(), "oldgo")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", old, ".")
	build.Dir = filepath.Join("..", "tools", "oldgo")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for model, script := range map[string]string{
		"quiet-a": `{"count":5,"interleave":"id: 7\n","pauses_ms":{"4":900}}`,
		"think-a": `{"count":5,"delay_headers_ms":900}`,
	} {
		cmd := exec.CommandContext(t.Context(), old)
		cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "KEYWAY_BASE_URL="+s.ready.BaseURL, "KEYWAY_API_KEY="+key, "KEYWAY_BODY="+chat(model, script, `"stream":true`))
		var problem bytes.Buffer
		cmd.Stderr = &problem
		out, err := cmd.Output()
		require.NoError(t, err, "%s: %s", model, &problem)
		require.Equal(t, fakeprovider.Text(5), string(out), model)
	}
}
