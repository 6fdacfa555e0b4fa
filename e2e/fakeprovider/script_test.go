package fakeprovider_test

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/e2e/fakeprovider"
)

const (
	chatStream     = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"one two"}]}`
	chatPlain      = `{"model":"m","messages":[{"role":"user","content":"one two"}]}`
	messagesStream = `{"model":"m","stream":true,"max_tokens":99,"messages":[{"role":"user","content":"one two"}]}`
	responseStream = `{"model":"m","stream":true,"input":"one two"}`
)

// scripted sends body to path under a script.
func scripted(t *testing.T, path, body, script string) reply {
	t.Helper()
	s := start(t)
	return post(t, s.Face("a").URL()+path, body, "x-fake-script", script)
}

func TestScriptSources(t *testing.T) {
	t.Parallel()
	s := start(t, fakeprovider.FaceOptions{Name: "a"}, fakeprovider.FaceOptions{Name: "b"})
	a := s.Face("a")
	a.Script(fakeprovider.Script{Status: 500})
	a.Enqueue(fakeprovider.Script{Status: 501})
	marker := func(script string) string {
		raw, _ := json.Marshal("please [[fake:" + script + "]] now")
		return string(raw)
	}
	for n, row := range []struct {
		name, face, model, prompt, header string
		want                              int
		source                            string
	}{
		{"header wins", "a", `m@{\"status\":403}`, marker(`{"status":402}`), `{"status":401}`, 401, "header"},
		{"then the marker", "a", `m@{\"status\":403}`, marker(`{"status":402}`), ``, 402, "marker"},
		{"then the model", "a", `m@{\"status\":403}`, `"hi"`, ``, 403, "model"},
		{"then the queue", "a", `m`, `"hi"`, ``, 501, "queue"},
		{"then the sticky one", "a", `m`, `"hi"`, ``, 500, "sticky"},
		{"another face's marker", "a", `m`, marker(`{"only_face":"b","status":402}`), ``, 500, "sticky"},
		{"its own face's marker", "b", `m`, marker(`{"only_face":"b","status":402}`), ``, 402, "marker"},
		{"nothing", "b", `m`, `"hi"`, ``, 200, ""},
	} {
		var headers []string
		if row.header != "" {
			headers = []string{"x-fake-script", row.header}
		}
		got := post(t, s.Face(row.face).URL()+"/v1/chat/completions",
			`{"model":"`+row.model+`","messages":[{"role":"user","content":`+row.prompt+`}]}`, headers...)
		assert.Equal(t, row.want, got.StatusCode, row.name)
		assert.Equal(t, row.source, ended(t, s, n+1).Script, row.name)
		assert.Equal(t, "m", ended(t, s, n+1).Model, row.name)
	}
	a.Reset()
	assert.Equal(t, 200, post(t, a.URL()+"/v1/chat/completions", chatPlain).StatusCode)
}

func TestMarkerPlaces(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, row := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"[[fake:{\"status\":418}]]"}]},{"role":"assistant","content":"[[fake:{\"status\":500}]]"}]}`},
		{"/v1/completions", `{"model":"m","prompt":["[[fake:{\"status\":418}]]"]}`},
		{"/v1/responses", `{"model":"m","input":"[[fake:{\"status\":418}]]"}`},
		{"/v1/responses", `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"[[fake:{\"status\":418}]]"}]}]}`},
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":"[[fake:{\"status\":418}]]"}]}`},
		{"/v1/embeddings", `{"model":"m","input":"[[fake:{\"status\":418}]]"}`},
	} {
		assert.Equal(t, 418, post(t, s.Face("a").URL()+row.path, row.body).StatusCode, row.body)
	}
}

func TestDelays(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.Face("a").Script(fakeprovider.Script{DelayHeadersMs: 60, DelayFirstByteMs: 60, DelayBetweenMs: 5, PausesMs: map[int]int{3: 60}})
	begin := time.Now()
	got := post(t, s.Face("a").URL()+"/v1/chat/completions", chatStream)
	// Lower bounds only: a busy machine may take longer, never less.
	assert.GreaterOrEqual(t, time.Since(begin), 180*time.Millisecond)
	rec := ended(t, s, 1)
	assert.GreaterOrEqual(t, rec.HeadersAt.Sub(rec.At), 60*time.Millisecond)
	assert.GreaterOrEqual(t, rec.FirstByteAt.Sub(rec.HeadersAt), 60*time.Millisecond)
	assert.GreaterOrEqual(t, rec.EndedAt.Sub(rec.FirstByteAt), 100*time.Millisecond)
	assert.Equal(t, fakeprovider.EndCompleted, rec.End)
	assert.EqualValues(t, 12, rec.SentFrames)
	sum := sha256.Sum256(got.body)
	assert.Equal(t, hex.EncodeToString(sum[:]), rec.SentSHA256)
	assert.EqualValues(t, len(got.body), rec.SentBytes)
}

