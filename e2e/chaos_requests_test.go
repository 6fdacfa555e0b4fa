package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// chaosRequest is one request and what may come of it.
type chaosRequest struct {
	// id reaches the provider with every attempt.
	id    string
	path  string
	model string
	// rest is the body behind the model: its pieces, of which the filler is shared.
	rest [][]byte
	// injected: the gateway asks for the usage chunk; the client did not.
	injected bool
	// usage is the usage object that the answer carries, tokens its sum.
	usage  string
	tokens int64
	// hopeless: every provider refuses, so that an error is the right answer.
	hopeless bool
}

// ration lets one through in a while.
type ration struct {
	every time.Duration

	mu   sync.Mutex
	next time.Time
}

func (r *ration) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Before(r.next) {
		return false
	}
	r.next = now.Add(r.every)
	return true
}

// filler is prompt text: 9 MB, of which a request takes a part.
var filler = bytes.Repeat([]byte("Once more the old river carried the letter past the mill and on to the sea. "), 9<<20/77)

// compose makes a request: an operation, a size, and what the provider does.
func (c *chaos) compose(rng *rand.Rand) *chaosRequest {
	r := &chaosRequest{id: fmt.Sprintf("%016x", rng.Uint64()), model: []string{"m", "m", "m-h2"}[rng.IntN(3)]}
	script := map[string]any{"count": 1 + rng.IntN(60)}
	stream := rng.IntN(4) > 0
	if stream {
		script["delay_between_ms"] = rng.IntN(8)
		script["cut_every"] = 20 + rng.IntN(2000)
	}
	script["delay_headers_ms"] = rng.IntN(30)
	length := rng.IntN(4 << 10)
	heavy := c.heavy.take()
	switch kind := rng.IntN(100); {
	case heavy && kind < 35: // A large request, often with a retry.
		length = 1<<20 + rng.IntN(len(filler)-1<<20)
		if kind < 20 {
			refuse(rng, script, 1<<10)
			r.hopeless = script["only_face"] == nil
		}
	case heavy && kind < 65: // A large answer.
		script["delta_bytes"], script["count"] = 1<<20+rng.IntN(19<<20), 2
		script["cut_every"], script["coalesce"], script["delay_between_ms"] = 256<<10, true, 0
	case heavy: // A large refusal.
		refuse(rng, script, 9<<20)
		r.hopeless = script["only_face"] == nil
	case kind < 20:
		refuse(rng, script, 64<<10)
		r.hopeless = script["only_face"] == nil
	case kind < 30:
		breakOff(rng, script)
	case kind < 45:
		script["delta_bytes"] = rng.IntN(256 << 10)
		script["cut_every"], script["delay_between_ms"] = 4096+rng.IntN(64<<10), rng.IntN(3)
	case kind < 60:
		length = rng.IntN(256 << 10)
	}
	c.write(rng, r, shape{script: script, stream: stream, filler: filler[:length]})
	return r
}

// refuse lets one face or all of them answer with an error of up to size bytes.
func refuse(rng *rand.Rand, script map[string]any, size int) {
	script["status"] = []int{429, 500, 503}[rng.IntN(3)]
	script["body"] = map[string]any{"pattern": "no. ", "size": 1<<10 + rng.IntN(size)}
	script["cut_every"], script["delay_between_ms"] = 64<<10, 0
	if rng.IntN(3) > 0 {
		script["only_face"] = faceNames[rng.IntN(len(faceNames))]
	}
}

// breakOff lets one face end its answer badly, before its headers or later.
func breakOff(rng *rand.Rand, script map[string]any) {
	point := map[string]any{"frames": rng.IntN(5)}
	if rng.IntN(2) == 0 {
		point = map[string]any{"before_headers": true}
	}
	script[[]string{"reset_after", "drop_after"}[rng.IntN(2)]] = point
	script["only_face"] = faceNames[rng.IntN(len(faceNames))]
}

// shape is how a request is written.
type shape struct {
	script map[string]any
	stream bool
	filler []byte
}

// write fills in path, body and usage.
func (c *chaos) write(rng *rand.Rand, r *chaosRequest, s shape) {
	in, out := 1+rng.Int64N(500), 1+rng.Int64N(60)
	r.tokens = in + out
	chatLike := rng.IntN(3) > 0
	if chatLike {
		r.usage = fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, out, in+out)
		s.script["usage_raw"] = json.RawMessage(r.usage)
	} else {
		s.script["usage"] = map[string]int64{"input_uncached": in, "output": out}
	}
	raw, err := json.Marshal(s.script)
	if err != nil {
		panic(err) // maps of plain values always marshal
	}
	marker, _ := json.Marshal(" [[fake:" + string(raw) + "]]") // a string always does
	end := fmt.Sprintf(`,"stream":%t}`, s.stream)
	mark := strings.TrimPrefix(string(marker), `"`)
	switch {
	case chatLike:
		r.path = "/v1/chat/completions"
		r.injected = s.stream && rng.IntN(2) == 0
		if s.stream && !r.injected {
			end = `,"stream":true,"stream_options":{"include_usage":true}}`
		}
		r.rest = pieces(`,"messages":[{"role":"user","content":"`, s.filler, `"},{"role":"user","content":"`+mark+`}]`+end)
	case rng.IntN(2) == 0:
		r.path = "/v1/messages"
		r.rest = pieces(`,"max_tokens":64,"messages":[{"role":"user","content":"`, s.filler, mark+`}]`+end)
	default:
		r.path = "/v1/responses"
		r.rest = pieces(`,"input":"`, s.filler, mark+end)
	}
}

func pieces(before string, middle []byte, after string) [][]byte {
	return [][]byte{[]byte(before), middle, []byte(after)}
}

// reader is the body that the client sends.
func (r *chaosRequest) reader() (io.Reader, int64) {
	readers := []io.Reader{strings.NewReader(r.head("{", r.model))}
	length := int64(len(r.head("{", r.model)))
	for _, piece := range r.rest {
		readers = append(readers, bytes.NewReader(piece))
		length += int64(len(piece))
	}
	return io.MultiReader(readers...), length
}

func (r *chaosRequest) head(open, model string) string { return open + `"model":"` + model + `"` }

// patchedDigest is the digest of the body that a provider must get when the
// channel's name for the model is model.
func (r *chaosRequest) patchedDigest(model string) string {
	open := "{"
	if r.injected {
		open = `{"stream_options":{"include_usage":true},`
	}
	sum := sha256.New()
	sum.Write([]byte(r.head(open, model)))
	for _, piece := range r.rest {
		sum.Write(piece)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// upstreamNames are the names under which a face may get the request's model.
func (r *chaosRequest) upstreamNames(face string) []string {
	if r.model == "m-h2" {
		return []string{"m-h2"}
	}
	return []string{"m-at-" + face, "m-at-" + extraChannel}
}
