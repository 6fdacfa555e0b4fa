package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"keyway/domain"
)

// ways are the protocols on both sides: the client's, and by the face behind a
// model the provider's.
var ways = []struct {
	model, proto, upstream string
}{
	{"only-a", "HTTP/1.1", "HTTP/1.1"},
	{"only-a", "HTTP/2.0", "HTTP/1.1"},
	{"only-tlsa", "HTTP/1.1", "HTTP/2.0"},
	{"only-tlsa", "HTTP/2.0", "HTTP/2.0"},
	// Streams of these go through the relay.
	{"muse-a", "HTTP/2.0", "HTTP/1.1"},
	{"muse-tlsa", "HTTP/1.1", "HTTP/2.0"},
}

const (
	askUsage = `"stream":true,"stream_options":{"include_usage":true}`
	asStream = `"stream":true`
)

// byteCase is one answer that must pass as it is.
type byteCase struct {
	name, path string
	// extra are members of the request's body.
	extra, script string
	status        int
	outcome       domain.Outcome
	source        domain.Source
	// length: the answer has a content-length, and the client gets it.
	length bool
}

func byteCases() []byteCase {
	const chatPath, messagesPath = "/v1/chat/completions", "/v1/messages"
	good := func(name, path, extra, script string) byteCase {
		return byteCase{name: name, path: path, extra: extra, script: script, status: 200, outcome: domain.OutcomeSuccess, source: domain.SourceUpstream}
	}
	plain := func(name, path, script string) byteCase {
		c := good(name, path, "", script)
		c.length = true
		return c
	}
	failed := func(name, path string, status int, script string) byteCase {
		return byteCase{name: name, path: path, script: script, status: status, outcome: domain.OutcomeFailed, source: domain.SourceEstimate, length: true}
	}
	unread := func(c byteCase) byteCase {
		c.source = domain.SourceEstimate
		return c
	}
	return []byteCase{
		good("LF", chatPath, askUsage, `{"line_ending":"lf"}`),
		good("CRLF", chatPath, askUsage, `{"line_ending":"crlf"}`),
		good("CR", chatPath, askUsage, `{"line_ending":"cr"}`),
		good("CRLF in single bytes", chatPath, askUsage, `{"line_ending":"crlf","count":2,"cut_every":1}`),
		good("multi-byte text in single bytes", chatPath, askUsage, `{"answer_text":"漢字 🙂 é ſ","cut_every":1}`),
		good("frames joined and cut elsewhere", chatPath, askUsage, `{"cut_every":7,"coalesce":true,"count":40}`),
		good("comments between frames", chatPath, askUsage, `{"interleave":": keep-alive\n\n"}`),
		good("usage in every chunk", chatPath, askUsage, `{"usage_form":"every"}`),
		good("messages LF", messagesPath, asStream, ``),
		good("messages CRLF cut", messagesPath, asStream, `{"line_ending":"crlf","cut_every":5,"coalesce":true}`),
		unread(good("gzip though identity was asked", chatPath, askUsage, `{"gzip":true}`)),
		unread(plain("gzip of a document", chatPath, `{"gzip":true}`)),
		plain("document", chatPath, `{"answer_text":"漢字 🙂"}`),
		plain("messages document", messagesPath, `{}`),
		good("document without a length", chatPath, "", `{"content_length":"none","cut_every":9}`),
		unread(plain("no document", chatPath, `{"body":"just text","headers":{"content-type":"text/plain"}}`)),
		{name: "no content", path: chatPath, script: `{"status":204,"body":"","content_length":"none"}`, status: 204, outcome: domain.OutcomeSuccess, source: domain.SourceEstimate},
		failed("error 400", chatPath, 400, `{"fail":"bad_request"}`),
		failed("error 422 of messages", messagesPath, 422, `{"status":422}`),
		failed("error 500", chatPath, 500, `{"status":500}`),
		failed("error 529", messagesPath, 529, `{"fail":"overloaded"}`),
		failed("error of 300 KB", chatPath, 400, `{"status":400,"body":{"pattern":"[1,2,3]      ","size":300000}}`),
		good("an event of 12 MB", chatPath, askUsage, `{"delta_bytes":12000000}`),
		plain("a document of 20 MB", chatPath, `{"delta_bytes":20000000}`),
	}
}