func TestBodies(t *testing.T) {
	t.Parallel()
	got := scripted(t, "/v1/chat/completions", chatPlain, `{"status":207,"headers":{"x-one":"1","x-two":["a","b"],"content-type":"text/plain"},"body":"raw {\u0000"}`)
	assert.Equal(t, 207, got.StatusCode)
	assert.Equal(t, "raw {\x00", string(got.body))
	assert.Equal(t, "text/plain", got.Header.Get("Content-Type"))
	assert.Equal(t, []string{"a", "b"}, got.Header.Values("X-Two"))
	assert.EqualValues(t, 6, got.ContentLength)

	got = scripted(t, "/v1/chat/completions", chatPlain, `{"body":{"base64":"/wA="}}`)
	assert.Equal(t, []byte{0xff, 0}, got.body)

	got = scripted(t, "/v1/chat/completions", chatPlain, `{"body":{"pattern":"abc","size":5}}`)
	assert.Equal(t, "abcab", string(got.body))

	got = scripted(t, "/v1/chat/completions", chatStream, `{"chunks":["data: 1\r\n\r\n",{"base64":"/w=="},"end"]}`)
	assert.Equal(t, "data: 1\r\n\r\n\xffend", string(got.body))
	assert.Equal(t, "text/event-stream", got.Header.Get("Content-Type"))
}

func TestContentOptions(t *testing.T) {
	t.Parallel()
	got := scripted(t, "/v1/chat/completions", chatPlain, `{"count":3,"finish_reason":"content_filter"}`)
	v := decode(t, string(got.body))
	assert.Equal(t, fakeprovider.Text(3), at(v, "choices", 0, "message", "content"))
	assert.Equal(t, "content_filter", at(v, "choices", 0, "finish_reason"))

	got = scripted(t, "/v1/messages", strings.Replace(messagesStream, `"stream":true,`, "", 1), `{"answer_text":"a  b 中文\n"}`)
	assert.Equal(t, "a  b 中文\n", at(decode(t, string(got.body)), "content", 0, "text"))

	got = scripted(t, "/v1/chat/completions", chatStream, `{"delta_bytes":100000,"interleave":": wait\n\n"}`)
	assert.Greater(t, len(got.body), 100000)
	assert.Equal(t, 12, strings.Count(string(got.body), ": wait\n\n"))
}

