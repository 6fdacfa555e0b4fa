package fakeprovider_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A domain.Usage can be compared with what the provider said by conversion alone.
var _ = domain.Usage(fakeprovider.Usage{})

const key = "sk-fake"

// start runs a server until the test ends.
func start(t *testing.T, faces ...fakeprovider.FaceOptions) *fakeprovider.Server {
	t.Helper()
	if faces == nil {
		faces = []fakeprovider.FaceOptions{{Name: "a"}}
	}
	s, err := fakeprovider.New(fakeprovider.Options{Faces: faces})
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(s.Close)
	return s
}

// client returns an HTTP/1.1 client whose connections end with the test.
func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// reply is a whole response.
type reply struct {
	*http.Response
	body []byte
	err  error
}

// post sends body to a path of the first face and reads the whole answer.
func post(t *testing.T, url, body string, headers ...string) reply {
	t.Helper()
	return send(t, client(t), url, body, headers...)
}

func send(t *testing.T, c *http.Client, url, body string, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if strings.Contains(url, "/messages") {
		req.Header.Set("Anthropic-Version", "2026-10-21")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return reply{Response: resp, body: raw, err: err}
}

// ended waits for the n-th record to end and returns it.
func ended(t *testing.T, s *fakeprovider.Server, n int) fakeprovider.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	records, err := s.WaitRecords(ctx, func(r []fakeprovider.Record) bool {
		return len(r) >= n && r[n-1].End != fakeprovider.EndRunning
	})
	require.NoError(t, err)
	return records[n-1]
}

// sse splits a stream with LF line ends into events (name, data).
func sse(t *testing.T, raw []byte) (names []string, data []string) {
	t.Helper()
	for _, frame := range strings.Split(strings.TrimSuffix(string(raw), "\n\n"), "\n\n") {
		name := ""
		for _, line := range strings.Split(frame, "\n") {
			if v, ok := strings.CutPrefix(line, "event: "); ok {
				name = v
			} else if v, ok := strings.CutPrefix(line, "data: "); ok {
				names, data = append(names, name), append(data, v)
			}
		}
	}
	return names, data
}

func decode(t *testing.T, raw string) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(raw), &v), raw)
	return v
}

// at walks a decoded value by keys and indexes.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func TestChatAnswer(t *testing.T) {
	t.Parallel()
	s := start(t)
	url := s.Face("a").URL() + "/v1/chat/completions"

	got := decode(t, string(post(t, url, `{"model":"m1","messages":[{"role":"system","content":"be kind"},{"role":"user","content":[{"type":"text","text":"one two three"}]}]}`).body))
	assert.Equal(t, "m1", got["model"])
	assert.Equal(t, fakeprovider.Text(8), at(got, "choices", 0, "message", "content"))
	assert.Equal(t, "stop", at(got, "choices", 0, "finish_reason"))
	assert.EqualValues(t, 5, at(got, "usage", "prompt_tokens"))
	assert.EqualValues(t, 8, at(got, "usage", "completion_tokens"))

	t.Run("output cap and n", func(t *testing.T) {
		got := decode(t, string(post(t, url, `{"model":"m","max_completion_tokens":3,"max_tokens":100,"n":2,"messages":[{"role":"user","content":"hi"}]}`).body))
		assert.Equal(t, fakeprovider.Text(3), at(got, "choices", 1, "message", "content"))
		assert.Equal(t, "length", at(got, "choices", 0, "finish_reason"))
		assert.EqualValues(t, 6, at(got, "usage", "completion_tokens"))
	})
	t.Run("tool call", func(t *testing.T) {
		got := decode(t, string(post(t, url, `{"model":"m","tool_choice":"required","tools":[{"type":"function","function":{"name":"weather"}}],"messages":[{"role":"user","content":"hi"}]}`).body))
		assert.Equal(t, "weather", at(got, "choices", 0, "message", "tool_calls", 0, "function", "name"))
		assert.Equal(t, `{"city":"Paris"}`, at(got, "choices", 0, "message", "tool_calls", 0, "function", "arguments"))
		assert.Equal(t, "tool_calls", at(got, "choices", 0, "finish_reason"))
	})
}

func TestChatStream(t *testing.T) {
	t.Parallel()
	s := start(t)
	url := s.Face("a").URL() + "/v1/chat/completions"
	for _, row := range []struct {
		name, options string
		wantUsage     int
	}{
		{"usage not asked", ``, 0},
		{"usage refused", `"stream_options":{"include_usage":false},`, 0},
		{"usage asked", `"stream_options":{"include_usage":true},`, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := post(t, url, `{"model":"m","stream":true,`+row.options+`"messages":[{"role":"user","content":"one two"}]}`)
			assert.Equal(t, "text/event-stream", got.Header.Get("Content-Type"))
			_, data := sse(t, got.body)
			require.Equal(t, "[DONE]", data[len(data)-1])
			text, usages := "", 0
			for _, d := range data[:len(data)-1] {
				v := decode(t, d)
				_, has := v["usage"]
				assert.Equal(t, row.wantUsage == 1, has, "usage key in every chunk, or in none")
				if piece, ok := at(v, "choices", 0, "delta", "content").(string); ok {
					text += piece
				}
				if v["usage"] != nil {
					usages++
					assert.Empty(t, v["choices"])
					assert.EqualValues(t, 2, at(v, "usage", "prompt_tokens"))
					assert.EqualValues(t, 8, at(v, "usage", "completion_tokens"))
				}
			}
			assert.Equal(t, fakeprovider.Text(8), text)
			assert.Equal(t, row.wantUsage, usages)
		})
	}
}

