package sse

import "bytes"

// MaxEventName is how many bytes of an event's name are kept; the rest is cut off.
const MaxEventName = 64

// Frame is one finished event: the lines from its first field to the blank
// line. Comment lines before the first field do not belong to it.
type Frame struct {
	// Event is the value of the last event field, at most MaxEventName bytes;
	// empty when there was none. It is valid only during the call that gave it.
	Event []byte
	// Start is the offset in the stream of the first byte of the first field
	// line; End is the offset after the blank line, its LF included.
	Start, End int64
	// HasData is true when at least one data line came, even an empty one.
	HasData bool
}

// Handler receives what a Splitter finds, in stream order.
type Handler interface {
	// Data receives a piece of the current frame's data. A piece aliases the
	// bytes that were fed and must not be kept or changed. Several data lines
	// are joined by a piece that is one LF.
	Data(piece []byte)
	// End is called once per frame, after its last piece.
	End(f Frame)
}

// A Splitter is confined to one goroutine. Its zero value is ready for the
// first byte of a stream. The frames and the joined data it reports depend on
// the stream's bytes alone, never on how they were cut into chunks.
//
// A line ends at LF, CRLF or a lone CR. Whether a CR stands alone is known only
// from the byte after it, so a frame that ends in CR is reported when that byte
// comes, or at Close.
type Splitter struct {
	off      int64
	state    lineState
	field    fieldKind
	name     [maxFieldName]byte
	nameLen  int
	event    [MaxEventName]byte
	eventLen int
	// start is the offset of the open frame's first field line plus one; 0 when none is open.
	start   int64
	hasData bool
	// afterCR: the last byte was a CR, an LF that follows belongs to it.
	afterCR bool
	// endOwed: that CR was a blank line which ends the open frame.
	endOwed bool
	// bom counts the bytes of a byte order mark matched at the stream's start;
	// bomLen when the start is behind us.
	bom int
}

type lineState uint8

const (
	lineStart lineState = iota
	inName
	afterColon
	inValue
	inComment
)

type fieldKind uint8

const (
	fieldOther fieldKind = iota
	fieldData
	fieldEvent
)

// maxFieldName has room for the longest name that matters, "event", and one
// byte more, so that a longer name never looks like it.
const maxFieldName = 6

const (
	byteOrderMark = "\xef\xbb\xbf"
	bomLen        = len(byteOrderMark)
)

var newline = []byte{'\n'}

// Feed reads the next chunk of the stream and reports to h what it completes.
func (s *Splitter) Feed(p []byte, h Handler) {
	i := s.skipMark(p)
	ends := lineEnds{p: p, lf: -1, cr: -1}
	for i < len(p) {
		if s.afterCR {
			s.afterCR = false
			if p[i] == '\n' {
				i++
			}
			s.finishOwed(s.off+int64(i), h)
			continue
		}
		switch s.state {
		case lineStart:
			i = s.beginLine(p, i, h)
		case inName:
			i = s.readName(p, i, h)
		case afterColon:
			if p[i] == ' ' {
				i++
			}
			s.state = inValue
		case inValue, inComment:
			end := ends.next(i)
			if s.state == inValue {
				s.value(p[i:end], h)
			}
			i = end
			if end < len(p) {
				s.endLine(p[end])
				i++
			}
		}
	}
	s.off += int64(len(p))
}

// Close reports a frame whose last CR was waiting for the next byte. A frame
// that has no blank line yet stays open: see Open.
func (s *Splitter) Close(h Handler) { s.finishOwed(s.off, h) }

// Open returns the frame that has begun and not ended, with End at the current
// offset; ok is false between frames. A byte order mark that is not whole yet
// counts as a frame, since it may turn out to be one.
func (s *Splitter) Open() (f Frame, ok bool) {
	if s.inMark() {
		return Frame{End: s.off}, true
	}
	if s.start == 0 {
		return Frame{}, false
	}
	return s.frame(s.off), true
}

// Event returns the event name the open frame has so far, valid until the next Feed.
func (s *Splitter) Event() []byte { return s.event[:s.eventLen] }