func TestUsageForms(t *testing.T) {
	t.Parallel()
	usage := `"usage":{"input_uncached":10,"cache_read":90,"cache_write":8,"cache_write_1h":3,"output":16,"reasoning":6}`
	type seen struct{ input, output []any }
	read := func(t *testing.T, r reply, path []any, in, out string) seen {
		var s seen
		_, data := sse(t, r.body)
		for _, d := range data {
			if d == "[DONE]" {
				continue
			}
			v := decode(t, d)
			u, _ := at(v, path...).(map[string]any)
			if u == nil && path[0] == "message" {
				u, _ = v["usage"].(map[string]any)
			}
			if u != nil {
				s.input, s.output = append(s.input, u[in]), append(s.output, u[out])
			}
		}
		return s
	}
	growing := func(values ...float64) []any {
		var out []any
		for _, v := range values {
			out = append(out, v)
		}
		return out
	}
	for _, row := range []struct {
		form       string
		chatIn     []any
		chatOut    []any
		messageOut []any
	}{
		{"", growing(108), growing(16), growing(1, 16)},
		{"none", nil, nil, nil},
		{"always", growing(108), growing(16), growing(1, 16)},
		{"every", growing(108, 108, 108, 108, 108, 108, 108, 108, 108, 108), growing(0, 2, 4, 6, 8, 10, 12, 14, 16, 16), growing(1, 2, 4, 6, 8, 10, 12, 14, 16, 16)},
		{"early", growing(108), growing(16), growing(16)},
		{"zero", growing(0), growing(0), growing(0, 0)},
		{"empty", []any{nil}, []any{nil}, []any{nil, nil}},
		{"null", nil, nil, nil},
		{"with_finish", growing(108), growing(16), growing(1, 16)},
		{"no_choices", growing(108), growing(16), growing(1, 16)},
		{"repeat", growing(108), growing(16), growing(1, 16)},
	} {
		t.Run("form "+row.form, func(t *testing.T) {
			script := fmt.Sprintf(`{"usage_form":%q,%s}`, row.form, usage)
			chat := read(t, scripted(t, "/v1/chat/completions", chatStream, script), []any{"usage"}, "prompt_tokens", "completion_tokens")
			assert.Equal(t, row.chatIn, chat.input)
			assert.Equal(t, row.chatOut, chat.output)
			messages := read(t, scripted(t, "/v1/messages", messagesStream, script), []any{"message", "usage"}, "input_tokens", "output_tokens")
			assert.Equal(t, row.messageOut, messages.output)
		})
	}
	t.Run("details", func(t *testing.T) {
		script := "{" + usage + "}"
		chat := decode(t, string(scripted(t, "/v1/chat/completions", chatPlain, script).body))
		assert.EqualValues(t, 90, at(chat, "usage", "prompt_tokens_details", "cached_tokens"))
		assert.EqualValues(t, 6, at(chat, "usage", "completion_tokens_details", "reasoning_tokens"))
		message := decode(t, string(scripted(t, "/v1/messages", strings.Replace(messagesStream, `"stream":true,`, "", 1), script).body))
		assert.EqualValues(t, 10, at(message, "usage", "input_tokens"))
		assert.EqualValues(t, 3, at(message, "usage", "cache_creation", "ephemeral_1h_input_tokens"))
	})
	t.Run("raw", func(t *testing.T) {
		got := decode(t, string(scripted(t, "/v1/chat/completions", chatPlain, `{"usage_raw":{"odd":[1]}}`).body))
		assert.Equal(t, map[string]any{"odd": []any{1.0}}, got["usage"])
	})
}

func TestTerminals(t *testing.T) {
	t.Parallel()
	last := func(t *testing.T, r reply) string {
		_, data := sse(t, r.body)
		return data[len(data)-1]
	}
	for _, row := range []struct{ name, path, body, terminal, want, wantNot string }{
		{"chat no_done", "/v1/chat/completions", chatStream, "no_done", `"choices":[]`, "[DONE]"},
		{"chat none", "/v1/chat/completions", chatStream, "none", `"content":" way"`, "finish_reason\":\"stop"},
		{"messages no_done", "/v1/messages", messagesStream, "no_done", `"message_delta"`, "message_stop"},
		{"messages none", "/v1/messages", messagesStream, "none", `"content_block_delta"`, "message_delta"},
		{"responses none", "/v1/responses", responseStream, "none", `"response.output_item.done"`, "response.completed"},
		{"responses failed", "/v1/responses", responseStream, "failed", `"response.failed"`, "response.completed"},
		{"responses incomplete", "/v1/responses", responseStream, "incomplete", `"response.incomplete"`, "response.completed"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := scripted(t, row.path, row.body, `{"terminal":"`+row.terminal+`"}`)
			require.NoError(t, got.err, "the body ends properly")
			assert.Contains(t, last(t, got), row.want)
			assert.NotContains(t, string(got.body), row.wantNot)
		})
	}
}

func TestInBandErrors(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, path, body, form string
		path1, path2           []any
	}{
		{"chat", "/v1/chat/completions", chatStream, "", []any{"error", "message"}, []any{"error", "code"}},
		{"chat bare", "/v1/chat/completions", chatStream, "bare", []any{"message"}, []any{"code"}},
		{"responses flat", "/v1/responses", responseStream, "flat", []any{"message"}, []any{"code"}},
		{"responses nested", "/v1/responses", responseStream, "nested", []any{"error", "message"}, []any{"error", "code"}},
		{"responses both", "/v1/responses", responseStream, "both", []any{"message"}, []any{"error", "code"}},
		{"messages", "/v1/messages", messagesStream, "", []any{"error", "message"}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := scripted(t, row.path, row.body, `{"error":{"after_frames":2,"message":"boom","code":"c1","type":"t1","form":"`+row.form+`"}}`)
			assert.Equal(t, 200, got.StatusCode)
			names, data := sse(t, got.body)
			require.Len(t, data, 3, "two frames and the error")
			v := decode(t, data[2])
			assert.Equal(t, "boom", at(v, row.path1...))
			if row.path2 != nil {
				assert.Equal(t, "c1", at(v, row.path2...))
			}
			if row.path == "/v1/responses" {
				assert.EqualValues(t, 2, v["sequence_number"])
			}
			if row.path != "/v1/chat/completions" {
				assert.Equal(t, "error", names[2])
			}
		})
	}
	got := scripted(t, "/v1/chat/completions", chatStream, `{"error":{"continue":true}}`)
	assert.Contains(t, string(got.body), "[DONE]")
}