func TestResponses(t *testing.T) {
	t.Parallel()
	s := start(t)
	url := s.Face("a").URL() + "/v1/responses"
	whole := decode(t, string(post(t, url, `{"model":"m","input":"one two"}`).body))
	assert.Equal(t, fakeprovider.Text(8), at(whole, "output", 0, "content", 0, "text"))
	assert.EqualValues(t, 2, at(whole, "usage", "input_tokens"))

	for _, row := range []struct{ name, extra, terminal, reason string }{
		{"completed", ``, "response.completed", ""},
		{"incomplete", `"max_output_tokens":3,`, "response.incomplete", "max_output_tokens"},
	} {
		t.Run(row.name, func(t *testing.T) {
			names, data := sse(t, post(t, url, `{"model":"m","stream":true,`+row.extra+`"input":[{"role":"user","content":[{"type":"input_text","text":"one two"}]}]}`).body)
			for i, d := range data {
				v := decode(t, d)
				assert.Equal(t, names[i], v["type"])
				assert.EqualValues(t, i, v["sequence_number"])
			}
			assert.Equal(t, "response.created", names[0])
			last := decode(t, data[len(data)-1])
			assert.Equal(t, row.terminal, last["type"])
			assert.EqualValues(t, 2, at(last, "response", "usage", "input_tokens"))
			if row.reason != "" {
				assert.Equal(t, row.reason, at(last, "response", "incomplete_details", "reason"))
			}
		})
	}
}

