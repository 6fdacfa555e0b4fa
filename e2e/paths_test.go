package e2e

import (
	"bytes"
	"encoding/json"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// formPart is one part of a form; a file when it has a file name.
type formPart struct{ name, file, value string }

// formOf is a multipart body with parts in their order.
func formOf(t testing.TB, parts ...formPart) (contentType string, body []byte) {
	t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for _, p := range parts {
		if p.file == "" {
			require.NoError(t, w.WriteField(p.name, p.value))
			continue
		}
		to, err := w.CreateFormFile(p.name, p.file)
		require.NoError(t, err)
		_, err = to.Write([]byte(p.value))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return w.FormDataContentType(), buf.Bytes()
}

// asForm makes r a form.
func asForm(t testing.TB, r sending, parts ...formPart) sending {
	t.Helper()
	contentType, body := formOf(t, parts...)
	r.header, r.body = http.Header{"Content-Type": {contentType}}, body
	return r
}

// tools are counts by the piece, as a record has them.
func tools(counts map[domain.Tool]int64) (out [domain.ToolKinds]int64) {
	for tool, n := range counts {
		out[tool] = n
	}
	return out
}

// The models are those that the key may use and that have a channel of the
// dialect; Keyway says so itself.
func TestModelsAreListedPerKey(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	identity := newNonce()
	key, id := s.key(t, "--identity", identity, "--policy", "rpm1", "--models", "two,only-*,files")
	names := []string{"only-a", "only-b", "only-c", "only-tlsa", "only-tlsb", "two"}
	get := func(path string, header http.Header) received {
		return s.send(t, sending{method: "GET", path: path, key: key, header: header})
	}
	var list struct {
		Object string
		Data   []struct{ ID, Object, Type, DisplayName, OwnedBy string }
	}
	for range 3 { // rpm is 1: listing takes of nothing
		got := get("/v1/models", nil)
		require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
		require.Equal(t, "application/json", got.Header.Get("Content-Type"))
		require.NotEmpty(t, got.Header.Get("X-Request-Id"))
		requireNoInsides(t, got, key)
		list.Data = nil
		require.NoError(t, json.Unmarshal(got.body, &list))
	}
	require.Equal(t, "list", list.Object)
	var listed []string
	for _, m := range list.Data {
		require.Equal(t, "model", m.Object)
		listed = append(listed, m.ID)
	}
	require.Equal(t, names, listed)
	require.JSONEq(t, `{"id":"two","object":"model","created":0,"owned_by":"keyway"}`, string(get("/v1/models/two", nil).body))

	anthropic := http.Header{"Anthropic-Version": {"2023-06-01"}}
	first := get("/v1/models?limit=4", anthropic)
	require.Equal(t, first.Header.Get("X-Request-Id"), first.Header.Get("Request-Id"))
	require.JSONEq(t, `"only-tlsa"`, string(jsonAt(t, first.body, "last_id")))
	require.JSONEq(t, `true`, string(jsonAt(t, first.body, "has_more")))
	rest := get("/v1/models?limit=4&after_id=only-tlsa", anthropic)
	require.JSONEq(t, `{"data":[
		{"type":"model","id":"only-tlsb","display_name":"only-tlsb","created_at":"1970-01-01T00:00:00Z"},
		{"type":"model","id":"two","display_name":"two","created_at":"1970-01-01T00:00:00Z"}],
		"has_more":false,"first_id":"only-tlsb","last_id":"two"}`, string(rest.body))
	back := get("/v1/models?limit=2&before_id=two", anthropic)
	require.JSONEq(t, `"only-tlsa"`, string(jsonAt(t, back.body, "first_id")))

	for _, path := range []string{"/v1/models/m", "/v1/models/nothing", "/v1/models/files", "/v1/models/two%2Fx"} {
		requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 404, kind: "invalid_request_error", code: "model_not_found", hopeless: true}, get(path, nil))
		requireRefusal(t, refusal{dialect: domain.DialectAnthropic, status: 404, kind: "not_found_error", hopeless: true}, get(path, anthropic))
	}
	requireRefusal(t, refusal{dialect: domain.DialectAnthropic, status: 400, kind: "invalid_request_error"}, get("/v1/models?limit=0", anthropic))
	requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 405, kind: "invalid_request_error", code: "method_not_allowed", hopeless: true},
		s.send(t, sending{path: "/v1/models", key: key}))
	requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 401, kind: "invalid_request_error", code: "invalid_api_key", hopeless: true},
		s.send(t, sending{method: "GET", path: "/v1/models"}))
	require.Empty(t, s.held(t, identity, id))
	require.Empty(t, s.recordsNow(t, id))
}

