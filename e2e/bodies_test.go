package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// bigBody is a streamed chat of exactly size bytes, its script at the end of the prompt.
func bigBody(model, script string, size int) []byte {
	marker := ""
	if script != "" {
		marker = " [[fake:" + strings.ReplaceAll(script, `"`, `\"`) + "]]"
	}
	head := fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":64,"messages":[{"role":"user","content":"`, model)
	tail := marker + `"}]}`
	const text = "The quick brown fox, 漢字 and 🙂. "
	fill := size - len(head) - len(tail)
	pad := strings.Repeat(text, fill/len(text)) + strings.Repeat("x", fill%len(text))
	return []byte(head + pad + tail)
}

// rewritten is body as a channel must get it: its own model name, usage asked for.
func rewritten(t *testing.T, body []byte, from, to string) []byte {
	t.Helper()
	old := []byte(`{"model":"` + from + `"`)
	require.True(t, bytes.HasPrefix(body, old))
	return append([]byte(`{"stream_options":{"include_usage":true},"model":"`+to+`"`), body[len(old):]...)
}

func TestBodiesSurviveARetryAndARewrite(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	// One after the other: together they would be a test of memory.
	for _, size := range []int{32_769, 1 << 20, 8 << 20, 31 << 20, 32 << 20} {
		for _, way := range []struct {
			model, firstFace, first, second string
			http                            *http.Client
		}{
			{"two", "a", "first", "second", client},
			{"two-tls", "tlsa", "first-tls", "second-tls", clientHTTP2},
		} {
			if size == 32<<20 && way.model == "two-tls" {
				continue // the limit is the listener's; one way in finds it
			}
			what := fmt.Sprintf("%d bytes, %s", size, way.model)
			identity, nonce := newNonce(), newNonce()
			key, id := s.key(t, "--identity", identity, "--policy", "wide")
			body := bigBody(way.model, `{"only_face":"`+way.firstFace+`","status":500}`, size)
			require.Len(t, body, size)
			got := s.send(t, sending{path: "/v1/chat/completions", key: key, nonce: nonce, http: way.http, body: body})
			require.Equal(t, http.StatusOK, got.StatusCode, "%s: %s", what, got.body)
			assert.Contains(t, string(got.body), "data: [DONE]", what)
			assert.NotContains(t, string(got.body), "prompt_tokens", what)

			seen := s.seen(t, nonce)
			require.Len(t, seen, 2, what)
			for i, upstream := range []string{"m-first", "m-second-longer"} {
				want := rewritten(t, body, way.model, upstream)
				assert.Equal(t, int64(len(want)), seen[i].BodyBytes, what)
				assert.Equal(t, digestOf(want), seen[i].BodySHA256, what)
				assert.Equal(t, []string{strconv.Itoa(len(want))}, seen[i].Header.Values("Content-Length"), what)
				assert.Equal(t, upstream, seen[i].Model, what)
			}
			assert.Equal(t, way.model == "two-tls", seen[1].Proto == "HTTP/2.0", what)

			r := s.records(t, id, 1)[0]
			assert.Equal(t, []domain.Attempt{{Channel: way.first, Status: 500}, {Channel: way.second, Status: 200}}, r.Attempts, what)
			assert.Equal(t, domain.OutcomeSuccess, r.Outcome, what)
			assert.Equal(t, domain.SourceUpstream, r.Source, what)
			assert.Equal(t, domain.Usage(*seen[1].Usage), r.Usage, what)
			for name, value := range s.held(t, identity, id) {
				assert.False(t, strings.Contains(name, ":inflight:"), "%s: %s is %d", what, name, value)
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}
