package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// What a body is, its first bytes say better than its content type, however the
// provider cuts it.
func TestLayouts(t *testing.T) {
	t.Parallel()
	const (
		stream   = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\n\n" + usageChunk
		document = `{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}`
	)
	for _, tt := range []struct {
		name     string
		format   Format
		streamed bool
		body     string
		// read: the usage was found. tail is in what Close adds.
		read, unread bool
		tail         string
		// stripped: the usage chunk may be taken out.
		stripped bool
	}{
		{"stream as stream", FormatSSE, true, stream, true, false, "", true},
		{"stream as stream, not asked for", FormatSSE, false, stream, true, false, "", true},
		{"stream as JSON", FormatJSON, true, stream, true, false, "", true},
		{"stream as JSON, not asked for", FormatJSON, false, stream, true, false, "", false},
		{"stream without a name", FormatUnknown, true, "\xef\xbb\xbf\r\n" + stream, true, false, "", true},
		{"stream without a name, not asked for", FormatUnknown, false, stream, true, false, "", false},
		{"stream that breaks off, not asked for", FormatUnknown, false, stream[:20], false, false, "", false},
		{"stream as JSON that breaks off", FormatJSON, true, stream[:20], false, false, "before the answer was complete", false},
		{"document as JSON", FormatJSON, false, " \r\n" + document, true, false, "", false},
		{"document as JSON, stream asked for", FormatJSON, true, document, true, false, "", false},
		{"document as stream", FormatSSE, false, "\xef\xbb\xbf\n" + document, true, false, "", false},
		{"document as stream, stream asked for", FormatSSE, true, "\xef\xbb\xbf\n" + document, true, false, "one document", false},
		{"document as stream, broken off", FormatSSE, true, document[:30], false, false, "before the answer was complete", false},
		{"document without a name", FormatUnknown, false, document, true, false, "", false},
		{"text", FormatUnknown, false, "Hello", false, true, "", false},
		{"text as JSON", FormatJSON, false, "Hello", false, true, "", false},
		{"text, stream asked for", FormatUnknown, true, "Hello\n\n", false, false, "before the answer was complete", false},
		{"nothing without a name", FormatUnknown, false, "", false, false, "", false},
		{"nothing without a name, stream asked for", FormatUnknown, true, "", false, false, "before the answer was complete", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, strip := range []bool{false, true} {
				o := WatchOptions{API: domain.APIChat, Format: tt.format, Streamed: tt.streamed, StripUsage: strip}
				got := run(o, []byte(tt.body))
				want := tt.body
				if strip && tt.stripped {
					want = strings.Replace(want, usageChunk, "", 1)
				}
				assert.Equal(t, want, strings.TrimSuffix(got.forwarded+got.tail, tailOf(got)))
				assert.Equal(t, tt.read, got.result.HasUsage)
				assert.Equal(t, tt.unread, got.result.Unread)
				assert.Equal(t, tt.tail != "", tailOf(got) != "", "%q", got.tail)
				assert.Contains(t, got.tail, tt.tail)
				require.Equal(t, got, settled(run(o, bytewise(tt.body)...), got))
				for cut := range len(tt.body) {
					require.Equal(t, got, settled(run(o, []byte(tt.body[:cut]), []byte(tt.body[cut:])), got), "cut at %d", cut)
				}
			}
		})
	}
}

// tailOf is the error event at the end of w, with the line ends before it.
func tailOf(w watched) string {
	at := strings.Index(w.tail, `data: {"error"`)
	if at < 0 {
		return ""
	}
	for at > 0 && w.tail[at-1] == '\n' {
		at--
	}
	return w.tail[at:]
}