// TestCase084: counting tokens is served, free, has a limit of its own, and takes of no other.
func TestCase084(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "counting")
	const counts = 50
	for i := range counts {
		r := sending{path: "/v1/messages/count_tokens?beta=true", key: c.secret, nonce: newNonce(), body: []byte(messages("fail", ""))}
		want := `{"input_tokens":2}`
		if i%2 == 1 {
			r.path, r.body = "/v1/responses/input_tokens", []byte(`{"model":"fail","input":"one two three"}`)
			want = `{"object":"response.input_tokens","input_tokens":3}`
		}
		got := s.send(t, r)
		require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
		require.JSONEq(t, want, string(got.body))
		seen := s.seen(t, r.nonce)
		require.Len(t, seen, 1)
		require.Equal(t, "m-failing", seen[0].Model, "the name is the channel's here too")
	}
	got := c.ask(t, ask{api: domain.APIMessages, model: "m"})
	require.Equal(t, http.StatusOK, got.StatusCode, "the one request a minute is still there: %s", got.body)

	var refused received
	for range 20 {
		if refused = s.send(t, sending{path: "/v1/messages/count_tokens", key: c.secret, body: []byte(messages("m", ""))}); refused.StatusCode != http.StatusOK {
			break
		}
	}
	requireRefusal(t, refusal{dialect: domain.DialectAnthropic, status: 429, kind: "rate_limit_error"}, refused)
	require.Equal(t, "1", refused.Header.Get("Retry-After"))

	eventually(t, func() bool { return len(s.recordsNow(t, c.keyID)) >= 60 }, patience, 50*time.Millisecond)
	var cost int64
	for _, r := range s.recordsNow(t, c.keyID) {
		require.Equal(t, domain.OutcomeSuccess, r.Outcome, "%+v", r)
		if r.API == domain.APIMessages {
			cost += r.CostMicros
			continue
		}
		require.Zero(t, r.CostMicros, "%+v", r)
		require.Equal(t, domain.Usage{}, r.Usage, "%+v", r)
	}
	require.Positive(t, cost)
	c.requireBalanced(t, s.recordsNow(t, c.keyID))
	c.requireIdle(t, "failing")
}

func TestCountingTokensFailsOver(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce())
	got := s.send(t, sending{path: "/v1/messages/count_tokens", key: c.secret, body: []byte(messages("fail", `{"only_face":"a","status":529}`))})
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	r := s.records(t, c.keyID, 1)[0]
	require.Equal(t, []domain.Attempt{{Channel: "failing", Status: 529}, {Channel: "healthy", Status: 200}}, r.Attempts)
	require.Equal(t, domain.APICountTokens, r.API)
	requireRefusal(t, refusal{dialect: domain.DialectAnthropic, status: 404, kind: "not_found_error", hopeless: true},
		s.send(t, sending{path: "/v1/messages/count_tokens", key: c.secret, body: []byte(messages("nothing", ""))}))
}