func TestFailures(t *testing.T) {
	t.Parallel()
	type row struct {
		script                   string
		openAI, anthropic        int
		openAIType, openAICode   string
		anthropicType, moneyCode string
	}
	for _, row := range []row{
		{`{"fail":"rate_limit_exceeded"}`, 429, 429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error", ""},
		{`{"fail":"insufficient_quota"}`, 429, 429, "insufficient_quota", "insufficient_quota", "rate_limit_error", "enforced_spend_limit_reached"},
		{`{"fail":"credit_balance_exhausted"}`, 429, 429, "insufficient_quota", "credit_balance_exhausted", "rate_limit_error", "enforced_spend_limit_reached"},
		{`{"fail":"overloaded"}`, 503, 529, "service_unavailable_error", "server_is_overloaded", "overloaded_error", ""},
		{`{"fail":"server_error","status":502}`, 502, 502, "server_error", "server_error", "api_error", ""},
		{`{"status":404}`, 404, 404, "invalid_request_error", "model_not_found", "not_found_error", ""},
		{`{"status":418}`, 418, 418, "invalid_request_error", "invalid_value", "invalid_request_error", ""},
	} {
		t.Run(row.script, func(t *testing.T) {
			got := scripted(t, "/v1/chat/completions", chatStream, row.script)
			assert.Equal(t, row.openAI, got.StatusCode)
			assert.Equal(t, "application/json", got.Header.Get("Content-Type"))
			v := decode(t, string(got.body))
			assert.Equal(t, row.openAIType, at(v, "error", "type"))
			assert.Equal(t, row.openAICode, at(v, "error", "code"))
			got = scripted(t, "/v1/messages", messagesStream, row.script)
			assert.Equal(t, row.anthropic, got.StatusCode)
			v = decode(t, string(got.body))
			assert.Equal(t, row.anthropicType, at(v, "error", "type"))
			assert.Equal(t, got.Header.Get("Request-Id"), v["request_id"])
			code, _ := at(v, "error", "details", "error_code").(string)
			assert.Equal(t, row.moneyCode, code)
		})
	}
	got := scripted(t, "/v1/chat/completions", chatPlain, `{"fail":"html"}`)
	assert.Equal(t, 502, got.StatusCode)
	assert.Contains(t, string(got.body), "<html>")
}

func TestRetryAfterForms(t *testing.T) {
	t.Parallel()
	get := func(t *testing.T, form, path, body string) reply {
		return scripted(t, path, body, `{"fail":"rate_limit_exceeded","retry_after":{"seconds":390,"form":"`+form+`"}}`)
	}
	chat := func(t *testing.T, form string) reply { return get(t, form, "/v1/chat/completions", chatPlain) }
	assert.Equal(t, "390", chat(t, "seconds").Header.Get("Retry-After"))
	assert.Equal(t, "390000", chat(t, "ms").Header.Get("Retry-After-Ms"))
	assert.Equal(t, "6m30s", chat(t, "duration").Header.Get("Retry-After"))
	assert.Equal(t, "6m30s", chat(t, "reset").Header.Get("X-Ratelimit-Reset-Tokens"))
	body := chat(t, "body")
	assert.Empty(t, body.Header.Get("Retry-After"))
	assert.Contains(t, string(body.body), "Please try again in 6m30s.")

	near := func(at time.Time) {
		t.Helper()
		assert.WithinDuration(t, time.Now().Add(390*time.Second), at, time.Minute)
	}
	date, err := http.ParseTime(chat(t, "date").Header.Get("Retry-After"))
	require.NoError(t, err)
	near(date)
	seconds, err := strconv.ParseInt(chat(t, "epoch").Header.Get("Retry-After"), 10, 64)
	require.NoError(t, err)
	near(time.Unix(seconds, 0))
	millis, err := strconv.ParseInt(chat(t, "epoch_ms").Header.Get("Retry-After"), 10, 64)
	require.NoError(t, err)
	near(time.UnixMilli(millis))
	reset, err := time.Parse(time.RFC3339, get(t, "reset", "/v1/messages", messagesStream).Header.Get("Anthropic-Ratelimit-Tokens-Reset"))
	require.NoError(t, err)
	near(reset)
}

func TestLineEndings(t *testing.T) {
	t.Parallel()
	lf := string(scripted(t, "/v1/messages", messagesStream, `{}`).body)
	assert.Equal(t, strings.ReplaceAll(lf, "\n", "\r\n"), string(scripted(t, "/v1/messages", messagesStream, `{"line_ending":"crlf"}`).body))
	assert.Equal(t, strings.ReplaceAll(lf, "\n", "\r"), string(scripted(t, "/v1/messages", messagesStream, `{"line_ending":"cr"}`).body))
}

func TestGzip(t *testing.T) {
	t.Parallel()
	for _, body := range []string{chatPlain, chatStream} {
		s := start(t)
		c := &http.Client{Transport: &http.Transport{DisableCompression: true}}
		t.Cleanup(c.CloseIdleConnections)
		plain := send(t, c, s.Face("a").URL()+"/v1/chat/completions", body, "x-fake-script", `{}`)
		packed := send(t, c, s.Face("a").URL()+"/v1/chat/completions", body, "x-fake-script", `{"gzip":true}`)
		require.Equal(t, "gzip", packed.Header.Get("Content-Encoding"))
		zr, err := gzip.NewReader(strings.NewReader(string(packed.body)))
		require.NoError(t, err)
		raw, err := io.ReadAll(zr)
		require.NoError(t, err)
		assert.Equal(t, strings.ReplaceAll(string(plain.body), "fake-1", "fake-2"), string(raw))
	}
}

func TestContentLength(t *testing.T) {
	t.Parallel()
	auto := scripted(t, "/v1/chat/completions", chatPlain, `{}`)
	assert.EqualValues(t, len(auto.body), auto.ContentLength)
	assert.EqualValues(t, -1, scripted(t, "/v1/chat/completions", chatPlain, `{"content_length":"none","cut_every":50}`).ContentLength)
	assert.EqualValues(t, -1, scripted(t, "/v1/chat/completions", chatStream, `{}`).ContentLength)
	set := scripted(t, "/v1/chat/completions", chatStream, `{"content_length":"set"}`)
	assert.EqualValues(t, len(set.body), set.ContentLength)
	long := scripted(t, "/v1/chat/completions", chatPlain, `{"content_length":"long"}`)
	require.ErrorIs(t, long.err, io.ErrUnexpectedEOF)
	assert.EqualValues(t, len(long.body)+10, long.ContentLength)
}

func TestEchoBody(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte(chatPlain))
	got := scripted(t, "/v1/chat/completions", chatPlain, `{"echo_body":true}`)
	assert.Equal(t, hex.EncodeToString(sum[:]), got.Header.Get("X-Fake-Body-Sha256"))
}

