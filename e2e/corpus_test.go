package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"keyway/domain"
	"keyway/wire"
)

// recording is an answer of the golden corpus, which package wire keeps, and
// what is to be found in it.
type recording struct {
	name   string
	api    domain.API
	stream bool
	body   []byte
	want   struct {
		Usage      domain.Usage `json:"usage"`
		HasUsage   bool         `json:"has_usage"`
		InputExact bool         `json:"input_exact"`
		ID         string       `json:"id"`
		Terminal   bool         `json:"terminal"`
		Failed     bool         `json:"failed"`
		Cancelled  bool         `json:"cancelled"`
		UsageChunk string       `json:"usage_chunk"`
	}
}

func corpus(t testing.TB) []recording {
	t.Helper()
	files, err := filepath.Glob("../wire/testdata/*/*.want.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	list := make([]recording, 0, len(files))
	for _, file := range files {
		stem := strings.TrimSuffix(file, ".want.json")
		r := recording{api: domain.API(filepath.Base(filepath.Dir(file))), stream: true}
		r.name = string(r.api) + "/" + filepath.Base(stem)
		r.body, err = os.ReadFile(stem + ".sse")
		if os.IsNotExist(err) {
			r.stream = false
			r.body, err = os.ReadFile(stem + ".json")
		}
		require.NoError(t, err)
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(want, &r.want), file)
		list = append(list, r)
	}
	return list
}

// script makes the provider answer with the recording, cut as cuts say.
func (r recording) script(cuts string) string {
	body := `{"base64":"` + base64.StdEncoding.EncodeToString(r.body) + `"}`
	if r.stream {
		return `{"chunks":[` + body + `],"coalesce":true` + cuts + `}`
	}
	return `{"body":` + body + cuts + `}`
}

// request asks a model for the recording.
func (r recording) request(t testing.TB, model, script, extra string) sending {
	t.Helper()
	prompt, err := json.Marshal("[[fake:" + script + "]]")
	require.NoError(t, err)
	out := sending{path: r.api.Path(), nonce: newNonce()}
	members := fmt.Sprintf(`{"model":%q,"stream":%t`, model, r.stream)
	switch r.api {
	case domain.APIImageEdits, domain.APITranscriptions:
		return asForm(t, out, formPart{name: "model", value: model}, formPart{name: "stream", value: fmt.Sprint(r.stream)},
			formPart{"image", "a.png", "\x89PNG"}, formPart{"file", "a.mp3", "ID3"}, formPart{name: "prompt", value: "[[fake:" + script + "]]"})
	case domain.APIChat, domain.APIMessages:
		members += `,"max_tokens":64,"messages":[{"role":"user","content":` + string(prompt) + `}]`
	case domain.APICompletions, domain.APIImages:
		members += `,"prompt":` + string(prompt)
	case domain.APIRerank:
		members = fmt.Sprintf(`{"model":%q,"documents":["one"],"query":%s`, model, prompt)
	case domain.APISpeech:
		members = fmt.Sprintf(`{"model":%q,"voice":"alloy","stream_format":"sse","input":%s`, model, prompt)
	case domain.APIEmbeddings:
		members = fmt.Sprintf(`{"model":%q,"input":%s`, model, prompt)
	default:
		members += `,"input":` + string(prompt)
	}
	out.body = []byte(members + extra + "}")
	return out
}

// cuts are some of the places at which a recording is cut: at every byte, at
// every seventh, and once somewhere, long enough for both halves to come alone.
// Package wire cuts it at all of them.
func (r recording) cuts() []string {
	if len(r.body) < 2 {
		return []string{""}
	}
	seed := fnv.New64a()
	_, _ = seed.Write([]byte(r.name)) // a hash takes all
	rng := rand.New(rand.NewPCG(seed.Sum64(), 1))
	list := []string{`,"cut_every":1`, `,"cut_every":7`}
	for range 2 {
		list = append(list, fmt.Sprintf(`,"cut_at":[%d],"delay_between_ms":3`, 1+rng.IntN(len(r.body)-1)))
	}
	return list
}

// askedUsage are the ways in which a client speaks of the usage of a stream: it
// gets the usage chunk when it asked, and else everything but that.
var askedUsage = []struct {
	extra string
	asked bool
}{
	{`,"stream_options":{"include_usage":true}`, true},
	{`,"stream_options":{"include_usage":false}`, false},
	{"", false},
}

// counts reports whether the recording is of an operation whose clients choose
// whether they get a usage chunk.
func (r recording) counts() bool {
	return r.stream && (r.api == domain.APIChat || r.api == domain.APICompletions)
}