func TestRerankIsMetered(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	documents := make([]string, 101)
	for i := range documents {
		documents[i] = "the weather in Paris"
	}
	body := func(script string) []byte {
		raw, err := json.Marshal(map[string]any{"model": "ranked", "query": "rain [[fake:" + script + "]]", "documents": documents, "top_n": 3})
		require.NoError(t, err)
		return raw
	}
	for _, tc := range []struct {
		name, script string
		usage        domain.Usage
		source       domain.Source
		micros       int64
	}{
		{
			"tokens, and units by the documents", `{"usage":{"input_uncached":77,"output":0}}`,
			domain.Usage{InputUncached: 77, Tools: tools(map[domain.Tool]int64{domain.ToolSearchUnit: 2})},
			domain.SourceUpstream, 77 + 2*2000,
		},
		{
			"units by the provider", `{"body":"{\"results\":[],\"meta\":{\"billed_units\":{\"search_units\":3}}}"}`,
			domain.Usage{Tools: tools(map[domain.Tool]int64{domain.ToolSearchUnit: 3})},
			domain.SourceUpstream, 3 * 2000,
		},
		{
			"a total alone", `{"usage_raw":{"total_tokens":5}}`,
			domain.Usage{InputUncached: 5, Tools: tools(map[domain.Tool]int64{domain.ToolSearchUnit: 2})},
			domain.SourceUpstream, 5 + 2*2000,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", "wide")
			got := s.send(t, sending{path: "/v1/rerank", key: c.secret, body: body(tc.script)})
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			r := s.records(t, c.keyID, 1)[0]
			assert.Equal(t, tc.usage, r.Usage)
			assert.Equal(t, tc.source, r.Source)
			assert.Equal(t, tc.micros, r.CostMicros)
			assert.Equal(t, domain.APIRerank, r.API)
			c.requireBalanced(t, []domain.UsageRecord{r})
			c.requireIdle(t, "media")
		})
	}
	t.Run("a budget that holds no unit", func(t *testing.T) {
		t.Parallel()
		c := s.caller(t, newNonce(), "--policy", "budget1000")
		got := s.send(t, sending{path: "/v1/rerank", key: c.secret, body: body("{}")})
		requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 429, kind: "insufficient_quota", code: "insufficient_quota", hopeless: true}, got)
	})
}

func TestSpeechPassesUntouched(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "wide")
	say := func(script, extra string) sending {
		text, err := json.Marshal("¡Olé! [[fake:" + script + "]]")
		require.NoError(t, err)
		return sending{path: "/v1/audio/speech", key: c.secret, nonce: newNonce(), body: []byte(`{"voice":"alloy","input":` + string(text) + `,"model":"spoken"` + extra + `}`)}
	}
	script := `{"only_face":"c","status":500}`
	r := say(script, "")
	got := s.send(t, r)
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	require.Equal(t, "audio/mpeg", got.Header.Get("Content-Type"))
	seen := s.seen(t, r.nonce)
	require.Len(t, seen, 2)
	require.Equal(t, []string{"tts-of-c", "tts-of-b"}, []string{seen[0].Model, seen[1].Model})
	require.Equal(t, seen[1].SentSHA256, got.digest())
	characters := int64(len([]rune("¡Olé! [[fake:" + script + "]]")))
	require.Equal(t, digestOf(fakeprovider.Sound(characters)), got.digest())
	row := s.records(t, c.keyID, 1)[0]
	require.Equal(t, characters, row.Usage.Tools[domain.ToolCharacter])
	require.Equal(t, 15*characters, row.CostMicros)
	require.Equal(t, "media-spare", row.Channel)

	r = say(`{"usage":{"input_uncached":4,"output":30}}`, `,"stream_format":"sse"`)
	got = s.send(t, r)
	require.Equal(t, "text/event-stream", got.Header.Get("Content-Type"))
	require.Equal(t, s.seen(t, r.nonce)[0].SentSHA256, got.digest())
	rows := s.records(t, c.keyID, 2)
	for _, row := range rows {
		if row.Channel == "media" {
			require.Equal(t, domain.SourceUpstream, row.Source)
			require.Equal(t, int64(30), row.Usage.OutputAudio)
			require.Equal(t, domain.OutcomeSuccess, row.Outcome)
		}
	}
	c.requireBalanced(t, rows)
	c.requireIdle(t, "media", "media-spare")
}

