package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

const usageChunk = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}` + "\n\n"

// feedLarge writes head, size bytes of filler in chunks of 16 KiB, and tail. It
// returns what the watcher allocated meanwhile, in bytes.
func feedLarge(w *Watcher, head string, size int, tail string) uint64 {
	chunk := bytes.Repeat([]byte("QUJD"), 4<<10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.Write([]byte(head))
	for range size / len(chunk) {
		w.Write(chunk)
	}
	w.Write([]byte(tail))
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLargeAnswersNeedLittleMemory is not parallel: it reads the process's
// allocation counter.
func TestLargeAnswersNeedLittleMemory(t *testing.T) {
	const bound = 256 << 10
	tests := []struct {
		name             string
		options          WatchOptions
		head, tail       string
		size             int
		input, out, text int64
	}{
		{
			"chat frame",
			WatchOptions{API: domain.APIChat, Format: FormatSSE, StripUsage: true},
			`data: {"choices":[{"index":0,"delta":{"image":"`, `"},"finish_reason":"stop"}]}` + "\n\n" + usageChunk, 5 << 20, 7, 5, 0,
		},
		{
			"one line of 12 MB (case 40)",
			WatchOptions{API: domain.APIResponses, Format: FormatSSE},
			`data: {"type":"response.image_generation_call.partial_image","partial_image_b64":"`,
			"\"}\n\n" + `data: {"type":"response.completed","response":{"usage":{"input_tokens":7,"output_tokens":5}}}` + "\n\n", 12 << 20, 7, 5, 0,
		},
		{
			"completed frame of 8 MB",
			WatchOptions{API: domain.APIResponses, Format: FormatSSE},
			`data: {"type":"response.completed","response":{"output":[{"result":"`, `"}],"usage":{"input_tokens":7,"output_tokens":5}}}` + "\n\n", 8 << 20, 7, 5, 0,
		},
		{
			"embeddings of 20 MB",
			WatchOptions{API: domain.APIEmbeddings, Format: FormatJSON},
			`{"data":[{"embedding":"`, `"}],"usage":{"prompt_tokens":7,"total_tokens":7}}`, 20 << 20, 7, 0, 0,
		},
		{
			"model name of 1 MB",
			WatchOptions{API: domain.APIChat, Format: FormatJSON},
			`{"model":"`, `","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}`, 1 << 20, 7, 5, 0,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := NewWatcher(tt.options)
			assert.Less(t, feedLarge(w, tt.head, tt.size, tt.tail), uint64(bound))
			w.Close()
			r := w.Result()
			assert.True(t, r.HasUsage)
			assert.True(t, r.Terminal)
			assert.Equal(t, tt.input, r.Usage.Input())
			assert.Equal(t, tt.out, r.Usage.Output)
			assert.Equal(t, tt.text, r.OutputTokensEstimate)
		})
	}
}

func TestOverlongValues(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatJSON})
	long := strings.Repeat("中", maxCapture)
	w.Write([]byte(`{"usage":{"prompt_tokens":7,"x":"` + long + `"},"error":{"message":"` + long + `"}}`))
	r := w.Result()
	assert.False(t, r.HasUsage)
	assert.Nil(t, r.RawUsage)
	assert.True(t, r.Failed)
	assert.LessOrEqual(t, len(r.Error.Message), maxErrorMessage)
	assert.True(t, strings.HasPrefix(long, r.Error.Message), "whole characters only")
	assert.NotEmpty(t, r.Error.Message)
}

// TestUntouchedIsNotCopied: what is not changed is handed back as it lies in
// the caller's memory, and nothing is allocated for it.
func TestUntouchedIsNotCopied(t *testing.T) {
	for _, strip := range []bool{false, true} {
		w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatSSE, StripUsage: strip})
		p := []byte(`data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":" hello"},"finish_reason":null}]}` + "\n\n")
		w.Write(p) // the first one stores the names
		out := w.Write(p)
		require.Len(t, out, len(p))
		assert.Same(t, &p[0], &out[0])
		assert.Zero(t, testing.AllocsPerRun(100, func() { w.Write(p) }))
	}
}

