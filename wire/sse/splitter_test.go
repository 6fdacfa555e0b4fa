package sse

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// event is one frame with its data joined.
type event struct {
	Name, Data string
	HasData    bool
	Start, End int64
}

type collector struct {
	data   []byte
	events []event
}

func (c *collector) Data(piece []byte) { c.data = append(c.data, piece...) }

func (c *collector) End(f Frame) {
	c.events = append(c.events, event{string(f.Event), string(c.data), f.HasData, f.Start, f.End})
	c.data = c.data[:0]
}

func feed(chunks ...string) ([]event, *Splitter) {
	var (
		c collector
		s Splitter
	)
	for _, chunk := range chunks {
		s.Feed([]byte(chunk), &c)
	}
	s.Close(&c)
	return c.events, &s
}

// reference reads a whole stream the slow way: it cuts it into lines first.
func reference(stream string) []event {
	var (
		events []event
		open   event
		began  bool
		data   []string
	)
	at := 0
	if strings.HasPrefix(stream, byteOrderMark) {
		at = bomLen
	}
	for at < len(stream) {
		end := strings.IndexAny(stream[at:], "\r\n")
		if end < 0 {
			break // a line without an end is not a line yet
		}
		line, next := stream[at:at+end], at+end+1
		if stream[at+end] == '\r' && strings.HasPrefix(stream[next:], "\n") {
			next++
		}
		switch {
		case line == "" && began:
			open.Data, open.HasData, open.End = strings.Join(data, "\n"), data != nil, int64(next)
			events = append(events, open)
			open, began, data = event{}, false, nil
		case line == "", line[0] == ':':
		default:
			if !began {
				open.Start, began = int64(at), true
			}
			name, value, _ := strings.Cut(line, ":")
			value = strings.TrimPrefix(value, " ")
			switch name {
			case "data":
				data = append(data, value)
			case "event":
				open.Name = value[:min(len(value), MaxEventName)]
			}
		}
		at = next
	}
	return events
}

func TestSplitter(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", MaxEventName+10)
	tests := []struct{ name, stream string }{
		{"nothing", ""},
		{"plain", "data: a\n\ndata: b\n\n"},
		{"no space after the colon", "data:a\n\ndata:  two spaces, one is text\n\n"},
		{"several data lines", "event: e\ndata: a\ndata\ndata: b\n\n"},
		{"crlf", "event: e\r\ndata: a\r\n\r\ndata: b\r\n\r\n"},
		{"lone cr", "event: e\rdata: a\r\rdata: b\r\r"},
		{"mixed ends", "data: a\r\n\ndata: b\n\r\ndata: c\r\r\n"},
		{"byte order mark", byteOrderMark + "data: a\n\n"},
		{"half a mark", "\xef\xbbdata: a\n\ndata: b\n\n"},
		{"comments", ": hello\n\n: again\ndata: a\n: inside\ndata: b\n\n:\n"},
		{"id and retry", "id: 7\nretry: 100\ndata: a\n\n"},
		{"blank lines", "\n\n\r\n\rdata: a\n\n\n\n"},
		{"event without data", "event: e\n\n"},
		{"empty data", "data:\n\ndata\n\n"},
		{"names that only resemble", "dat: a\ndata2: b\nevents: c\nDATA: d\n\n"},
		{"last event name counts", "event: a\ndata: x\nevent: b\n\n"},
		{"long event name", "event: " + long + "\ndata: a\n\n"},
		{"unended frame", "data: a\n\ndata: b\n"},
		{"unended line", "data: a\n\ndata: b"},
		{"characters of several bytes", "data: 中文 🙂\n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := reference(tt.stream)
			got, _ := feed(tt.stream)
			require.Equal(t, want, got, "whole")
			for cut := range len(tt.stream) {
				got, _ := feed(tt.stream[:cut], tt.stream[cut:])
				require.Equal(t, want, got, "cut at %d", cut)
			}
			got, _ = feed(strings.Split(tt.stream, "")...)
			require.Equal(t, want, got, "character by character")
			assert.Equal(t, want, feedBytes(tt.stream), "byte by byte")
		})
	}
}

func feedBytes(stream string) []event {
	chunks := make([]string, 0, len(stream))
	for i := range len(stream) {
		chunks = append(chunks, stream[i:i+1])
	}
	events, _ := feed(chunks...)
	return events
}

func TestBoundaryAndTerminator(t *testing.T) {
	t.Parallel()
	tests := []struct {
		stream     string
		boundary   bool
		terminator string
	}{
		{"", true, ""},
		{"data: a\n\n", true, ""},
		{": ping\n", true, ""},
		{"data: a", false, "\n\n"},
		{"data: a\n", false, "\n"},
		{"data: a\n: note", false, "\n\n"},
		{"dat", false, "\n\n"},
		{": not", false, "\n"},
		{"data: a\r", false, "\n\n"},
		{"data: a\r\n", false, "\n"},
		{"data: a\r\n\r", false, "\n"},
		{"data: a\r\n\r\n", true, ""},
		{"data: a\r\r", false, "\n"},
		{"\xef\xbb", false, "\n\n"},
		{byteOrderMark, true, ""},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%q", tt.stream), func(t *testing.T) {
			t.Parallel()
			_, s := feed(tt.stream)
			assert.Equal(t, tt.boundary, s.AtBoundary())
			assert.Equal(t, tt.terminator, s.Terminator())
			after, _ := feed(tt.stream + s.Terminator() + "data: last\n\n")
			require.NotEmpty(t, after)
			assert.Equal(t, "last", after[len(after)-1].Data, "what follows the terminator is a frame of its own")
		})
	}
}

func TestLongLineNeedsNoMemory(t *testing.T) {
	// Not parallel: it reads the process's allocation counter.
	const size = 12 << 20
	var (
		s     Splitter
		total counter
	)
	chunk := bytes.Repeat([]byte("x"), 16<<10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.Feed([]byte("data: "), &total)
	for range size / len(chunk) {
		s.Feed(chunk, &total)
	}
	s.Feed([]byte("\n\ndata: usage\n\n"), &total)
	runtime.ReadMemStats(&after)
	assert.Equal(t, counter{bytes: size + len("usage"), frames: 2}, total)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

type counter struct{ bytes, frames int }

func (c *counter) Data(p []byte) { c.bytes += len(p) }
func (c *counter) End(Frame)     { c.frames++ }

// FuzzSplitter: however a stream is cut, the frames are those of the reference.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte("event: e\r\ndata: a\r\n\r\n: c\ndata: b\n\n"), uint16(3), uint16(9))
	f.Add([]byte(byteOrderMark+"data:a\rdata:b\r\rid\n\n"), uint16(1), uint16(2))
	f.Add([]byte("\xef\xbb\n\nevent\ndata\n\n"), uint16(1), uint16(1))
	f.Fuzz(func(t *testing.T, stream []byte, a, b uint16) {
		s := string(stream)
		i, j := int(a)%(len(s)+1), int(b)%(len(s)+1)
		i, j = min(i, j), max(i, j)
		want := reference(s)
		got, _ := feed(s[:i], s[i:j], s[j:])
		require.Equal(t, want, got)
		require.Equal(t, want, feedBytes(s))
		require.True(t, slices.IsSortedFunc(got, func(x, y event) int { return int(x.End - y.End) }))
	})
}

func BenchmarkSplitter(b *testing.B) {
	stream := bytes.Repeat([]byte("data: {\"choices\":[{\"delta\":{\"content\":\" hello\"}}]}\n\n"), 64)
	var (
		s Splitter
		c counter
	)
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		s.Feed(stream, &c)
	}
}