// TestCase082: the model of a form is found, checked and renamed wherever it
// stands, and everything else of the form stays as it was.
func TestCase082(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	big := strings.Repeat("\x89PNG\r\n--not the boundary\x00", 8<<20/26)
	script := formPart{name: "prompt", value: `a cat [[fake:{"only_face":"a","status":500}]]`}
	model := formPart{name: "model", value: "fail"}
	for _, tc := range []struct {
		name, path string
		api        domain.API
		parts      []formPart
	}{
		{"images, the model last", "/v1/images/edits", domain.APIImageEdits, []formPart{{"image[]", "a.png", big}, {"image[]", "b.png", "\x89PNG"}, script, model}},
		{"images, the model first", "/v1/images/edits", domain.APIImageEdits, []formPart{model, {"image", "a.png", "\x89PNG"}, script}},
		{"images of 31 MiB, the model last", "/v1/images/edits", domain.APIImageEdits, []formPart{{"image", "a.png", strings.Repeat("\x89PNG\r\n", 31<<20/6)}, script, model}},
		{"a transcription, the model last", "/v1/audio/transcriptions", domain.APITranscriptions, []formPart{{"file", "a.mp3", big}, script, model}},
		{"a translation, the model in the middle", "/v1/audio/translations", domain.APITranslations, []formPart{script, model, {"file", "a.mp3", "ID3"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", "wide", "--models", "fail")
			r := asForm(t, sending{path: tc.path, key: c.secret, nonce: newNonce()}, tc.parts...)
			got := s.send(t, r)
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			seen := s.seen(t, r.nonce)
			require.Len(t, seen, 2)
			for i, upstream := range []string{"m-failing", "m-healthy-longer"} {
				want := bytes.Replace(r.body, []byte("\r\n\r\nfail\r\n"), []byte("\r\n\r\n"+upstream+"\r\n"), 1)
				assert.Equal(t, digestOf(want), seen[i].BodySHA256)
			}
			row := s.records(t, c.keyID, 1)[0]
			assert.Equal(t, tc.api, row.API)
			assert.Equal(t, domain.SourceUpstream, row.Source)
			assert.Positive(t, row.CostMicros)
			c.requireBalanced(t, []domain.UsageRecord{row})
			c.requireIdle(t, "failing", "healthy")
		})
	}
}

// What a form says of its model is what is dispatched, or the form is refused.
func TestCase067Forms(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "metered", "--models", "only-a")
	file := formPart{"file", "a.mp3", "ID3"}
	allowed, other := formPart{name: "model", value: "only-a"}, formPart{name: "model", value: "only-b"}
	for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"} {
		for _, tc := range []struct {
			name   string
			status int
			parts  []formPart
		}{
			{"another model", 404, []formPart{other, file}},
			{"an allowed one and another", 400, []formPart{allowed, file, other}},
			{"another and an allowed one", 400, []formPart{other, file, allowed}},
			{"one in another case", 400, []formPart{allowed, {name: "Model", value: "only-b"}, file}},
			{"a file for a model", 400, []formPart{{"model", "m.txt", "only-a"}, file}},
			{"no model", 400, []formPart{file}},
			{"an empty model", 400, []formPart{{name: "model"}, file}},
			{"a model of two lines", 400, []formPart{{name: "model", value: "only-a\r\nonly-b"}, file}},
			{"n that is no number", 400, []formPart{allowed, file, {name: "n", value: "many"}}},
		} {
			what := path + ": " + tc.name
			r := asForm(t, sending{path: path + "?model=only-b", key: c.secret, nonce: newNonce()}, tc.parts...)
			got := s.send(t, r)
			require.Equal(t, tc.status, got.StatusCode, "%s: %s", what, got.body)
			jsonAt(t, got.body, "error", "message")
			require.Empty(t, s.seen(t, r.nonce), what)
		}
		broken := asForm(t, sending{path: path, key: c.secret, nonce: newNonce()}, allowed, file)
		broken.body = broken.body[:len(broken.body)-6]
		require.Equal(t, http.StatusBadRequest, s.send(t, broken).StatusCode)
		require.Empty(t, s.seen(t, broken.nonce))
	}
	for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations"} {
		requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 415, kind: "invalid_request_error", code: "unsupported_media_type", hopeless: true},
			s.send(t, sending{path: path, key: c.secret, body: []byte(chat("only-a", ""))}))
	}
	require.Empty(t, s.held(t, c.identity, c.keyID))
	require.Empty(t, s.recordsNow(t, c.keyID))
}

