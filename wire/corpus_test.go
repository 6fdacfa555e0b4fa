package wire

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// expectation is the .want.json beside a recorded answer.
type expectation struct {
	Usage      domain.Usage `json:"usage"`
	HasUsage   bool         `json:"has_usage"`
	InputExact bool         `json:"input_exact"`
	Model      string       `json:"model"`
	ID         string       `json:"id"`
	Tier       string       `json:"tier"`
	Terminal   bool         `json:"terminal"`
	Failed     bool         `json:"failed"`
	Cancelled  bool         `json:"cancelled"`
	Error      StreamError  `json:"error"`
	Incomplete string       `json:"incomplete"`
	// Text is true when text was generated.
	Text bool `json:"text"`
	// UsageChunk is the frame that StripUsage takes out, as it stands in the file.
	UsageChunk string `json:"usage_chunk"`
	// Sequence is the sequence_number of our error frame.
	Sequence int64 `json:"sequence"`
}

type recording struct {
	name   string
	api    domain.API
	format Format
	body   string
	want   expectation
}

func corpus(t testing.TB) []recording {
	t.Helper()
	files, err := filepath.Glob("testdata/*/*.want.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var list []recording
	for _, file := range files {
		stem := strings.TrimSuffix(file, ".want.json")
		r := recording{name: strings.TrimPrefix(filepath.ToSlash(stem), "testdata/"), format: FormatSSE}
		r.api = domain.API(filepath.Base(filepath.Dir(file)))
		body, err := os.ReadFile(stem + ".sse")
		if os.IsNotExist(err) {
			r.format = FormatJSON
			body, err = os.ReadFile(stem + ".json")
		}
		require.NoError(t, err)
		r.body = string(body)
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(want, &r.want), file)
		list = append(list, r)
	}
	return list
}

// watched is what came out of a Watcher for one way of cutting the answer.
type watched struct {
	forwarded, tail string
	result          Result
}

func run(o WatchOptions, chunks ...[]byte) watched {
	var (
		w   = NewWatcher(o)
		out []byte
	)
	for _, c := range chunks {
		out = append(out, w.Write(c)...)
	}
	tail := string(w.Close())
	return watched{string(out), tail, w.Result()}
}

func bytewise(body string) [][]byte {
	list := make([][]byte, 0, len(body))
	for i := range len(body) {
		list = append(list, []byte{body[i]})
	}
	return list
}

func (r recording) check(t testing.TB, got Result) {
	t.Helper()
	want := r.want
	assert.Equal(t, want.Usage, got.Usage)
	assert.Equal(t, want.HasUsage, got.HasUsage)
	assert.Equal(t, want.InputExact || (want.HasUsage && want.Usage.Input() > 0), got.InputExact)
	assert.Equal(t, want.Model, got.ModelServed)
	assert.Equal(t, want.ID, got.UpstreamID)
	assert.Equal(t, want.Tier, got.ServiceTier)
	assert.Equal(t, want.Terminal, got.Terminal)
	assert.Equal(t, want.Failed, got.Failed)
	assert.Equal(t, want.Cancelled, got.Cancelled)
	assert.Equal(t, want.Error, got.Error)
	assert.Equal(t, want.Incomplete, got.Incomplete)
	assert.Equal(t, want.Text, got.FirstOutput)
	assert.Equal(t, want.Text, got.OutputTokensEstimate > 0)
	if want.HasUsage {
		assert.True(t, json.Valid(got.RawUsage), "%s", got.RawUsage)
	}
}

// TestCorpus replays every recording in each style of line ends: whole, byte by
// byte and cut in two at every place. All must forward the same bytes and find
// the same.
func TestCorpus(t *testing.T) {
	t.Parallel()
	for _, r := range corpus(t) {
		for _, ends := range lineStyles(r.format) {
			t.Run(r.name+"/"+ends.name, func(t *testing.T) {
				t.Parallel()
				body := strings.ReplaceAll(r.body, "\n", ends.end)
				o := WatchOptions{API: r.api, Format: r.format, RequestID: "req_1"}
				whole := run(o, []byte(body))
				r.check(t, whole.result)
				assert.Equal(t, body, whole.forwarded, "bytes pass untouched")
				r.checkTail(t, body, whole.tail)

				o.StripUsage = true
				stripped := run(o, []byte(body))
				chunk := strings.ReplaceAll(r.want.UsageChunk, "\n", ends.end)
				asked := strings.Replace(body, chunk, "", 1)
				if r.format == FormatSSE && (r.api == domain.APIChat || r.api == domain.APICompletions) {
					asked = strings.ReplaceAll(asked, `,"usage":null`, "")
				}
				assert.Equal(t, asked, stripped.forwarded+strings.TrimSuffix(stripped.tail, whole.tail))
				assert.Equal(t, whole.result, stripped.result)

				for _, o.StripUsage = range []bool{false, true} {
					want := run(o, []byte(body))
					require.Equal(t, want, settled(run(o, bytewise(body)...), want), "byte by byte")
					for cut := ends.stride; cut < len(body); cut += ends.stride {
						got := run(o, []byte(body[:cut]), []byte(body[cut:]))
						if got = settled(got, want); !reflect.DeepEqual(want, got) { // much cheaper than require on success
							require.Equal(t, want, got, "cut at %d", cut)
						}
					}
				}
			})
		}
	}
}

// settled moves the border between what Write and Close gave to where want has
// it: a cut may have the last frame's verdict wait for Close, and back.
func settled(got, want watched) watched {
	all := got.forwarded + got.tail
	if strings.HasPrefix(all, want.forwarded) {
		got.forwarded, got.tail = all[:len(want.forwarded)], all[len(want.forwarded):]
	}
	return got
}

type lineStyle struct {
	name, end string
	// stride is the distance of the places where a recording is cut.
	stride int
}

func lineStyles(f Format) []lineStyle {
	if f == FormatJSON {
		return []lineStyle{{"document", "\n", 1}}
	}
	return []lineStyle{{"lf", "\n", 1}, {"crlf", "\r\n", 13}, {"cr", "\r", 17}}
}

// checkTail holds that a stream which did not end of itself gets an error frame
// that can be read, and any other gets nothing.
func (r recording) checkTail(t testing.TB, body, tail string) {
	t.Helper()
	if r.want.Terminal || r.format == FormatJSON {
		assert.Empty(t, tail)
		return
	}
	require.NotEmpty(t, tail)
	last := lastFrame(body + tail)
	frame := string(ErrorFrame(r.api, errCutShort(), FrameContext{RequestID: "req_1", Sequence: r.want.Sequence}))
	assert.Equal(t, strings.TrimRight(frame, "\n"), last)
	assert.NotContains(t, tail, doneMark)
	// What we sent, another gateway behind us must recognise.
	again := run(WatchOptions{API: r.api, Format: FormatSSE}, []byte(body+tail))
	assert.True(t, again.result.Failed)
	assert.Empty(t, again.tail)
}

func lastFrame(stream string) string {
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	frames := strings.Split(strings.TrimRight(stream, "\n"), "\n\n")
	return frames[len(frames)-1]
}