// AtBoundary reports whether a whole line or frame may be inserted after the
// bytes fed so far. It is false after a CR: an LF may still belong to it.
func (s *Splitter) AtBoundary() bool {
	return s.state == lineStart && s.start == 0 && !s.afterCR && !s.inMark()
}

// Terminator returns the line ends that must follow the bytes fed so far
// before another frame can begin: "", "\n" or "\n\n".
func (s *Splitter) Terminator() string {
	if s.inMark() {
		return "\n\n"
	}
	n := 0
	if s.afterCR || s.state != lineStart {
		n++ // ends the line, or completes the CRLF
	}
	if s.start != 0 && !s.endOwed {
		n++
	}
	return "\n\n"[:n]
}

// inMark: some bytes of a byte order mark have come, and not all.
func (s *Splitter) inMark() bool { return s.bom > 0 && s.bom < bomLen }

func (s *Splitter) skipMark(p []byte) int {
	i := 0
	for s.bom < bomLen && i < len(p) {
		if p[i] == byteOrderMark[s.bom] {
			s.bom++
			i++
			continue
		}
		if s.bom > 0 {
			// The bytes taken for a mark are the beginning of an unknown field's name.
			s.start = s.off + int64(i-s.bom) + 1
			s.state, s.nameLen = inName, maxFieldName
		}
		s.bom = bomLen
	}
	return i
}

func (s *Splitter) beginLine(p []byte, i int, h Handler) int {
	switch p[i] {
	case '\n':
		s.endOwed = s.start != 0
		i++
		s.finishOwed(s.off+int64(i), h)
		return i
	case '\r':
		s.endOwed = s.start != 0
		s.afterCR = true
		return i + 1
	case ':':
		s.state = inComment
		return i + 1
	}
	if s.start == 0 {
		s.start = s.off + int64(i) + 1
	}
	s.state, s.nameLen = inName, 0
	return i
}

func (s *Splitter) readName(p []byte, i int, h Handler) int {
	for ; i < len(p); i++ {
		switch c := p[i]; c {
		case ':':
			s.beginField(h)
			s.state = afterColon
			return i + 1
		case '\n', '\r':
			s.beginField(h)
			s.endLine(c)
			return i + 1
		default:
			if s.nameLen < maxFieldName {
				s.name[s.nameLen] = c
				s.nameLen++
			}
		}
	}
	return i
}

func (s *Splitter) beginField(h Handler) {
	switch string(s.name[:s.nameLen]) {
	case "data":
		if s.hasData {
			h.Data(newline)
		}
		s.field, s.hasData = fieldData, true
	case "event":
		s.field, s.eventLen = fieldEvent, 0
	default:
		s.field = fieldOther
	}
	s.nameLen = 0
}

func (s *Splitter) value(piece []byte, h Handler) {
	if len(piece) == 0 {
		return
	}
	switch s.field {
	case fieldData:
		h.Data(piece)
	case fieldEvent:
		s.eventLen += copy(s.event[s.eventLen:], piece)
	case fieldOther:
	}
}

func (s *Splitter) endLine(c byte) {
	s.state = lineStart
	s.afterCR = c == '\r'
}

func (s *Splitter) finishOwed(end int64, h Handler) {
	if !s.endOwed {
		return
	}
	s.endOwed = false
	f := s.frame(end)
	s.start, s.hasData = 0, false
	h.End(f)
	s.eventLen = 0
}

func (s *Splitter) frame(end int64) Frame {
	return Frame{Event: s.event[:s.eventLen], Start: s.start - 1, End: end, HasData: s.hasData}
}

// lineEnds finds the next CR or LF. Each is searched again only once it has
// been passed, so a chunk full of one kind is still read in linear time.
type lineEnds struct {
	p      []byte
	lf, cr int
}

func (l *lineEnds) next(from int) int {
	if l.lf < from {
		l.lf = l.find('\n', from)
	}
	if l.cr < from {
		l.cr = l.find('\r', from)
	}
	return min(l.lf, l.cr)
}

func (l *lineEnds) find(c byte, from int) int {
	if k := bytes.IndexByte(l.p[from:], c); k >= 0 {
		return from + k
	}
	return len(l.p)
}
