package wire

import (
	"bytes"
	"encoding/binary"
	"mime/multipart"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// field is one part of a form; a file when it has a file name.
type field struct{ name, file, value string }

func formOf(t testing.TB, fields ...field) (contentType string, body []byte) {
	t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for _, f := range fields {
		if f.file == "" {
			require.NoError(t, w.WriteField(f.name, f.value))
			continue
		}
		to, err := w.CreateFormFile(f.name, f.file)
		require.NoError(t, err)
		_, err = to.Write([]byte(f.value))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return w.FormDataContentType(), buf.Bytes()
}

func TestFormsAreReadAndRenamed(t *testing.T) {
	t.Parallel()
	for _, fields := range [][]field{
		{{name: "model", value: "m"}, {"file", "a.mp3", "m"}, {name: "stream", value: "true"}},
		{{"file", "a.mp3", "m"}, {name: "stream", value: "True"}, {name: "model", value: "m"}},
		{{name: "prompt", value: "m"}, {name: "stream", value: "true"}, {name: "model", value: "m"}, {"file", "a.mp3", strings.Repeat("m\r\n", 1000)}},
	} {
		contentType, body := formOf(t, fields...)
		q, err := PeekBody(domain.APITranscriptions, contentType, body)
		require.NoError(t, err)
		assert.Equal(t, "m", q.Model)
		assert.True(t, q.Stream)
		assert.Equal(t, int64(1), q.Units[domain.ToolAudioSecond])
		for _, upstream := range []string{"a-longer-name", `"quoted\"`, "é"} {
			sent, err := ApplyPatches(body, q.Patches(PatchOptions{UpstreamModel: upstream}))
			require.NoError(t, err)
			renamed := make([]field, len(fields))
			copy(renamed, fields)
			for i := range renamed {
				if renamed[i].name == "model" {
					renamed[i].value = upstream
				}
			}
			again, err := PeekBody(domain.APITranscriptions, contentType, sent)
			require.NoError(t, err)
			assert.Equal(t, upstream, again.Model)
			assert.Len(t, sent, len(body)-len("m")+len(upstream))
		}
		assert.Empty(t, q.Patches(PatchOptions{UpstreamModel: "m"}))
	}
}

func TestFormsCountWhatTheyHold(t *testing.T) {
	t.Parallel()
	wav := make([]byte, 44+3*32_000)
	copy(wav, "RIFF")
	copy(wav[8:], "WAVE")
	binary.LittleEndian.PutUint32(wav[28:], 32_000)
	forged := bytes.Clone(wav)
	binary.LittleEndian.PutUint32(forged[28:], 4_000_000_000)
	for _, tt := range []struct {
		name    string
		file    string
		seconds int64
	}{
		{"nothing", "", 1},
		{"ten seconds by their size", strings.Repeat("x", 10*soundBytesPerSecond), 10},
		{"a begun one", strings.Repeat("x", 10*soundBytesPerSecond+1), 11},
		{"three seconds by their header", string(wav), 3},
		{"a header that cannot be", string(forged), 10},
	} {
		contentType, body := formOf(t, field{name: "model", value: "m"}, field{"file", "a", tt.file})
		q, err := PeekBody(domain.APITranslations, contentType, body)
		require.NoError(t, err)
		assert.Equal(t, tt.seconds, q.Units[domain.ToolAudioSecond], tt.name)
		assert.GreaterOrEqual(t, q.PromptTokens, int64(len(tt.file)/audioBytesPerToken), tt.name)
	}
	contentType, body := formOf(t, field{name: "model", value: "m"}, field{"image[]", "a", "x"}, field{"image[]", "b", "x"},
		field{name: "n", value: "3"}, field{name: "size", value: "1024x1024"}, field{name: "quality", value: "high"}, field{name: "prompt", value: "a cat on a mat"})
	q, err := PeekBody(domain.APIImageEdits, contentType, body)
	require.NoError(t, err)
	assert.Equal(t, []string{"1024x1024", "high"}, []string{q.Size, q.Quality})
	assert.Equal(t, int64(3), q.N)
	assert.Equal(t, int64(3), q.Units[domain.ToolImageGeneration])
	assert.Greater(t, q.PromptTokens, int64(2*openAIImageCap))
}

func TestFormsAreRefused(t *testing.T) {
	t.Parallel()
	model, file := field{name: "model", value: "m"}, field{"file", "a", "x"}
	for name, fields := range map[string][]field{
		"model":   {file},
		"Model":   {model, file, {name: "Model", value: "x"}},
		"STREAM":  {model, file, {name: "STREAM", value: "true"}},
		"stream":  {model, file, {name: "stream", value: "yes"}},
		"n":       {model, file, {name: "n", value: "0"}},
		"size":    {model, file, {name: "size", value: strings.Repeat("x", MaxModelLen+1)}},
		"quality": {model, file, {name: "quality", value: "a"}, {name: "quality", value: "a"}},
	} {
		contentType, body := formOf(t, fields...)
		_, err := PeekBody(domain.APITranscriptions, contentType, body)
		e := domain.AsError(err)
		require.Equal(t, name, e.Param, "%v", err)
		require.Contains(t, []domain.Code{domain.CodeInvalidRequest, domain.CodeModelMissing}, e.Code)
	}
	for _, bad := range []field{{"model", "m.txt", "m"}, {name: "model", value: "a\r\nb"}, {name: "model", value: "a\xff"}, {name: "model", value: "a\x00"}} {
		contentType, body := formOf(t, bad, file)
		_, err := PeekBody(domain.APITranscriptions, contentType, body)
		require.Equal(t, "model", domain.AsError(err).Param, "%q", bad)
	}
	_, err := PeekBody(domain.APITranscriptions, "multipart/form-data; boundary=x", []byte("--y"))
	require.Equal(t, domain.CodeInvalidRequest, domain.AsError(err).Code)
	require.Contains(t, err.Error(), "boundary")
	_, err = PeekBody(domain.APITranscriptions, "application/json", []byte(`{"model":"m"}`))
	require.Equal(t, domain.CodeUnsupportedBody, domain.AsError(err).Code)
	_, err = PeekBody(domain.APIImageEdits, "application/json", []byte(`{"model":"m","prompt":"x"}`))
	require.NoError(t, err, "newer clients send edits as JSON")
	contentType, body := formOf(t, model)
	_, err = PeekBody(domain.APIChat, contentType, body)
	require.Error(t, err, "a form is no chat")
}

func TestPiecesAreCounted(t *testing.T) {
	t.Parallel()
	documents := `"documents":[` + strings.TrimSuffix(strings.Repeat(`{"text":"abc"},`, 101), ",") + `]`
	for _, tt := range []struct {
		api  domain.API
		body string
		unit domain.Tool
		want int64
	}{
		{domain.APIRerank, `{"model":"m","query":"q",` + documents + `}`, domain.ToolSearchUnit, 2},
		{domain.APIRerank, `{"model":"m","query":"q","documents":[]}`, domain.ToolSearchUnit, 1},
		{domain.APIRerank, `{"model":"m","query":"q"}`, domain.ToolSearchUnit, 1},
		{domain.APISpeech, `{"model":"m","input":"h\u00e9 \ud83d\ude42","voice":"v"}`, domain.ToolCharacter, 4},
		{domain.APISpeech, `{"model":"m","input":"héé","voice":"v"}`, domain.ToolCharacter, 3},
		{domain.APIImages, `{"model":"m","prompt":"p","n":4}`, domain.ToolImageGeneration, 4},
		{domain.APIImages, `{"model":"m","prompt":"p","size":null,"quality":"hd"}`, domain.ToolImageGeneration, 1},
	} {
		q := mustPeek(t, tt.api, tt.body)
		want := [domain.ToolKinds]int64{}
		want[tt.unit] = tt.want
		assert.Equal(t, want, q.Units, "%.80s", tt.body)
	}
	assert.Equal(t, [domain.ToolKinds]int64{}, mustPeek(t, domain.APIChat, `{"model":"m","n":4,`+documents+`,"size":"x"}`).Units)
	_, err := Peek(domain.APIImages, []byte(`{"model":"m","size":7}`))
	assert.Equal(t, "size", domain.AsError(err).Param)
	_, err = Peek(domain.APIImages, []byte(`{"model":"m","Quality":"low"}`))
	assert.Equal(t, "Quality", domain.AsError(err).Param)
}

func TestModelPages(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d", "e"}
	for _, tt := range []struct {
		page ModelPage
		want string
		more bool
	}{
		{ModelPage{Limit: 20}, "a b c d e", false},
		{ModelPage{Limit: 5}, "a b c d e", false},
		{ModelPage{Limit: 2}, "a b", true},
		{ModelPage{After: "b", Limit: 2}, "c d", true},
		{ModelPage{After: "c", Limit: 2}, "d e", false},
		{ModelPage{After: "e", Limit: 2}, "", false},
		{ModelPage{Before: "d", Limit: 2}, "b c", true},
		{ModelPage{Before: "c", Limit: 2}, "a b", false},
		{ModelPage{After: "nobody", Limit: 3}, "a b c", true},
	} {
		body := string(ModelList(domain.DialectAnthropic, names, tt.page))
		var got []string
		for _, name := range names {
			if strings.Contains(body, `"id":"`+name+`"`) {
				got = append(got, name)
			}
		}
		assert.Equal(t, tt.want, strings.Join(got, " "), "%+v", tt.page)
		assert.Equal(t, tt.more, strings.Contains(body, `"has_more":true`), "%+v", tt.page)
		assert.Equal(t, len(got) == 0, strings.Contains(body, `"first_id":null,"last_id":null`))
	}
	assert.JSONEq(t, `{"object":"list","data":[]}`, string(ModelList(domain.DialectOpenAI, nil, ModelPage{})))
}

// Forms of any shape are read in time, and never into a panic.
func FuzzForm(f *testing.F) {
	contentType, body := formOf(f, field{name: "model", value: "m"}, field{"file", "a.wav", "RIFF"})
	f.Add(contentType, body)
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		for _, api := range []domain.API{domain.APITranscriptions, domain.APIImageEdits} {
			q, err := PeekBody(api, contentType, body)
			if err != nil {
				continue
			}
			sent, err := ApplyPatches(body, q.Patches(PatchOptions{UpstreamModel: "upstream"}))
			if err != nil {
				t.Fatal(err)
			}
			again, err := PeekBody(api, contentType, sent)
			if err != nil || again.Model != "upstream" && q.Model != "upstream" {
				t.Fatalf("what was renamed cannot be read again: %v", err)
			}
		}
	})
}
