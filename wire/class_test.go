package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"keyway/domain"
)

func TestClass(t *testing.T) {
	t.Parallel()
	const image = `{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}`
	text := func(s string) string { return fmt.Sprintf(`{"type":"text","text":%q}`, s) }
	english := strings.Repeat("Rain fell on the harbour all night, and nobody minded it much. ", 4)
	for _, tt := range []struct {
		name, content string
		want          domain.ContentClass
	}{
		{"nothing", ``, ""},
		{"English", text(english), domain.ContentText},
		{"German", text("Der Regen fiel die ganze Nacht über dem Hafen, und es störte niemanden sehr."), domain.ContentText},
		{"a list in Markdown", text("## Order of work\n\n- First read the file and look for what changed since the last time.\n- Then write it **back** again, and say so in the log.\n"), domain.ContentText},
		{"Go", text("func add(a, b int) int {\n\treturn f(a[i], b) + m[\"x\"] // sum\n}\n"), domain.ContentCode},
		{"JSON", text(`{"id": 17, "tags": ["a", "b"], "open": true}`), domain.ContentCode},
		{"Chinese", text("今天天气很好，我们去公园散步吧。"), domain.ContentCJK},
		{"Japanese", text("昨日は友だちと映画を見に行きました。"), domain.ContentCJK},
		{"Korean", text("오늘은 날씨가 좋아서 공원에 갔다."), domain.ContentCJK},
		{"a Chinese word in English", text(english + "公园"), domain.ContentText},
		{"Russian", text("Сегодня хорошая погода, пойдём в парк."), domain.ContentText},
		{"an image", image + "," + text("What is this?"), domain.ContentMedia},
		{"a small image beside much text", `{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"}},` + text(english), domain.ContentText},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := mustPeek(t, domain.APIChat, `{"model":"m","messages":[{"role":"user","content":[`+tt.content+`]}]}`)
			assert.Equal(t, tt.want, q.Class)
		})
	}
}

// Token ids are counted: their number is nothing to learn from.
func TestTokenIDsHaveNoClass(t *testing.T) {
	t.Parallel()
	for api, member := range map[domain.API]string{domain.APIEmbeddings: "input", domain.APICompletions: "prompt"} {
		q := mustPeek(t, api, `{"model":"m","`+member+`":[`+strings.Repeat("17,", 99)+`17]}`)
		assert.Empty(t, q.Class)
		assert.EqualValues(t, 100, q.PromptTokens)
	}
}

func TestHiddenPrompt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		api  domain.API
		body string
		want bool
	}{
		{domain.APIChat, `"messages":[{"role":"user","content":"hi"}]`, false},
		{domain.APIChat, `"messages":[]`, true},
		{domain.APIChat, `"metadata":{"note":"not the prompt"},"reasoning_effort":"high"`, true},
		{domain.APIChat, `"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"f_1"}}]}]`, true},
		{domain.APIMessages, `"system":"Be brief.","messages":[]`, false},
		{domain.APIMessages, `"messages":[{"role":"user","content":""}]`, true},
		{domain.APIResponses, `"input":"hi"`, false},
		{domain.APIResponses, `"input":[{"role":"user","content":"hi"}]`, false},
		{domain.APIResponses, `"input":"hi","previous_response_id":"resp_1"`, true},
		{domain.APIResponses, `"input":"hi","previous_response_id":null,"conversation":null`, false},
		{domain.APIResponses, `"input":"hi","conversation":"conv_1"`, true},
		{domain.APICompact, `"previous_response_id":"resp_1"`, true},
		{domain.APICompact, `"input":[{"role":"user","content":"hi"}],"previous_response_id":null`, false},
		{domain.APIResponses, `"prompt":{"id":"pmpt_1"},"input":"hi"`, true},
		{domain.APICompletions, `"prompt":[1,2,3]`, false},
		{domain.APICompletions, `"prompt":""`, false},
		{domain.APIEmbeddings, `"input":[1,2,3]`, false},
	} {
		q := mustPeek(t, tt.api, `{"model":"m",`+tt.body+`}`)
		assert.Equal(t, tt.want, q.HiddenPrompt, "%s %s", tt.api, tt.body)
	}
}