func TestTranscriptionsArePricedByWhatTheProviderCounts(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	sound := formPart{"file", "a.mp3", "ID3" + strings.Repeat("x", 95_000)} // ten seconds, by their size
	for _, tc := range []struct {
		name, script, format string
		usage                domain.Usage
		source               domain.Source
		micros               int64
	}{
		{
			"tokens", `{"usage":{"input_uncached":50,"input_audio":40,"output":7}}`, "json",
			domain.Usage{InputUncached: 50, InputAudio: 40, Output: 7},
			domain.SourceUpstream, 10 + 40*3 + 7*5,
		},
		{
			"seconds", `{"usage_raw":{"type":"duration","seconds":3.2}}`, "json",
			domain.Usage{Tools: tools(map[domain.Tool]int64{domain.ToolAudioSecond: 4})},
			domain.SourceUpstream, 4 * 100,
		},
		{
			"a duration beside the text", `{"body":"{\"text\":\"hi\",\"duration\":\"12.0\"}"}`, "verbose_json",
			domain.Usage{Tools: tools(map[domain.Tool]int64{domain.ToolAudioSecond: 12})},
			domain.SourceUpstream, 12 * 100,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", "wide")
			r := asForm(t, sending{path: "/v1/audio/transcriptions", key: c.secret}, sound,
				formPart{name: "prompt", value: "[[fake:" + tc.script + "]]"}, formPart{name: "response_format", value: tc.format}, formPart{name: "model", value: "heard"})
			got := s.send(t, r)
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			row := s.records(t, c.keyID, 1)[0]
			assert.Equal(t, tc.usage, row.Usage)
			assert.Equal(t, tc.source, row.Source)
			assert.Equal(t, tc.micros, row.CostMicros)
		})
	}
	for _, format := range []string{"text", "json"} {
		t.Run("nothing said, as "+format, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", "wide")
			r := asForm(t, sending{path: "/v1/audio/transcriptions", key: c.secret}, sound,
				formPart{name: "prompt", value: `[[fake:{"usage_form":"none"}]]`}, formPart{name: "response_format", value: format}, formPart{name: "model", value: "heard"})
			got := s.send(t, r)
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			row := s.records(t, c.keyID, 1)[0]
			assert.Equal(t, domain.SourceEstimate, row.Source)
			assert.Equal(t, int64(10), row.Usage.Tools[domain.ToolAudioSecond])
			assert.Positive(t, row.Usage.InputUncached)
		})
	}
	t.Run("a stream", func(t *testing.T) {
		t.Parallel()
		c := s.caller(t, newNonce(), "--policy", "wide")
		r := asForm(t, sending{path: "/v1/audio/transcriptions", key: c.secret, nonce: newNonce()}, formPart{name: "stream", value: "true"}, sound,
			formPart{name: "prompt", value: `[[fake:{"usage":{"input_uncached":9,"output":2}}]]`}, formPart{name: "model", value: "heard"})
		got := s.send(t, r)
		require.Equal(t, s.seen(t, r.nonce)[0].SentSHA256, got.digest())
		row := s.records(t, c.keyID, 1)[0]
		assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
		assert.Equal(t, domain.SourceUpstream, row.Source)
		assert.Equal(t, int64(9), row.Usage.InputUncached)
	})
}