// shown is what of the recording a client gets.
func (r recording) shown(asked bool) string {
	if !r.counts() || asked {
		return string(r.body)
	}
	return strings.ReplaceAll(strings.Replace(string(r.body), r.want.UsageChunk, "", 1), `,"usage":null`, "")
}

// TestCorpus sends every recording of the corpus through the real Envoy, over
// each protocol and over the relay, cut in different places: the client gets the
// provider's bytes, and the ledger what the recording says it used.
func TestCorpus(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	list := corpus(t)
	for _, way := range []struct{ name, model, proto string }{
		{"HTTP/1.1", "only-a", "HTTP/1.1"},
		{"HTTP/2", "only-tlsa", "HTTP/2.0"},
		{"the relay", "muse-tlsa", "HTTP/2.0"},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, "wide", "--policy", "wide")
			type replay struct {
				recording
				what, id string
			}
			var replays []*replay
			var group errgroup.Group
			group.SetLimit(8)
			for _, r := range list {
				for i, cut := range r.cuts() {
					usage := askedUsage[0]
					if r.counts() {
						usage = askedUsage[i%len(askedUsage)]
					} else {
						usage.extra = ""
					}
					p := &replay{recording: r, what: r.name + cut + usage.extra}
					replays = append(replays, p)
					q := r.request(t, way.model, r.script(cut), usage.extra)
					q.key, q.http = c.secret, clientsByProto[way.proto]
					group.Go(func() error {
						got, err := s.trySend(t, q)
						if err != nil {
							return fmt.Errorf("%s: %w", p.what, err)
						}
						p.id = got.Header.Get("X-Request-Id")
						return r.check(got, r.shown(usage.asked))
					})
				}
			}
			require.NoError(t, group.Wait())
			rows := map[string]domain.UsageRecord{}
			for _, row := range c.requireOneRowEach(t, len(replays)) {
				rows[row.RequestID] = row
			}
			for _, p := range replays {
				require.Contains(t, rows, p.id, p.what)
				p.checkRow(t, p.what, rows[p.id])
			}
			c.requireIdle(t)
		})
	}
}

// check compares what a client got with what it is to get: the bytes, and one
// error event behind them where the provider's stream did not end.
func (r recording) check(got received, shown string) error {
	if got.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d: %.300s", r.name, got.StatusCode, got.body)
	}
	tail, ok := bytes.CutPrefix(got.body, []byte(shown))
	if !ok {
		return fmt.Errorf("%s: got %q, want %q", r.name, got.body, shown)
	}
	whole := !r.stream || r.want.Terminal
	if whole && len(tail) > 0 {
		return fmt.Errorf("%s: %q follows the end", r.name, tail)
	}
	if whole || !r.api.Streams() {
		return nil
	}
	w := wire.NewWatcher(wire.WatchOptions{API: r.api, Format: wire.FormatSSE})
	w.Write(got.body)
	if more := w.Close(); len(tail) == 0 || len(more) > 0 || !w.Result().Failed {
		return fmt.Errorf("%s: no error event tells that the stream was cut short: %q", r.name, got.body)
	}
	return nil
}

// checkRow compares the ledger with the recording.
func (r recording) checkRow(t *testing.T, what string, row domain.UsageRecord) {
	t.Helper()
	assert.Equal(t, r.api, row.API, what)
	switch {
	case r.want.HasUsage && r.want.Terminal:
		assert.Equal(t, domain.SourceUpstream, row.Source, what)
		want := r.want.Usage
		// What was asked for by the piece, admission counts where the answer does not.
		switch r.api {
		case domain.APIRerank:
			want.Tools[domain.ToolSearchUnit] = max(want.Tools[domain.ToolSearchUnit], 1)
		case domain.APISpeech:
			assert.Positive(t, row.Usage.Tools[domain.ToolCharacter], what)
			want.Tools[domain.ToolCharacter] = row.Usage.Tools[domain.ToolCharacter]
		}
		assert.Equal(t, want, row.Usage, what)
	case r.want.Failed, len(r.body) == 0:
		assert.Zero(t, row.Usage, what)
	case r.want.InputExact:
		assert.Equal(t, r.want.Usage.Input(), row.Usage.Input(), what)
	default:
		assert.Equal(t, domain.SourceEstimate, row.Source, what)
	}
	switch {
	case r.want.Failed, len(r.body) == 0:
		assert.Equal(t, domain.OutcomeFailed, row.Outcome, what)
	case r.want.Cancelled:
		assert.Equal(t, domain.OutcomeCancelled, row.Outcome, what)
	case r.want.Terminal:
		assert.Equal(t, domain.OutcomeSuccess, row.Outcome, what)
	default:
		assert.Equal(t, domain.OutcomeUpstreamCut, row.Outcome, what)
	}
}