// Without a request for usage a provider writes no "usage":null either, so it
// goes with the chunk; whatever may be something else stays.
func TestStripOfNullUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, frame, want string }{
		{"last", `{"choices":[{}],"usage":null}`, `{"choices":[{}]}`},
		{"in the middle", `{"id":"c","usage":null,"choices":[{}]}`, `{"id":"c","choices":[{}]}`},
		{"first", `{"usage":null,"choices":[{}]}`, `{"choices":[{}]}`},
		{"spaced", `{ "usage" : null , "choices" : [{}]}`, `{  "choices" : [{}]}`},
		{"spaced at the end", `{"choices": [{}] , "usage":	null }`, `{"choices": [{}]  }`},
		{"alone", `{"usage":null}`, `{"usage":null}`},
		{"in text", `{"choices":[{"delta":{"content":",\"usage\":null"}}]}`, `{"choices":[{"delta":{"content":",\"usage\":null"}}]}`},
		{"beside text", `{"choices":[{"delta":{"content":",\"usage\":null"}}],"usage":null}`, `{"choices":[{"delta":{"content":",\"usage\":null"}}]}`},
		{"of a choice", `{"choices":[{"usage":null}]}`, `{"choices":[{"usage":null}]}`},
		{"of a choice too", `{"choices":[{"usage":null}],"usage":null}`, `{"choices":[{"usage":null}],"usage":null}`},
		{"over lines", "{\"choices\":[{}],\ndata: \"usage\":null}", "{\"choices\":[{}],\ndata: \"usage\":null}"},
		{"no JSON", `{"choices":[{}],"usage":nullify}`, `{"choices":[{}],"usage":nullify}`},
		{"counts", `{"choices":[{}],"usage":{"prompt_tokens":1}}`, `{"choices":[{}],"usage":{"prompt_tokens":1}}`},
		{"an error", `{"error":{"message":"no"},"usage":null}`, `{"error":{"message":"no"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const around = "data: {\"choices\":[{}]}\n\n"
			body, want := "data: "+tt.frame+"\n\n", "data: "+tt.want+"\n\n"
			for _, api := range []domain.API{domain.APIChat, domain.APICompletions} {
				o := WatchOptions{API: api, Format: FormatSSE, StripUsage: true}
				for cut := range len(body) {
					got := run(o, []byte(around+body[:cut]), []byte(body[cut:]+around))
					require.Equal(t, around+want+around, got.forwarded, "cut at %d", cut)
				}
				o.StripUsage = false
				require.Equal(t, body, run(o, []byte(body)).forwarded)
			}
			o := WatchOptions{API: domain.APIResponses, Format: FormatSSE, StripUsage: true}
			require.Equal(t, body, run(o, []byte(body)).forwarded)
		})
	}
}

func TestStripHoldsOnlyTheOpenFrame(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatSSE, StripUsage: true})
	assert.True(t, w.AtBoundary())
	assert.Equal(t, "data: 1\n\n", string(w.Write([]byte("data: 1\n\ndata: {\"cho"))))
	assert.True(t, w.AtBoundary(), "the client has whole frames only")
	assert.Empty(t, w.Write([]byte("ices\":[]")))
	assert.Equal(t, "data: {\"choices\":[]}\n\n: ping\n", string(w.Write([]byte("}\n\n: ping\n"))))
	assert.Empty(t, w.Write([]byte(usageChunk[:20])))
	assert.Equal(t, "data: 2\n\n", string(w.Write([]byte(usageChunk[20:]+"data: 2\n\ndat"))))
	assert.True(t, strings.HasPrefix(string(w.Close()), "dat\n\ndata: {\"error\""))
}

func TestStripReleasesALongFrame(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatSSE, StripUsage: true})
	body := strings.Replace(usageChunk, `"choices"`, `"pad":"`+strings.Repeat("x", maxHeld)+`","choices"`, 1)
	var out []byte
	for len(body) > 0 {
		n := min(1000, len(body))
		out = append(out, w.Write([]byte(body[:n]))...)
		assert.LessOrEqual(t, len(w.strip.held), maxHeld)
		body = body[n:]
	}
	assert.Greater(t, len(out), maxHeld, "forwarded, not stripped")
	assert.True(t, w.Result().HasUsage)
	assert.Equal(t, "data: 2\n\n", string(w.Write([]byte(usageChunk+"data: 2\n\n"))), "the next one is short enough")
}

func TestBoundaryWithoutStrip(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatSSE})
	w.Write([]byte("data: 1\n"))
	assert.False(t, w.AtBoundary())
	w.Write([]byte("\n"))
	assert.True(t, w.AtBoundary())
}

// A usage of the whole answer goes before one that stands elsewhere.
func TestInnerUsageGivesWay(t *testing.T) {
	t.Parallel()
	for outer, want := range map[string]int64{"null": 5, `{"prompt_tokens":7,"completion_tokens":6}`: 6} {
		frame := `data: {"usage":` + outer + `,"choices":[{"delta":{},"usage":{"prompt_tokens":7,"completion_tokens":5}}]}` + "\n\n"
		got := run(WatchOptions{API: domain.APIChat, Format: FormatSSE}, []byte(frame)).result
		assert.True(t, got.HasUsage, outer)
		assert.Equal(t, domain.Usage{InputUncached: 7, Output: want}, got.Usage, outer)
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	exact := Result{HasUsage: true, Usage: domain.Usage{InputUncached: 1, Output: 2}, OutputTokensEstimate: 9}
	u, source := exact.Count(50)
	assert.Equal(t, domain.Usage{InputUncached: 1, Output: 2}, u)
	assert.Equal(t, domain.SourceUpstream, source)

	cut := Result{HasUsage: true, Usage: domain.Usage{InputUncached: 1, Output: 2}, OutputTokensEstimate: 9, Uncounted: 6}
	u, source = cut.Count(50)
	assert.Equal(t, domain.Usage{InputUncached: 1, Output: 8}, u)
	assert.Equal(t, domain.SourceEstimate, source)
	cut.Terminal = true
	u, source = cut.Count(50)
	assert.Equal(t, domain.Usage{InputUncached: 1, Output: 2}, u)
	assert.Equal(t, domain.SourceUpstream, source)

	half := Result{InputExact: true, Usage: domain.Usage{InputUncached: 1, CacheRead: 4, Output: 1}, OutputTokensEstimate: 9}
	u, source = half.Count(50)
	assert.Equal(t, domain.Usage{InputUncached: 1, CacheRead: 4, Output: 9}, u)
	assert.Equal(t, domain.SourceEstimate, source)

	none := Result{OutputTokensEstimate: 9}
	u, _ = none.Count(50)
	assert.Equal(t, domain.Usage{InputUncached: 50, Output: 9}, u)
}

// What came after the last usage is uncounted, wherever the stream was cut.
func TestUncounted(t *testing.T) {
	t.Parallel()
	text := func(words string) string {
		return `data: {"choices":[{"index":0,"delta":{"content":"` + words + `"}}]}` + "\n\n"
	}
	got := run(WatchOptions{API: domain.APIChat, Format: FormatSSE}, bytewise(text("one two three")+usageChunk+text(" four five six"))...).result
	assert.Equal(t, got.OutputTokensEstimate-EstimateTokens([]byte("one two three")), got.Uncounted)
	assert.Equal(t, int64(3), got.Uncounted)
}

func TestResultIsACopy(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatSSE})
	w.Write([]byte(usageChunk))
	r := w.Result()
	kept := string(r.RawUsage)
	w.Write([]byte(strings.Replace(usageChunk, "7", "8", 1)))
	assert.Equal(t, kept, string(r.RawUsage))
	assert.Equal(t, int64(8), w.Result().Usage.InputUncached)
}

func TestEstimateOfForwardedText(t *testing.T) {
	t.Parallel()
	words := strings.Fields(strings.Repeat("the quick brown fox jumps over the lazy dog ", 20))
	w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatSSE})
	for _, word := range words {
		w.Write(fmt.Appendf(nil, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s \"}}]}\n\n", word))
	}
	assert.InDelta(t, len(words), w.Result().OutputTokensEstimate, float64(len(words))/20)
}

// TestEscapedTextCountsAsWhatItMeans: the same text, escaped or not, cut or
// not, is the same estimate.
func TestEscapedTextCountsAsWhatItMeans(t *testing.T) {
	t.Parallel()
	frame := func(content string) []byte {
		return []byte(`data: {"choices":[{"index":0,"delta":{"content":"` + content + `"}}]}` + "\n\n")
	}
	o := WatchOptions{API: domain.APIChat, Format: FormatSSE}
	for plain, escaped := range map[string]string{
		strings.Repeat("🙂", 10):     strings.Repeat(`\ud83d\uDE42`, 10),
		strings.Repeat("\ufffd", 6): strings.Repeat(`\ud83d`, 6),
		"\ufffd🙂\ufffda\ufffd":      `\ude42\ud83d\ude42\ud83da\ud83d`,
		"a/b é中":                    `\u0061\/b \u00e9\u4e2d`,
	} {
		want := EstimateTokens([]byte(plain))
		assert.Equal(t, want, run(o, frame(plain)).result.OutputTokensEstimate, plain)
		assert.Equal(t, want, run(o, frame(escaped)).result.OutputTokensEstimate, escaped)
		assert.Equal(t, want, run(o, bytewise(string(frame(escaped)))...).result.OutputTokensEstimate, escaped)
	}
}

func TestStripOfAnUnendedChunk(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatSSE, StripUsage: true})
	w.Write([]byte("data: {\"choices\":[{\"index\":0,\"delta\":{}}]}\n\n"))
	assert.Empty(t, w.Write([]byte(strings.TrimRight(usageChunk, "\n"))))
	assert.True(t, bytes.HasPrefix(w.Close(), []byte("data: {\"error\"")), "no line ends for a frame that is gone")
	assert.True(t, w.Result().HasUsage)
}

func TestChoiceIndexBeyondBelief(t *testing.T) {
	t.Parallel()
	for _, index := range []string{"1000", "-1", "99999999999999999999", "1.5", `"0"`, "null"} {
		r := run(WatchOptions{API: domain.APIChat, Format: FormatSSE},
			[]byte(`data: {"choices":[{"index":`+index+`,"delta":{},"finish_reason":"stop"}]}`+"\n\n"))
		assert.True(t, r.result.Terminal, index)
	}
}

func TestUnwatchedPasses(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatchOptions{API: domain.APIRawOpenAI, Format: FormatSSE, StripUsage: true})
	p := []byte(usageChunk)
	assert.Equal(t, usageChunk, string(w.Write(p)))
	assert.Empty(t, w.Close())
	assert.Equal(t, Result{}, w.Result())
}

// FuzzUsage: whatever encoding/json reads in a document, the scanner reads the
// same usage of it, in one piece and in many, and never panics on the rest.
func FuzzUsage(f *testing.F) {
	for _, r := range corpus(f) {
		if r.format == FormatJSON || len(r.body) < 1000 {
			f.Add([]byte(r.body), uint16(len(r.body)/2))
		}
	}
	f.Add([]byte(`{"usag\u0065":{"prompt_tokens":3,"prompt_tokens":4,"completion_tokens":1e1},"x":[{"usage":{"prompt_tokens":9}}]}`), uint16(5))
	f.Add([]byte(`data: {"00":00,"\uX000000000000","choices":[{"00000":0,"delta":{"content":"0`), uint16(327))
	f.Add([]byte("\ufeffdata: {\"id\":\"c1\",\"model\":\"m\"}\n\n"), uint16(2))
	f.Fuzz(func(t *testing.T, body []byte, cut uint16) {
		k := int(cut) % (len(body) + 1)
		o := WatchOptions{API: domain.APIChat, Format: FormatJSON}
		whole := run(o, body)
		require.Equal(t, whole, run(o, body[:k], body[k:]))
		require.Equal(t, string(body), whole.forwarded)
		for _, api := range []domain.API{domain.APIChat, domain.APIResponses, domain.APIMessages} {
			sse := WatchOptions{API: api, Format: FormatSSE, StripUsage: true}
			want := run(sse, body)
			require.Equal(t, want, settled(run(sse, body[:k], body[k:]), want))
		}
		want, ok := usageOracle(body)
		if !ok {
			return
		}
		got := tallyOf(body)
		require.Equal(t, want, got)
	})
}

// tallyOf scans a document that is a chat answer and returns the fields found.
func tallyOf(body []byte) map[countField]int64 {
	w := NewWatcher(WatchOptions{API: domain.APIChat, Format: FormatJSON})
	w.Write(body)
	got := map[countField]int64{}
	for f := range countFields {
		if w.tally.has(f) {
			got[f] = w.tally.count[f]
		}
	}
	return got
}

// usageOracle reads the same by encoding/json. Documents that it and the
// scanner may see differently on purpose are left out: they are not UTF-8, too
// deep or long, or repeat a key with values of several kinds.
func usageOracle(body []byte) (map[countField]int64, bool) {
	const small = 4 << 10
	var doc map[string]json.RawMessage
	if len(body) > small || bytes.ContainsRune(body, '\ufffd') || bytes.Count(body, []byte("\\")) > 0 ||
		bytes.Count(body, []byte("[")) > 50 || bytes.Count(body, []byte("{")) > 50 ||
		repeatsKey(body) || json.Unmarshal(body, &doc) != nil || doc == nil {
		return nil, false
	}
	got := map[countField]int64{}
	var usage map[string]json.RawMessage
	if json.Unmarshal(doc["usage"], &usage) != nil {
		return got, true
	}
	ceiling := func(raw string, f countField) {
		n, ok := new(big.Rat).SetString(raw)
		if !ok || strings.ContainsAny(raw, "eE-/\"") {
			return
		}
		whole := new(big.Int).Quo(new(big.Int).Add(n.Num(), new(big.Int).Sub(n.Denom(), big.NewInt(1))), n.Denom())
		if whole.IsInt64() && whole.Int64() <= maxCount && new(big.Int).Quo(n.Num(), n.Denom()).Int64() < maxCount {
			got[f] = whole.Int64()
		}
	}
	read := func(from map[string]json.RawMessage, name string, f countField) {
		raw := string(from[name])
		if raw == strconv.Itoa(maxCount) {
			got[f] = maxCount
			return
		}
		ceiling(strings.Trim(raw, `"`), f)
	}
	ceiling(string(usage["search_units"]), countSearchUnits)
	ceiling(string(usage["seconds"]), countSeconds)
	read(usage, "prompt_tokens", countPrompt)
	read(usage, "input_tokens", countPrompt)
	read(usage, "completion_tokens", countOutput)
	read(usage, "output_tokens", countOutput)
	read(usage, "total_tokens", countTotal)
	read(usage, "cache_read_input_tokens", countCacheRead)
	read(usage, "cached_tokens", countCacheRead)
	read(usage, "prompt_cache_hit_tokens", countCacheRead)
	read(usage, "cache_creation_input_tokens", countCacheWrite)
	var details func(from map[string]json.RawMessage, name string, of parts)
	details = func(from map[string]json.RawMessage, name string, of parts) {
		var found map[string]json.RawMessage
		if json.Unmarshal(from[name], &found) != nil {
			return
		}
		for field, f := range of {
			read(found, field, f)
		}
		if name != "cache_write_tokens_details" {
			details(found, "cache_write_tokens_details", inputParts)
		}
	}
	for _, name := range []string{"prompt_tokens_details", "input_tokens_details", "input_token_details", "cache_creation", "cache_write_tokens_details"} {
		details(usage, name, inputParts)
	}
	details(usage, "completion_tokens_details", outputParts)
	details(usage, "output_tokens_details", outputParts)
	details(usage, "output_token_details", outputParts)
	details(usage, "server_tool_use", toolParts)
	return got, true
}

// repeatsKey reports whether two names that mean one count both stand in body,
// or one stands twice: then the order decides, which a map does not keep.
func repeatsKey(body []byte) bool {
	for _, names := range [][]string{
		{`"usage"`},
		{`"prompt_tokens"`, `"input_tokens"`},
		{`"completion_tokens"`, `"output_tokens"`},
		{`"total_tokens"`},
		{`"cached_tokens"`, `"cache_read_input_tokens"`, `"prompt_cache_hit_tokens"`},
		{`"cache_write_tokens"`, `"cache_creation_input_tokens"`},
		{`"reasoning_tokens"`, `"thinking_tokens"`},
		{`"ephemeral_5m_input_tokens"`},
		{`"ephemeral_1h_input_tokens"`, `"ttl_1h_tokens"`},
		{`"ttl_30m_tokens"`},
		{`"ttl_12h_tokens"`},
		{`"audio_tokens"`},
		{`"image_tokens"`},
		{`"web_search_requests"`},
		{`"web_fetch_requests"`},
		{`"server_tool_use"`},
		{`"cache_write_tokens_details"`},
		{`"prompt_tokens_details"`},
		{`"input_tokens_details"`},
		{`"completion_tokens_details"`},
		{`"output_tokens_details"`},
		{`"input_token_details"`},
		{`"output_token_details"`},
		{`"search_units"`},
		{`"seconds"`},
		{`"cache_creation"`},
	} {
		n := 0
		for _, name := range names {
			n += bytes.Count(body, []byte(name))
		}
		if n > 1 {
			return true
		}
	}
	return false
}

func BenchmarkWatcher(b *testing.B) {
	chunk := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-x-2026","choices":[{"index":0,"delta":{"content":" hello"},"finish_reason":null}],"usage":null}` + "\n\n")
	halves := [][]byte{chunk[:60], chunk[60:]}
	text := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" hello\"}}\n\n")
	tests := []struct {
		name    string
		options WatchOptions
		chunks  [][]byte
	}{
		{"chat", WatchOptions{API: domain.APIChat, Format: FormatSSE}, [][]byte{chunk}},
		{"chat, strip", WatchOptions{API: domain.APIChat, Format: FormatSSE, StripUsage: true}, [][]byte{chunk}},
		{"chat, strip, cut", WatchOptions{API: domain.APIChat, Format: FormatSSE, StripUsage: true}, halves},
		{"messages", WatchOptions{API: domain.APIMessages, Format: FormatSSE}, [][]byte{text}},
		{"large json", WatchOptions{API: domain.APIEmbeddings, Format: FormatJSON}, [][]byte{bytes.Repeat([]byte("[0.0123456,-0.345e-2],"), 1000)}},
	}
	for _, tt := range tests {
		b.Run(tt.name, func(b *testing.B) {
			w := NewWatcher(tt.options)
			if tt.options.Format == FormatJSON {
				w.Write([]byte(`{"data":[`))
			}
			size := 0
			for _, c := range tt.chunks {
				size += len(c)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				for _, c := range tt.chunks {
					w.Write(c)
				}
			}
		})
	}
}