func TestBackgroundResponses(t *testing.T) {
	t.Parallel()
	s := start(t)
	url := s.Face("a").URL() + "/v1/responses"
	made := func(script string) (id string) {
		got := decode(t, string(post(t, url, `{"model":"m","background":true,"input":"[[fake:`+strings.ReplaceAll(script, `"`, `\"`)+`]]"}`).body))
		require.Equal(t, "queued", got["status"])
		require.Nil(t, got["usage"])
		return got["id"].(string)
	}
	asked := func(id string) any {
		resp, err := client(t).Get(url + "/" + id)
		require.NoError(t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		if resp.StatusCode != http.StatusOK {
			return resp.StatusCode
		}
		return decode(t, string(raw))["status"]
	}
	id := made(`{"pending_polls":2}`)
	assert.Equal(t, []any{"in_progress", "in_progress", "completed"}, []any{asked(id), asked(id), asked(id)})
	assert.Equal(t, "completed", decode(t, string(post(t, url+"/"+id+"/cancel", ``).body))["status"], "too late")
	id = made(`{"pending_ms":60000}`)
	assert.Equal(t, "in_progress", asked(id))
	assert.Equal(t, "cancelled", decode(t, string(post(t, url+"/"+id+"/cancel", ``).body))["status"])
	assert.Equal(t, "cancelled", asked(id))
	assert.Equal(t, http.StatusNotFound, asked(made(`{"forgets":true}`)))
	id = made(`{"fail_polls":1}`)
	assert.Equal(t, []any{http.StatusTooManyRequests, "completed"}, []any{asked(id), asked(id)})
}

func TestMessages(t *testing.T) {
	t.Parallel()
	s := start(t)
	url := s.Face("a").URL() + "/v1/messages"
	whole := decode(t, string(post(t, url, `{"model":"m","max_tokens":100,"system":"be kind","messages":[{"role":"user","content":"one two"}]}`).body))
	assert.Equal(t, fakeprovider.Text(8), at(whole, "content", 0, "text"))
	assert.EqualValues(t, 4, at(whole, "usage", "input_tokens"))
	assert.EqualValues(t, 8, at(whole, "usage", "output_tokens"))

	names, data := sse(t, post(t, url, `{"model":"m","max_tokens":3,"stream":true,"messages":[{"role":"user","content":"one two"}]}`).body)
	assert.Equal(t, []string{"message_start", "content_block_start", "ping", "content_block_delta", "content_block_delta", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}, names)
	for i, d := range data {
		assert.Equal(t, names[i], decode(t, d)["type"])
	}
	assert.EqualValues(t, 2, at(decode(t, data[0]), "message", "usage", "input_tokens"))
	assert.EqualValues(t, 1, at(decode(t, data[0]), "message", "usage", "output_tokens"))
	delta := decode(t, data[7])
	assert.Equal(t, "max_tokens", at(delta, "delta", "stop_reason"))
	assert.Equal(t, map[string]any{"output_tokens": 3.0}, delta["usage"])
	assert.Equal(t, fakeprovider.Usage{InputUncached: 2, Output: 3}, *ended(t, s, 2).Usage)

	counted := decode(t, string(post(t, url+"/count_tokens", `{"model":"m","messages":[{"role":"user","content":"one two"}]}`).body))
	assert.EqualValues(t, 2, counted["input_tokens"])
}

func TestCompletionsStream(t *testing.T) {
	t.Parallel()
	s := start(t)
	_, data := sse(t, post(t, s.Face("a").URL()+"/v1/completions", `{"model":"m","stream":true,"max_tokens":2,"prompt":"a b"}`).body)
	require.Len(t, data, 4)
	assert.Equal(t, "The", at(decode(t, data[0]), "choices", 0, "text"))
	assert.Equal(t, "length", at(decode(t, data[2]), "choices", 0, "finish_reason"))
}

func TestEmbeddings(t *testing.T) {
	t.Parallel()
	s := start(t)
	url := s.Face("a").URL() + "/v1/embeddings"
	for _, row := range []struct {
		name, input string
		vectors     int
		tokens      float64
	}{
		{"text", `"one two"`, 1, 2},
		{"texts", `["one two","three"]`, 2, 3},
		{"tokens", `[5,6,7]`, 1, 3},
		{"token lists", `[[5,6],[7]]`, 2, 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := decode(t, string(post(t, url, `{"model":"m","input":`+row.input+`}`).body))
			assert.Len(t, got["data"], row.vectors)
			assert.Equal(t, row.tokens, at(got, "usage", "prompt_tokens"))
			assert.Len(t, at(got, "data", 0, "embedding"), 8)
		})
	}
	t.Run("base64", func(t *testing.T) {
		got := decode(t, string(post(t, url, `{"model":"m","input":"one two","dimensions":3,"encoding_format":"base64"}`).body))
		raw, err := base64.StdEncoding.DecodeString(at(got, "data", 0, "embedding").(string))
		require.NoError(t, err)
		vector := make([]float32, 3)
		for i := range vector {
			vector[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		assert.Equal(t, fakeprovider.Vector(2, 3), vector)
	})
}

func TestCredential(t *testing.T) {
	t.Parallel()
	s := start(t, fakeprovider.FaceOptions{Name: "a", WantKey: key})
	const chat, messages = "/v1/chat/completions", "/v1/messages"
	body := `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`
	for _, row := range []struct {
		name, path string
		headers    []string
		want       int
	}{
		{"right", chat, []string{"Authorization", "Bearer " + key}, 200},
		{"none", chat, nil, 401},
		{"wrong", chat, []string{"Authorization", "Bearer other"}, 401},
		{"wrong carrier", chat, []string{"X-Api-Key", key}, 401},
		{"a second one", chat, []string{"Authorization", "Bearer " + key, "X-Api-Key", "kw_1"}, 401},
		{"twice", chat, []string{"Authorization", "Bearer " + key, "Authorization", "Bearer " + key}, 401},
		{"in the query", chat + "?key=1", []string{"Authorization", "Bearer " + key}, 401},
		{"messages right", messages, []string{"X-Api-Key", key}, 200},
		{"messages bearer", messages, []string{"Authorization", "Bearer " + key}, 200},
		{"messages both", messages, []string{"X-Api-Key", key, "Authorization", "Bearer " + key}, 401},
		{"messages wrong", messages, []string{"X-Api-Key", "other"}, 401},
		{"messages wrong carrier", messages, []string{"Api-Key", key}, 401},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := post(t, s.Face("a").URL()+row.path, body, row.headers...)
			assert.Equal(t, row.want, got.StatusCode)
			if row.want != 401 {
				return
			}
			if row.path == messages {
				assert.Equal(t, "authentication_error", at(decode(t, string(got.body)), "error", "type"))
			} else {
				assert.Equal(t, "invalid_api_key", at(decode(t, string(got.body)), "error", "code"))
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := start(t)
	url := s.Face("a").URL()
	for _, row := range []struct {
		name, path, body string
		want             int
	}{
		{"unknown path", "/v1/images", `{}`, 404},
		{"not JSON", "/v1/chat/completions", `{`, 400},
		{"no model", "/v1/chat/completions", `{"messages":[]}`, 400},
		{"unknown script field", "/v1/chat/completions", `{"model":"m@{\"nope\":1}","messages":[]}`, 400},
		{"broken marker", "/v1/completions", `{"model":"m","prompt":"[[fake:{]]"}`, 400},
		{"two ends", "/v1/chat/completions", `{"model":"m@{\"hang_after\":{},\"close_after\":{}}","messages":[]}`, 400},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := post(t, url+row.path, row.body)
			assert.Equal(t, row.want, got.StatusCode)
			assert.NotEmpty(t, at(decode(t, string(got.body)), "error", "message"))
		})
	}
	t.Run("no anthropic-version", func(t *testing.T) {
		resp, err := client(t).Post(url+"/v1/messages", "application/json", bytes.NewBufferString(`{"model":"m","messages":[]}`))
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, 400, resp.StatusCode)
	})
}
