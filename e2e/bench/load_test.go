package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// target is something that requests can be sent to.
type target struct {
	name string
	addr string
	// whole and stream are requests as bytes, so that sending costs nothing.
	whole  []byte
	stream []byte
	// chunks is how many of them stream asks for.
	chunks int
}

// newTarget prepares requests of about 500 bytes.
func newTarget(name, addr, key, model string) target {
	request := func(extra string) []byte {
		return post(addr, key, fmt.Sprintf(`{"model":%q,"messages":[{"role":"system","content":"%s"},{"role":"user","content":"How is the river?"}],"max_tokens":200%s}`,
			model, strings.Repeat("You answer in short and friendly sentences. ", 8), extra))
	}
	return target{name: name, addr: addr, whole: request(""), stream: request(`,"stream":true`), chunks: streamChunks}
}

// post is a chat request as bytes.
func post(addr, key, body string) []byte {
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nhost: %s\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
		addr, key, len(body), body)
}

// rhythmic asks for a stream of chunks, the one every after the other.
func rhythmic(addr, key, model string, every time.Duration, chunks int) []byte {
	return post(addr, key, fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"How is the river? Please `+rhythmFormat+`."}],"max_tokens":200,"stream":true}`,
		model, every.Milliseconds(), chunks))
}

// head is what of a message's head the benchmark reads.
type head struct {
	status  int
	body    int64
	chunked bool
}

var (
	headLength  = []byte("content-length:")
	headChunked = []byte("transfer-encoding: chunked")
)

// readHead reads a request's or an answer's head.
func readHead(r *bufio.Reader) (head, error) {
	var h head
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return h, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first && bytes.HasPrefix(line, []byte("HTTP/1.1 ")):
			h.status, err = strconv.Atoi(string(line[9:12]))
		case len(line) == 0:
			return h, nil
		case len(line) > len(headLength) && bytes.EqualFold(line[:len(headLength)], headLength):
			h.body, err = strconv.ParseInt(string(bytes.TrimSpace(line[len(headLength):])), 10, 64)
		case bytes.EqualFold(line, headChunked):
			h.chunked = true
		}
		if err != nil {
			return h, fmt.Errorf("read head: %w", err)
		}
	}
}

// caller is one connection of a client.
type caller struct {
	conn net.Conn
	r    *bufio.Reader
}

func dial(addr string) (*caller, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &caller{conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}, nil
}

// begin sends a request and returns the answer's body.
func (c *caller) begin(request []byte) (io.Reader, error) {
	if _, err := c.conn.Write(request); err != nil {
		return nil, err
	}
	h, err := readHead(c.r)
	if err != nil {
		return nil, err
	}
	body := io.LimitReader(c.r, h.body)
	if h.chunked {
		body = httputil.NewChunkedReader(c.r)
	}
	if h.status != 200 {
		raw, _ := io.ReadAll(body) // the status says enough
		return nil, fmt.Errorf("status %d: %s", h.status, raw)
	}
	return body, nil
}

// whole makes one request whose answer is no stream.
func (c *caller) whole(request []byte) error {
	body, err := c.begin(request)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, body)
	if err == nil && n != int64(len(answerBody)) {
		err = fmt.Errorf("answer of %d bytes instead of %d", n, len(answerBody))
	}
	return err
}

// flow is what a phase of requests without streams showed.
type flow struct {
	requests int
	took     time.Duration
	// latencies are of every request, unsorted.
	latencies []time.Duration
}

// pour sends requests over conns connections, one at a time on each, for d.
func pour(t target, conns int, d time.Duration) (flow, error) {
	var (
		all     = make([][]time.Duration, conns)
		errs    = make([]error, conns)
		wg      sync.WaitGroup
		stopped atomic.Bool
	)
	start := time.Now()
	timer := time.AfterFunc(d, func() { stopped.Store(true) })
	defer timer.Stop()
	for i := range conns {
		wg.Go(func() {
			c, err := dial(t.addr)
			if err != nil {
				errs[i] = err
				return
			}
			defer c.conn.Close()
			for !stopped.Load() {
				sent := time.Now()
				if err := c.whole(t.whole); err != nil {
					errs[i] = err
					return
				}
				all[i] = append(all[i], time.Since(sent))
			}
		})
	}
	wg.Wait()
	f := flow{took: time.Since(start)}
	for _, part := range all {
		f.latencies = append(f.latencies, part...)
	}
	f.requests = len(f.latencies)
	if err := errors.Join(errs...); err != nil {
		return f, fmt.Errorf("load %s: %w", t.name, err)
	}
	return f, nil
}

// streamed is what a phase of streams showed.
type streamed struct {
	// firsts are the times from a request to its first byte of body, delays
	// those of every chunk from the provider to the client.
	firsts []time.Duration
	delays []time.Duration
	// silences are the longest of each stream, from its first byte on.
	silences []time.Duration
	beats    int
}

// stream runs count streams to their ends. They begin spread over a time, as
// clients do that know nothing of each other.
func stream(t target, count int, over time.Duration) (streamed, error) {
	parts := make([]streamed, count)
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * over / time.Duration(count))
			parts[i], errs[i] = streamOne(t)
		})
	}
	wg.Wait()
	var all streamed
	for _, p := range parts {
		all.firsts, all.delays = append(all.firsts, p.firsts...), append(all.delays, p.delays...)
		all.silences, all.beats = append(all.silences, p.silences...), all.beats+p.beats
	}
	if err := errors.Join(errs...); err != nil {
		return all, fmt.Errorf("stream through %s: %w", t.name, err)
	}
	return all, nil
}

func streamOne(t target) (streamed, error) {
	var s streamed
	c, err := dial(t.addr)
	if err != nil {
		return s, err
	}
	defer c.conn.Close()
	begun := time.Now()
	var heard time.Time
	var silence time.Duration
	err = c.events(t.stream, t.chunks, func(e event) {
		if heard.IsZero() {
			s.firsts = append(s.firsts, e.at.Sub(begun))
		} else {
			silence = max(silence, e.at.Sub(heard))
		}
		heard = e.at
		switch {
		case e.beat:
			s.beats++
		case !e.sent.IsZero():
			s.delays = append(s.delays, e.at.Sub(e.sent))
		}
	})
	s.silences = append(s.silences, silence)
	return s, err
}

// event is a line of a stream.
type event struct {
	at time.Time
	// sent is when a chunk left the provider; zero for what is none.
	sent time.Time
	// beat: it is a heartbeat.
	beat bool
}

// events sends a request and reads its stream to the end, which must be whole
// and of so many chunks.
func (c *caller) events(request []byte, chunks int, line func(event)) error {
	body, err := c.begin(request)
	if err != nil {
		return err
	}
	lines := bufio.NewReader(body)
	got, last := 0, ""
	for {
		text, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		e := event{at: time.Now(), beat: strings.HasPrefix(text, ":")}
		if _, rest, ok := strings.Cut(text, stampMark); ok {
			stamp, _, _ := strings.Cut(rest, `"`)
			ns, err := strconv.ParseInt(stamp, 10, 64)
			if err != nil {
				return fmt.Errorf("read a chunk's time: %w", err)
			}
			e.sent = time.Unix(0, ns)
			got++
		}
		line(e)
		if strings.TrimSpace(text) != "" {
			last = strings.TrimSpace(text)
		}
	}
	if got != chunks || last != "data: [DONE]" {
		return fmt.Errorf("a stream of %d chunks of %d that ended with %q", got, chunks, last)
	}
	return nil
}
