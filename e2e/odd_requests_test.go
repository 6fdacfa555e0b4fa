package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// oddRequest is a request over HTTP/1.1 as few clients write it.
type oddRequest struct {
	name string
	// head is between the request line and the blank line, beside host and key;
	// "%d" is the length of the body.
	head string
	// parts go out one after the other; the first waits for 100 where it was asked for.
	parts func(body string) []string
	// version is that of HTTP; "" is 1.1.
	version string
	status  int
}

func whole(body string) []string { return []string{body} }

// chunks is body in chunks of n bytes, with an extension and a trailer.
func chunks(n int) func(string) []string {
	return func(body string) []string {
		var out strings.Builder
		for len(body) > 0 {
			piece := body[:min(n, len(body))]
			fmt.Fprintf(&out, "%x;part=1\r\n%s\r\n", len(piece), piece)
			body = body[len(piece):]
		}
		return []string{out.String() + "0\r\nX-Sum: 1\r\n\r\n"}
	}
}

// inPieces is body in a few pieces with a pause between them.
func inPieces(body string) []string {
	return []string{body[:1], body[1 : len(body)/2], body[len(body)/2 : len(body)-1], body[len(body)-1:]}
}

// Requests that are written oddly are served as any other, on the plain path and
// through the relay; what cannot be served is refused.
func TestOddRequests(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "wide")
	rows := 0
	for _, model := range []string{"only-a", "only-tlsa", "muse-a", "native"} {
		for _, tc := range []oddRequest{
			{name: "waits for 100", head: "Content-Length: %d\r\nExpect: 100-continue\r\n", parts: whole, status: 200},
			{name: "chunks of a byte with a trailer", head: "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n", parts: chunks(1), status: 200},
			{name: "one chunk", head: "Transfer-Encoding: chunked\r\n", parts: chunks(1 << 20), status: 200},
			{name: "slowly", head: "Content-Length: %d\r\n", parts: inPieces, status: 200},
			{name: "asks for the connection's end", head: "Content-Length: %d\r\nConnection: close\r\n", parts: whole, status: 200},
			{name: "takes gzip", head: "Content-Length: %d\r\nAccept-Encoding: gzip, br, zstd\r\nTE: trailers\r\n", parts: whole, status: 200},
			{name: "both lengths", head: "Content-Length: %d\r\nTransfer-Encoding: chunked\r\n", parts: chunks(1 << 20), status: 400},
			{name: "two lengths", head: "Content-Length: %d\r\nContent-Length: 7\r\n", parts: whole, status: 400},
			{name: "of HTTP/1.0", head: "Content-Length: %d\r\n", parts: whole, version: "HTTP/1.0", status: 200},
		} {
			body := chat(model, `{"usage":{"input_uncached":7,"output":5}}`, asStream)
			t.Logf("%s over %s", tc.name, model)
			resp, raw := tc.send(t, s, c, body)
			require.Equal(t, tc.status, resp.StatusCode, "%s: %.300s", tc.name, raw)
			if tc.status != 200 {
				continue
			}
			rows++
			assert.Contains(t, raw, "data: [DONE]", tc.name)
			assert.Empty(t, resp.Header.Get("Content-Encoding"))
		}
	}
	for _, r := range c.requireOneRowEach(t, rows) {
		assert.Equal(t, domain.OutcomeSuccess, r.Outcome)
		assert.Equal(t, domain.Usage{InputUncached: 7, Output: 5}, r.Usage)
	}
	c.requireIdle(t)
}

func (o oddRequest) send(t *testing.T, s *stack, c *caller, body string) (*http.Response, string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.ready.BaseURL, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	version := o.version
	if version == "" {
		version = "HTTP/1.1"
	}
	head := o.head
	if strings.Contains(head, "%d") {
		head = fmt.Sprintf(head, len(body))
	}
	_, err = fmt.Fprintf(conn, "POST /v1/chat/completions %s\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n%s\r\n", version, c.secret, head)
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	if strings.Contains(o.head, "100-continue") {
		interim, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusContinue, interim.StatusCode)
		require.NoError(t, interim.Body.Close())
	}
	for i, part := range o.parts(body) {
		if i > 0 {
			time.Sleep(20 * time.Millisecond)
		}
		if _, err = io.WriteString(conn, part); err != nil {
			break // it was refused before
		}
	}
	resp, err := http.ReadResponse(reader, nil)
	require.NoError(t, err, o.name)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err, "%s: %.300s", o.name, raw)
	return resp, string(raw)
}