func TestAnswersPassByteForByte(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, way := range ways {
		t.Run(way.model+" "+way.proto, func(t *testing.T) {
			key, id := s.key(t, "--identity", "wide", "--policy", "wide")
			cases := byteCases()
			asked := make(map[string]byteCase, len(cases))
			usage := make(map[string]*domain.Usage, len(cases))
			for _, tc := range cases {
				nonce := newNonce()
				body := messages(way.model, tc.script, tc.extra)
				if tc.extra == "" {
					body = messages(way.model, tc.script)
				}
				got := s.send(t, sending{path: tc.path, key: key, nonce: nonce, http: clientsByProto[way.proto], body: []byte(body)})
				require.Equal(t, tc.status, got.StatusCode, "%s: %.300s", tc.name, got.body)
				seen := s.seen(t, nonce)
				require.Len(t, seen, 1, tc.name)
				sent := seen[0]
				require.Equal(t, []string{way.proto, way.upstream}, []string{got.Proto, sent.Proto})
				assert.Equal(t, sent.SentBytes, int64(len(got.body)), tc.name)
				assert.Equal(t, sent.SentSHA256, got.digest(), tc.name)
				if tc.length {
					assert.Equal(t, sent.SentBytes, got.ContentLength, tc.name)
				}
				asked[got.Header.Get("X-Request-Id")] = tc
				if sent.Usage != nil {
					u := domain.Usage(*sent.Usage)
					usage[got.Header.Get("X-Request-Id")] = &u
				}
			}
			for _, r := range s.records(t, id, len(cases)) {
				tc, ok := asked[r.RequestID]
				require.True(t, ok, "%+v", r)
				assert.Equal(t, tc.outcome, r.Outcome, tc.name)
				assert.Equal(t, tc.source, r.Source, tc.name)
				assert.Equal(t, tc.status, r.Status, tc.name)
				switch {
				case tc.source == domain.SourceUpstream:
					require.NotNil(t, usage[r.RequestID], tc.name)
					assert.Equal(t, *usage[r.RequestID], r.Usage, tc.name)
				case tc.outcome == domain.OutcomeFailed:
					assert.Zero(t, r.Usage, tc.name)
				default:
					assert.Positive(t, r.Usage.Input(), tc.name)
				}
			}
		})
	}
}

// rawUsage is a usage object as a provider writes it, and what it means.
const rawUsage = `{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}`

var rawUsageMeans = domain.Usage{InputUncached: 5, Output: 2}

// What Keyway asked for and the client did not, the usage chunk and "usage":null
// in the others, is taken out, and nothing else, wherever the stream is cut.
func TestOnlyTheInjectedChunkIsTakenOut(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	frames := []string{
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"é漢🙂\"}}],\"usage\":null}\n\n",
		"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
		"data: {\"choices\":[],\"usage\":" + rawUsage + "}\n\n",
		"data: [DONE]\n\n",
	}
	for _, ending := range []string{"\n", "\r\n", "\r"} {
		t.Run(fmt.Sprintf("%q", ending), func(t *testing.T) {
			chunks := make([]string, len(frames))
			for i, f := range frames {
				chunks[i] = strings.ReplaceAll(f, "\n", ending)
			}
			listed, err := json.Marshal(chunks)
			require.NoError(t, err)
			key, id := s.key(t, "--identity", "wide", "--policy", "wide")
			want := strings.Replace(chunks[0], `,"usage":null`, "", 1) + chunks[1] + chunks[3]
			total := len(strings.Join(chunks, ""))
			var group errgroup.Group
			group.SetLimit(16)
			for at := 1; at < total; at++ {
				way := ways[at%len(ways)]
				script := fmt.Sprintf(`{"chunks":%s,"coalesce":true,"cut_at":[%d],"delay_between_ms":2}`, listed, at)
				if at <= 8 {
					script = fmt.Sprintf(`{"chunks":%s,"coalesce":true,"cut_every":%d}`, listed, at)
				}
				group.Go(func() error {
					got, err := s.trySend(t, sending{path: "/v1/chat/completions", key: key, http: clientsByProto[way.proto], body: []byte(chat(way.model, script, asStream))})
					if err == nil && string(got.body) != want {
						err = fmt.Errorf("got %q", got.body)
					}
					if err != nil {
						return fmt.Errorf("cut at %d, %v: %w", at, way, err)
					}
					return nil
				})
			}
			require.NoError(t, group.Wait())
			for _, r := range s.records(t, id, total-1) {
				require.Equal(t, rawUsageMeans, r.Usage, "%+v", r)
				require.Equal(t, domain.SourceUpstream, r.Source, "%+v", r)
				require.Equal(t, domain.OutcomeSuccess, r.Outcome, "%+v", r)
			}
		})
	}
}

