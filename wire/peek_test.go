package wire

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func mustPeek(t testing.TB, api domain.API, body string) *Request {
	t.Helper()
	q, err := Peek(api, []byte(body))
	require.NoError(t, err, "%.200s", body)
	return q
}

func TestPeekReads(t *testing.T) {
	t.Parallel()
	type seen struct {
		Model          string
		Stream         bool
		N, Cap         int64
		HasCap         bool
		Usage          UsageOption
		Previous, Conv string
		HasConv, Back  bool
		CacheKey       string
	}
	tests := []struct {
		name, body string
		want       seen
	}{
		{"least", `{"model":"m"}`, seen{Model: "m", N: 1}},
		{"white space", " \n{ \"model\" :\t\"m\" , \"stream\" : true }\r\n", seen{Model: "m", Stream: true, N: 1}},
		{"escaped key and value", `{"mod\u0065l":"a\/b\u00e9\ud83d\ude42"}`, seen{Model: "a/bé🙂", N: 1}},
		{
			"largest cap times n (case 57)", `{"model":"m","max_tokens":1,"max_completion_tokens":10000,"n":4}`,
			seen{Model: "m", N: 4, Cap: 40000, HasCap: true},
		},
		{"a cap that chat does not heed", `{"model":"m","max_output_tokens":16}`, seen{Model: "m", N: 1, Cap: 16}},
		{"cap of nothing", `{"model":"m","max_tokens":0}`, seen{Model: "m", N: 1, HasCap: true}},
		{"best of", `{"model":"m","n":2,"best_of":5,"max_tokens":10}`, seen{Model: "m", N: 5, Cap: 50, HasCap: true}},
		{
			"nulls", `{"model":"m","stream":null,"max_tokens":null,"n":null,"stream_options":null,"background":null,"conversation":null,"previous_response_id":null}`,
			seen{Model: "m", N: 1},
		},
		{"usage asked", `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, seen{Model: "m", Stream: true, N: 1, Usage: UsageTrue}},
		{"usage refused", `{"model":"m","stream_options":{"x":1,"include_usage":false}}`, seen{Model: "m", N: 1, Usage: UsageFalse}},
		{"usage null", `{"model":"m","stream_options":{"include_usage":null}}`, seen{Model: "m", N: 1}},
		{
			"stored things", `{"model":"m","previous_response_id":"resp_1","conversation":{"id":"conv_1"},"background":true,"prompt_cache_key":"k"}`,
			seen{Model: "m", N: 1, Previous: "resp_1", Conv: "conv_1", HasConv: true, Back: true, CacheKey: "k"},
		},
		{"conversation by name", `{"model":"m","conversation":"conv_2"}`, seen{Model: "m", N: 1, Conv: "conv_2", HasConv: true}},
		{"same key deeper", `{"metadata":{"model":"other","stream":true},"model":"m"}`, seen{Model: "m", N: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := mustPeek(t, domain.APIChat, tt.body)
			assert.Equal(t, tt.want, seen{
				q.Model, q.Stream, q.N, q.OutputCap, q.HasCap, q.IncludeUsage,
				q.PreviousResponseID, q.Conversation, q.HasConversation, q.Background, q.PromptCacheKey,
			})
			assert.Positive(t, q.PromptTokens)
		})
	}
}

func TestPeekRefuses(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 10000) + strings.Repeat("]", 10000)
	tests := []struct{ name, body, code, param, message string }{
		{"nothing", ``, "invalid_request", "", "does not begin with an object"},
		{"an array", `[]`, "invalid_request", "", "does not begin with an object"},
		{"byte order mark", "\xef\xbb\xbf{\"model\":\"m\"}", "invalid_request", "", "byte order mark"},
		{"not UTF-8", "{\"model\":\"m\xff\"}", "invalid_request", "", "not UTF-8 at byte 11"},
		{"trailing garbage", `{"model":"m"} {}`, "invalid_request", "", "something follows"},
		{"trailing comma", `{"model":"m",}`, "invalid_request", "", "quoted key"},
		{"not a number", `{"model":"m","x":NaN}`, "invalid_request", "", "value is missing"},
		{"infinite", `{"model":"m","x":-Infinity}`, "invalid_request", "", "no digits"},
		{"leading zero", `{"model":"m","x":01}`, "invalid_request", "", "comma"},
		{"bare point", `{"model":"m","x":1.}`, "invalid_request", "", "decimal point"},
		{"empty exponent", `{"model":"m","x":1e}`, "invalid_request", "", "exponent"},
		{"misspelt", `{"model":"m","x":tru}`, "invalid_request", "", "misspelt"},
		{"single quotes", `{'model':'m'}`, "invalid_request", "", "quoted key"},
		{"cut", `{"model":"m`, "invalid_request", "", "does not end"},
		{"cut after a backslash", `{"model":"m\`, "invalid_request", "", "does not end"},
		{"control character", "{\"model\":\"a\nb\"}", "invalid_request", "", "control character"},
		{"unknown escape", `{"model":"\x"}`, "invalid_request", "", "unknown escape"},
		{"broken escape", `{"model":"\u12g4"}`, "invalid_request", "", `broken \u`},
		{"lone high surrogate", `{"model":"\ud83d"}`, "invalid_request", "", "surrogate"},
		{"lone low surrogate", `{"model":"m","x":"\ude42"}`, "invalid_request", "", "surrogate"},
		{"two high surrogates", `{"model":"m","x":"\ud83d\ud83d"}`, "invalid_request", "", "surrogate"},
		{"too deep", `{"model":"m","x":` + deep + `}`, "invalid_request", "", "nested"},
		{"no model", `{"stream":true}`, "model_missing", "model", "missing"},
		{"null model", `{"model":null}`, "model_missing", "model", "missing"},
		{"empty model", `{"model":""}`, "model_missing", "model", "missing"},
		{"model of another type", `{"model":7}`, "invalid_request", "model", "a string, not a number"},
		{"model of another type, broken", `{"model":[}`, "invalid_request", "", "value is missing"},
		{"long model", `{"model":"` + strings.Repeat("m", MaxModelLen+1) + `"}`, "invalid_request", "model", "longer"},
		{"model twice", `{"model":"a","model":"b"}`, "invalid_request", "model", "twice"},
		{"model twice, once escaped", `{"model":"a","mod\u0065l":"b"}`, "invalid_request", "model", "twice"},
		{"stream twice", `{"model":"m","stream":true,"stream":true}`, "invalid_request", "stream", "twice"},
		{"messages twice", `{"model":"m","messages":[],"messages":[]}`, "invalid_request", "messages", "twice"},
		{"include_usage twice", `{"model":"m","stream_options":{"include_usage":true,"include_usage":false}}`, "invalid_request", "stream_options.include_usage", "twice"},
		{"stream as text", `{"model":"m","stream":"true"}`, "invalid_request", "stream", "true or false, not a string"},
		{"stream as number", `{"model":"m","stream":1}`, "invalid_request", "stream", "not a number"},
		{"options as list", `{"model":"m","stream_options":[]}`, "invalid_request", "stream_options", "an object, not an array"},
		{"usage as text", `{"model":"m","stream_options":{"include_usage":"yes"}}`, "invalid_request", "stream_options.include_usage", "not a string"},
		{"negative cap", `{"model":"m","max_tokens":-1}`, "invalid_request", "max_tokens", "integer from 0"},
		{"fraction", `{"model":"m","max_tokens":1.5}`, "invalid_request", "max_tokens", "integer from 0"},
		{"exponent", `{"model":"m","max_tokens":1e3}`, "invalid_request", "max_tokens", "integer from 0"},
		{"huge cap", `{"model":"m","max_output_tokens":2147483649}`, "invalid_request", "max_output_tokens", "integer from 0"},
		{"cap of 40 digits", `{"model":"m","max_completion_tokens":` + strings.Repeat("9", 40) + `}`, "invalid_request", "max_completion_tokens", "integer from 0"},
		{"cap as text", `{"model":"m","max_tokens":"5"}`, "invalid_request", "max_tokens", "an integer, not a string"},
		{"no answers", `{"model":"m","n":0}`, "invalid_request", "n", "from 1"},
		{"too many answers", `{"model":"m","n":129}`, "invalid_request", "n", "128"},
		{"background as text", `{"model":"m","background":"yes"}`, "invalid_request", "background", "true or false"},
		{"previous id as number", `{"model":"m","previous_response_id":5}`, "invalid_request", "previous_response_id", "a string"},
		{"conversation as number", `{"model":"m","conversation":5}`, "invalid_request", "conversation", "a string or an object"},
		{"conversation id twice", `{"model":"m","conversation":{"id":"a","id":"b"}}`, "invalid_request", "conversation.id", "twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q, err := Peek(domain.APIChat, []byte(tt.body))
			require.Error(t, err)
			assert.Nil(t, q)
			var e *domain.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, tt.code, string(e.Code))
			assert.Equal(t, tt.param, e.Param)
			assert.Contains(t, e.Message, tt.message)
		})
	}
}

func TestPeekTakesTheDeepestLegalBody(t *testing.T) {
	t.Parallel()
	body := `{"model":"m","x":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + `}`
	mustPeek(t, domain.APIChat, body)
	_, err := Peek(domain.APIChat, []byte(strings.Replace(body, "[]", "[[]]", 1)))
	require.Error(t, err)
}

func png(w, h uint32) string {
	b := append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"), 0, 0, 0, 0, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(b[16:], w)
	binary.BigEndian.PutUint32(b[20:], h)
	return base64.StdEncoding.EncodeToString(append(b, noise(100<<10)...))
}

func TestPromptTokens(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("one two three four. ", 100) // 500 tokens, more or less
	chat := func(content string) string {
		return `{"model":"m","messages":[{"role":"user","content":` + content + `}]}`
	}
	quoted := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	tests := []struct {
		name      string
		api       domain.API
		body      string
		low, high int64
	}{
		{"chat text", domain.APIChat, chat(quoted(text)), 450, 560},
		{"chat parts", domain.APIChat, chat(`[{"type":"text","text":` + quoted(text) + `}]`), 450, 560},
		{"a cap does not matter (case 61)", domain.APIChat, `{"model":"m","messages":[{"content":` + quoted(text) + `}],"max_tokens":1}`, 450, 560},
		{"unknown field is prompt", domain.APIChat, `{"model":"m","contents":` + quoted(text) + `}`, 450, 560},
		{"metadata is not", domain.APIChat, `{"model":"m","metadata":{"x":` + quoted(text) + `},"user":` + quoted(text) + `}`, 1, 1},
		{"system", domain.APIMessages, `{"model":"m","max_tokens":5,"system":` + quoted(text) + `,"messages":[]}`, 450, 560},
		{"text document", domain.APIMessages, `{"model":"m","messages":[{"role":"user","content":[{"type":"document","source":{"data":` + quoted(text) + `,"type":"text","media_type":"text/plain"}}]}]}`, 450, 560},
		{"many messages", domain.APIChat, `{"model":"m","messages":[` + strings.Repeat(`{"role":"user","content":"a"},`, 99) + `{"role":"user","content":"a"}]}`, 450, 550},
		{"tool schema counts keys", domain.APIChat, `{"model":"m","tools":[{"type":"function","function":{"name":"get_weather","description":"Weather of a city.","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}]}`, 35, 70},
		{"escapes count as what they mean", domain.APIChat, chat(`"` + strings.Repeat(`\u4e2d`, 1000) + `"`), 780, 830},
		{"token array", domain.APIEmbeddings, `{"model":"m","input":[1,2,3,4]}`, 4, 4},
		{"token arrays", domain.APIEmbeddings, `{"model":"m","input":[[1,2],[3]]}`, 3, 3},
		{"strings to embed", domain.APIEmbeddings, `{"model":"m","input":[` + quoted(text) + `,` + quoted(text) + `]}`, 900, 1120},
		{"prompt of tokens", domain.APICompletions, `{"model":"m","prompt":[5,6,7]}`, 3, 3},
		{"png in a data url", domain.APIChat, chat(`[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + png(1024, 1024) + `"}}]`), 1225, 1240},
		{"image by url", domain.APIChat, chat(`[{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]`), openAIImageCap, openAIImageCap + 10},
		{"responses image", domain.APIResponses, `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,` + png(512, 512) + `"}]}]}`, 300, 320},
		{"base64 source", domain.APIMessages, `{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + png(512, 512) + `"}}]}]}`, 361, 370},
		{"base64 source, data first", domain.APIMessages, `{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"data":"` + png(512, 512) + `","media_type":"image/png","type":"base64"}}]}]}`, 361, 370},
		{"image of unknown kind", domain.APIMessages, `{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]}`, anthropicImageCap, anthropicImageCap + 10},
		{"data url as text is text", domain.APIChat, chat(`"data:image/png;base64,` + strings.Repeat("words and words ", 100) + `"`), 300, 400},
		{"vocabulary of the family", domain.APIMessages, `{"model":"claude-x","messages":[{"role":"user","content":` + quoted(text) + `}]}`, 540, 670},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := mustPeek(t, tt.api, tt.body)
			assert.GreaterOrEqual(t, q.PromptTokens, tt.low)
			assert.LessOrEqual(t, q.PromptTokens, tt.high)
		})
	}
}

func TestImageSize(t *testing.T) {
	t.Parallel()
	jpeg := "\xff\xd8\xff\xe1\x01\x00" + strings.Repeat("e", 0xfe) + "\xff\xc2\x00\x11\x08\x02\x00\x03\x00" + strings.Repeat("x", 20)
	tests := []struct {
		name, data string
		w, h       int64
	}{
		{"gif", "GIF89a\x20\x03\x58\x02" + strings.Repeat("x", 20), 800, 600},
		{"webp extended", "RIFF....WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x1f\x03\x00\x57\x02\x00xxxx", 800, 600},
		{"webp lossless", "RIFF....WEBPVP8L....\x2f\x1f\xc3\x95\x00xxxxxxxx", 800, 600},
		{"webp lossy", "RIFF....WEBPVP8 .......\x9d\x01\x2a\x20\x03\x58\x02xxxxxxxx", 800, 600},
		{"jpeg behind metadata", jpeg, 768, 512},
		{"text", "no image at all, only text", 0, 0},
		{"cut png", "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00", 0, 0},
		{"endless jpeg", "\xff\xd8" + strings.Repeat("\xff\xe0\x00\x02", 100), 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := sniff{media: []byte(base64.StdEncoding.EncodeToString([]byte(tt.data)))}
			w, h, ok := s.imageSize()
			assert.Equal(t, tt.w != 0, ok)
			if ok {
				assert.Equal(t, [2]int64{tt.w, tt.h}, [2]int64{w, h})
			}
		})
	}
}

// FuzzPeek: what Peek accepts, encoding/json accepts too, and both see the same.
func FuzzPeek(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","stream":true,"max_tokens":5,"n":2,"stream_options":{"include_usage":false,"x":[1.5e-3,null]}}`,
		`{"mod\u0065l":"a\ud83d\ude42","max_completion_tokens":7,"messages":[{"role":"user","content":"hi\n"}]}`,
		`{"model":"m","max_output_tokens":2147483648,"input":[[1,2],[3]],"conversation":{"id":"c"}}`,
		`{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}},{"source":{"type":"base64","data":"/9j/4AAQ"}}]}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Add([]byte(`{"model":"m","max_tokens":null,"max_completion_tokens":null,"max_output_tokens":null,"stream":true,"stream_options":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for api := range capFields {
			if q, err := Peek(api, body); err == nil {
				checkPatches(t, q, body)
			}
		}
		q, err := Peek(domain.APIChat, body)
		if err != nil {
			var e *domain.Error
			require.ErrorAs(t, err, &e)
			require.True(t, errors.Is(err, e))
			return
		}
		want := oracle(t, body)
		require.Equal(t, want["model"], q.Model)
		require.Equal(t, want["stream"] == true, q.Stream)
		n := max(1, number(want["n"]), number(want["best_of"]))
		require.Equal(t, n, q.N)
		largest := max(number(want["max_tokens"]), number(want["max_completion_tokens"]), number(want["max_output_tokens"]))
		require.Equal(t, largest*n, q.OutputCap)
		options, _ := want["stream_options"].(map[string]any)
		require.Equal(t, options["include_usage"] == true, q.IncludeUsage == UsageTrue)
	})
}

// oracle decodes a body by encoding/json, with numbers as they stand.
func oracle(t testing.TB, body []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.UseNumber()
	var v map[string]any
	require.NoError(t, d.Decode(&v))
	require.False(t, d.More())
	return v
}

func number(v any) int64 {
	n, ok := v.(json.Number)
	if !ok {
		return 0
	}
	i, _ := n.Int64()
	return i
}

// checkPatches holds that every patch changes the fields it is for, and no other.
func checkPatches(t testing.TB, q *Request, body []byte) {
	t.Helper()
	for _, o := range []PatchOptions{
		{},
		{UpstreamModel: "up\"stream/\n中"},
		{InjectUsage: true},
		{UpstreamModel: "up", InjectUsage: true},
		{OutputCap: 77},
		{UpstreamModel: "up", InjectUsage: true, OutputCap: 77},
	} {
		patches := q.Patches(o)
		out, err := ApplyPatches(body, patches)
		require.NoError(t, err)
		require.Len(t, out, int(PatchedLen(int64(len(body)), patches)))
		want, got := oracle(t, body), oracle(t, out)
		if o.UpstreamModel != "" {
			want["model"] = o.UpstreamModel
		}
		if o.InjectUsage && q.LacksUsage() {
			options, _ := want["stream_options"].(map[string]any)
			if options == nil {
				options = map[string]any{}
			}
			options["include_usage"] = true
			want["stream_options"] = options
		}
		if o.OutputCap > 0 && capless(q.API, want) {
			want[capFields[q.API][0]] = json.Number("77")
		}
		require.Equal(t, want, got)
		if len(patches) == 0 {
			require.Equal(t, body, out)
		}
	}
}

// capFields are the caps that each API heeds, first the one that is put in.
var capFields = map[domain.API][]string{
	domain.APIChat:        {"max_completion_tokens", "max_tokens"},
	domain.APICompletions: {"max_tokens"},
	domain.APIResponses:   {"max_output_tokens"},
}

// capless reports whether a body of api has room for a cap.
func capless(api domain.API, body map[string]any) bool {
	for _, field := range capFields[api] {
		if body[field] != nil {
			return false
		}
	}
	return len(capFields[api]) > 0
}

func TestPatches(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body, want string
		api              domain.API
		options          PatchOptions
	}{
		{"model", `{"model": "a", "x":1 }`, `{"model": "b", "x":1 }`, domain.APIChat, PatchOptions{UpstreamModel: "b"}},
		{"same model", `{"mod\u0065l":"\u0061"}`, `{"mod\u0065l":"\u0061"}`, domain.APIChat, PatchOptions{UpstreamModel: "a"}},
		{"no options", ` {"stream":true,"model":"a"}`, ` {"stream_options":{"include_usage":true},"stream":true,"model":"a"}`, domain.APIChat, PatchOptions{InjectUsage: true}},
		{"null options", `{"stream":true,"stream_options" : null,"model":"a"}`, `{"stream":true,"stream_options" : {"include_usage":true},"model":"a"}`, domain.APICompletions, PatchOptions{InjectUsage: true}},
		{"empty options", `{"stream":true,"stream_options":{ },"model":"a"}`, `{"stream":true,"stream_options":{"include_usage":true },"model":"a"}`, domain.APIChat, PatchOptions{InjectUsage: true}},
		{"other options", `{"stream":true,"stream_options":{"x":{}},"model":"a"}`, `{"stream":true,"stream_options":{"include_usage":true,"x":{}},"model":"a"}`, domain.APIChat, PatchOptions{InjectUsage: true}},
		{"usage false", `{"stream":true,"stream_options":{"include_usage": false},"model":"a"}`, `{"stream":true,"stream_options":{"include_usage": true},"model":"a"}`, domain.APIChat, PatchOptions{InjectUsage: true}},
		{"usage null, model before", `{"model":"a","stream":true,"stream_options":{"include_usage":null}}`, `{"model":"bb","stream":true,"stream_options":{"include_usage":true}}`, domain.APIChat, PatchOptions{UpstreamModel: "bb", InjectUsage: true}},
		{"usage true", `{"stream":true,"stream_options":{"include_usage":true},"model":"a"}`, `{"stream":true,"stream_options":{"include_usage":true},"model":"a"}`, domain.APIChat, PatchOptions{InjectUsage: true}},
		{"no stream", `{"model":"a"}`, `{"model":"a"}`, domain.APIChat, PatchOptions{InjectUsage: true}},
		{"responses", `{"model":"a","stream":true}`, `{"model":"a","stream":true}`, domain.APIResponses, PatchOptions{InjectUsage: true}},
		{"messages", `{"model":"a","stream":true}`, `{"model":"a","stream":true}`, domain.APIMessages, PatchOptions{InjectUsage: true}},
		{"cap of chat", ` {"model":"a"}`, ` {"max_completion_tokens":9,"model":"a"}`, domain.APIChat, PatchOptions{OutputCap: 9}},
		{"cap of completions", `{"model":"a"}`, `{"max_tokens":9,"model":"a"}`, domain.APICompletions, PatchOptions{OutputCap: 9}},
		{"cap of responses", `{"model":"a"}`, `{"max_output_tokens":9,"model":"a"}`, domain.APIResponses, PatchOptions{OutputCap: 9}},
		{"no cap of messages", `{"model":"a"}`, `{"model":"a"}`, domain.APIMessages, PatchOptions{OutputCap: 9}},
		{"no cap of embeddings", `{"model":"a"}`, `{"model":"a"}`, domain.APIEmbeddings, PatchOptions{OutputCap: 9}},
		{"the client's old cap", `{"model":"a","max_tokens":1}`, `{"model":"a","max_tokens":1}`, domain.APIChat, PatchOptions{OutputCap: 9}},
		{"cap null", `{"model":"a","max_completion_tokens": null }`, `{"model":"a","max_completion_tokens": 9 }`, domain.APIChat, PatchOptions{OutputCap: 9}},
		{"cap of another API", `{"max_output_tokens":1,"model":"a"}`, `{"max_completion_tokens":9,"max_output_tokens":1,"model":"a"}`, domain.APIChat, PatchOptions{OutputCap: 9}},
		{"all at once", `{"stream":true,"model":"a"}`, `{"max_completion_tokens":9,"stream_options":{"include_usage":true},"stream":true,"model":"b"}`, domain.APIChat, PatchOptions{UpstreamModel: "b", InjectUsage: true, OutputCap: 9}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := mustPeek(t, tt.api, tt.body)
			out, err := ApplyPatches([]byte(tt.body), q.Patches(tt.options))
			require.NoError(t, err)
			assert.Equal(t, tt.want, string(out))
			checkPatches(t, q, []byte(tt.body))
		})
	}
}

func TestApplyPatchesRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	for _, p := range [][]domain.Patch{
		{{Offset: -1}},
		{{Offset: 6}},
		{{Offset: 4, Delete: 2}},
		{{Offset: 0, Delete: -1}},
		{{Offset: 2, Delete: 2}, {Offset: 3}},
		{{Offset: 3}, {Offset: 1}},
		{{Offset: 1, Delete: 1 << 62}, {Offset: 2}},
	} {
		_, err := ApplyPatches([]byte("12345"), p)
		assert.Error(t, err, "%v", p)
	}
	out, err := ApplyPatches([]byte("12345"), []domain.Patch{{Offset: 0, Insert: "<"}, {Offset: 1, Delete: 3, Insert: "-"}, {Offset: 5, Insert: ">"}})
	require.NoError(t, err)
	assert.Equal(t, "<1-5>", string(out))
}

func BenchmarkPeek(b *testing.B) {
	const size = 1 << 20
	chat := func(content string) string {
		n := max(1, size/(len(content)+40))
		one := fmt.Sprintf(`{"role":"user","content":"%s"},`, content)
		return `{"model":"gpt-4o","stream":true,"messages":[` + strings.Repeat(one, n) + `{"role":"user","content":"end"}]}`
	}
	bodies := map[string]string{
		"typical chat": chat(strings.Repeat(`The quick brown fox jumps over the lazy dog.\n`, 20)),
		"code":         chat(strings.Repeat(`\tif err := r.read(ctx, buf[:n]); err != nil {\n\t\treturn fmt.Errorf(\"x: %w\", err)\n\t}\n`, 20)),
		"emoji":        chat(strings.Repeat("🙂", 1000)),
		"one letter":   chat(strings.Repeat("a", size)),
		"escapes":      chat(strings.Repeat(`\u4e2d\n`, 1000)),
		"deep":         `{"model":"m","x":[` + strings.Repeat(strings.Repeat("[", 200)+strings.Repeat("]", 200)+",", size/400) + `1]}`,
		"tokens":       `{"model":"m","input":[` + strings.Repeat("12345,", size/6) + `1]}`,
		"base64 image": `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("iVBORw0KGgoA", size/12) + `"}}]}]}`,
	}
	for name, body := range bodies {
		b.Run(name, func(b *testing.B) {
			raw := []byte(body)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Peek(domain.APIChat, raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