func TestScriptJSONRoundTrip(t *testing.T) {
	t.Parallel()
	body := fakeprovider.Bytes("a\xffb")
	want := fakeprovider.Script{Status: 429, Body: &body, Headers: map[string]fakeprovider.Lines{"x": {"1", "2"}}, CutAt: []int{1}}
	raw, err := json.Marshal(want)
	require.NoError(t, err)
	got, err := fakeprovider.ParseScript(raw)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestParseScriptRefuses(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ raw, want string }{
		{`{"x":1}`, "unknown field"},
		{`{} {}`, "more than one"},
		{`{"usage_form":"maybe"}`, `usage_form: unknown value "maybe"`},
		{`{"fail":"maybe"}`, "fail"},
		{`{"terminal":"x"}`, "terminal"},
		{`{"line_ending":"x"}`, "line_ending"},
		{`{"content_length":"x"}`, "content_length"},
		{`{"retry_after":{"form":"x"}}`, "retry_after.form"},
		{`{"error":{"form":"x"}}`, "error.form"},
		{`{"status":100}`, "status"},
		{`{"body":{"size":"x"}}`, "bytes"},
		{`{"reset_after":{},"drop_after":{}}`, "only one"},
	} {
		_, err := fakeprovider.ParseScript([]byte(row.raw))
		assert.ErrorContains(t, err, row.want)
	}
}