// The same for streams that are generated, megabytes in one event included:
// with the chunk put back, the digest is the provider's.
func TestInjectedChunkPutBackIsTheProvidersStream(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	key, id := s.key(t, "--identity", "wide", "--policy", "wide")
	scripts := []string{`"count":30`, `"count":30,"cut_every":11,"coalesce":true`, `"line_ending":"crlf"`, `"line_ending":"cr"`, `"delta_bytes":12000000`, `"delta_bytes":70000,"cut_every":4096`}
	rows := 0
	for _, script := range scripts {
		ending := "\n"
		if strings.Contains(script, `"cr`) {
			ending = map[bool]string{true: "\r\n", false: "\r"}[strings.Contains(script, "crlf")]
		}
		for _, way := range ways {
			nonce := newNonce()
			got := s.send(t, sending{
				path: "/v1/chat/completions", key: key, nonce: nonce, http: clientsByProto[way.proto],
				body: []byte(chat(way.model, `{`+script+`,"usage_raw":`+rawUsage+`}`, asStream)),
			})
			require.Equal(t, http.StatusOK, got.StatusCode, "%s: %.300s", script, got.body)
			whole, err := putBack(got.body, ending)
			require.NoError(t, err, script)
			seen := s.seen(t, nonce)
			require.Len(t, seen, 1)
			assert.Equal(t, seen[0].SentBytes, int64(len(whole)), "%s %v", script, way)
			assert.Equal(t, seen[0].SentSHA256, digestOf(whole), "%s %v", script, way)
			rows++
		}
	}
	for _, r := range s.records(t, id, rows) {
		require.Equal(t, rawUsageMeans, r.Usage, "%+v", r)
		require.Equal(t, domain.SourceUpstream, r.Source, "%+v", r)
	}
}

// putBack inserts what the provider was asked for by Keyway: "usage":null in each
// frame that was short enough to be read first, and the usage chunk in front of
// the end marker.
func putBack(body []byte, ending string) ([]byte, error) {
	head, _, ok := bytes.Cut(body, []byte(`"choices":`))
	if !ok {
		return nil, errors.New("no choices")
	}
	content, ok := bytes.CutSuffix(body, []byte("data: [DONE]"+ending+ending))
	if !ok {
		return nil, fmt.Errorf("no end marker in %q", body[max(0, len(body)-100):])
	}
	var out bytes.Buffer
	for frame := range bytes.SplitAfterSeq(content, []byte(ending+ending)) {
		object, ok := bytes.CutSuffix(frame, []byte(`}`+ending+ending))
		out.Write(object)
		if ok && len(frame) < 64<<10 {
			out.WriteString(`,"usage":null`)
		}
		out.Write(frame[len(object):])
	}
	out.Write(head)
	out.WriteString(`"choices":[],"usage":` + rawUsage + `}` + ending + ending + "data: [DONE]" + ending + ending)
	return out.Bytes(), nil
}