func TestImagesArePricedByTokensOrByTheImage(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	draw := func(script, extra string) []byte {
		prompt, err := json.Marshal("a cat [[fake:" + script + "]]")
		require.NoError(t, err)
		return []byte(`{"model":"drawn","prompt":` + string(prompt) + extra + `}`)
	}
	made := func(n int64) [domain.ToolKinds]int64 {
		return tools(map[domain.Tool]int64{domain.ToolImageGeneration: n})
	}
	for _, tc := range []struct {
		name, script, extra string
		usage               domain.Usage
		micros              int64
	}{
		{ // case 86: the tokens are the price, those of the image at their own rate
			"case_086", `{"usage":{"input_uncached":150,"output":8000}}`, `,"quality":"high","size":"1024x1024"`,
			domain.Usage{InputUncached: 150, Output: 8000, OutputImage: 8000, Tools: made(1)},
			150*5 + 8000*40,
		},
		{"by quality and size", `{"usage_form":"none"}`, `,"quality":"high","size":"1024x1024"`, domain.Usage{Tools: made(1)}, 170_000},
		{"by quality", `{"usage_form":"none"}`, `,"n":3,"quality":"low","size":"auto"`, domain.Usage{Tools: made(3)}, 30_000},
		{"one of four", `{"usage_form":"none","count":1}`, `,"n":4`, domain.Usage{Tools: made(1)}, 40_000},
		{"a stream", `{"usage":{"input_uncached":10,"output":100}}`, `,"stream":true,"partial_images":1`, domain.Usage{InputUncached: 10, Output: 100, OutputImage: 100, Tools: made(1)}, 50 + 4000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", "pictures")
			r := sending{path: "/v1/images/generations", key: c.secret, nonce: newNonce(), body: draw(tc.script, tc.extra)}
			got := s.send(t, r)
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
			require.Equal(t, s.seen(t, r.nonce)[0].SentSHA256, got.digest())
			row := s.records(t, c.keyID, 1)[0]
			row.Usage.InputUncached, tc.usage.InputUncached = knownInput(row, tc.usage)
			assert.Equal(t, tc.usage, row.Usage)
			assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
			if row.Source == domain.SourceUpstream {
				assert.Equal(t, tc.micros, row.CostMicros)
			} else {
				assert.InDelta(t, tc.micros, row.CostMicros, 500, "and the estimated prompt")
			}
			c.requireBalanced(t, []domain.UsageRecord{row})
			for name, value := range c.charges(t) {
				if strings.Contains(name, ":images:day:") {
					assert.Equal(t, tc.usage.Tools[domain.ToolImageGeneration], value, name)
				}
			}
		})
	}
	t.Run("more than the day has", func(t *testing.T) {
		t.Parallel()
		c := s.caller(t, newNonce(), "--policy", "pictures")
		got := s.send(t, sending{path: "/v1/images/generations", key: c.secret, body: draw("{}", `,"n":6,"quality":"low"`)})
		requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 429, kind: "rate_limit_error", code: "rate_limit_exceeded", hopeless: true}, got)
	})
	t.Run("more than the budget has", func(t *testing.T) {
		t.Parallel()
		c := s.caller(t, newNonce(), "--policy", "injected")
		got := s.send(t, sending{path: "/v1/images/generations", key: c.secret, body: draw("{}", `,"n":6,"quality":"high","size":"1024x1024"`)})
		requireRefusal(t, refusal{dialect: domain.DialectOpenAI, status: 429, kind: "insufficient_quota", code: "insufficient_quota", hopeless: true}, got)
		require.Empty(t, s.held(t, c.identity, c.keyID))
	})
}

// knownInput leaves an estimated prompt out of a comparison.
func knownInput(row domain.UsageRecord, want domain.Usage) (got, wanted int64) {
	if row.Source == domain.SourceEstimate {
		return 0, 0
	}
	return row.Usage.InputUncached, want.InputUncached
}
