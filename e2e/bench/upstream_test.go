package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// The streams of the benchmark: 50 at once, each a chunk every 40 ms.
const (
	streamChunks = 50
	streamEvery  = 40 * time.Millisecond
	streamFirst  = 20 * time.Millisecond
)

// rhythmMark begins the words in a prompt by which a request asks for another rhythm.
const rhythmMark = "say it every "

// rhythmFormat are those words, with milliseconds and the number of chunks.
const rhythmFormat = rhythmMark + "%d ms %d times"

// rhythmOf is the rhythm that a request asks for.
func rhythmOf(body []byte) (every time.Duration, chunks int) {
	at := bytes.Index(body, []byte(rhythmMark))
	var ms int
	if at < 0 {
		return streamEvery, streamChunks
	}
	if _, err := fmt.Sscanf(string(body[at:min(len(body), at+64)]), rhythmFormat, &ms, &chunks); err != nil {
		return streamEvery, streamChunks
	}
	return time.Duration(ms) * time.Millisecond, chunks
}

// answerBody is an ordinary chat answer of about 1 KB.
var answerBody = []byte(`{"id":"bench-1","object":"chat.completion","created":1767225600,"model":"bench","system_fingerprint":"fp_bench",` +
	`"choices":[{"index":0,"message":{"role":"assistant","refusal":null,"content":"` + strings.Repeat("All is well on the river. ", 27) + `"},` +
	`"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":90,"completion_tokens":160,"total_tokens":250,` +
	`"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}`)

var answerWhole = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: up-1\r\ncontent-length: %d\r\n\r\n%s", len(answerBody), answerBody)

// serveUpstream is a provider that costs next to nothing, so that the bare
// Envoy beside it is as fast as it can be and the ratios are not flattered.
func serveUpstream(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for the upstream: %w", err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer conn.Close()
			_ = answerAll(conn) // it ends when the peer goes
		}()
	}
}

func answerAll(conn net.Conn) error {
	r := bufio.NewReaderSize(conn, 64<<10)
	var body bytes.Buffer
	for {
		length, err := readHead(r)
		if err != nil {
			return err
		}
		body.Reset()
		if _, err := io.CopyN(&body, r, length.body); err != nil {
			return err
		}
		if bytes.Contains(body.Bytes(), []byte(`"stream":true`)) {
			every, chunks := rhythmOf(body.Bytes())
			err = answerStream(conn, every, chunks, bytes.Contains(body.Bytes(), []byte(`"include_usage":true`)))
		} else {
			_, err = conn.Write(answerWhole)
		}
		if err != nil {
			return err
		}
	}
}

// answerStream sends chunks that carry the time at which they left, in Unix nanoseconds.
func answerStream(conn net.Conn, every time.Duration, chunks int, usage bool) error {
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"); err != nil {
		return err
	}
	const head = `data: {"id":"bench-1","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[`
	send := func(frame string) error {
		_, err := fmt.Fprintf(conn, "%x\r\n%s\r\n", len(frame), frame)
		return err
	}
	time.Sleep(streamFirst)
	for i := range chunks {
		if i > 0 {
			time.Sleep(every)
		}
		stamp := stampMark + strconv.FormatInt(time.Now().UnixNano(), 10)
		if err := send(head + `{"index":0,"delta":{"content":"` + stamp + `"},"finish_reason":null}]}` + "\n\n"); err != nil {
			return err
		}
	}
	tail := head + `{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	if usage {
		tail += head + `],"usage":{"prompt_tokens":90,"completion_tokens":50,"total_tokens":140}}` + "\n\n"
	}
	if err := send(tail + "data: [DONE]\n\n"); err != nil {
		return err
	}
	_, err := io.WriteString(conn, "0\r\n\r\n")
	return err
}

// stampMark stands before a chunk's time.
const stampMark = "sent at "
