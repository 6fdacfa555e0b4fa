package wire

import (
	"bytes"

	"keyway/wire/sse"
)

// maxHeld is how many bytes of one frame may wait for the verdict on it. A
// longer frame is no usage chunk: it is released as it stands.
const maxHeld = 16 << 10

// maxKept is how large a buffer may be that a stripper keeps from one call to
// the next: streams are many, and most of them wait.
const maxKept = 4 << 10

// stripper takes out of a stream what came because we asked for it: the frame
// that tells the usage, and the member "usage":null of the others. All other
// bytes pass as they came. It holds back only what belongs to the frame being read.
type stripper struct {
	on bool
	// off is the offset in the stream of the next byte to come; held are the
	// bytes before it that have not been passed on.
	off  int64
	held []byte
	// released is one more than the start of the frame that grew too long to be held.
	released int64
	edits    []edit
	out      []byte
}

// edit is a frame that does not pass as it came.
type edit struct {
	offsets
	// whole is true when nothing of it passes, false when only "usage":null does not.
	whole bool
}

// offsets is a half-open range of the stream.
type offsets struct{ from, to int64 }

// nothingOpen tells pass that no frame has begun.
const nothingOpen int64 = -1

// drop takes out a frame that ended in the bytes about to be passed.
func (s *stripper) drop(f sse.Frame) { s.edit(f, true) }

// dropNull takes "usage":null out of such a frame.
func (s *stripper) dropNull(f sse.Frame) { s.edit(f, false) }

// edit leaves a frame alone that is too long to have been held, however it came.
func (s *stripper) edit(f sse.Frame, whole bool) {
	if f.End-f.Start <= maxHeld {
		s.edits = append(s.edits, edit{offsets{f.Start, f.End}, whole})
	}
}

// droppedTo reports whether the stream up to offset end was taken out last.
func (s *stripper) droppedTo(end int64) bool {
	n := len(s.edits)
	return n > 0 && s.edits[n-1].whole && s.edits[n-1].to == end
}

// holding reports whether bytes of an unfinished frame are held back.
func (s *stripper) holding() bool { return len(s.held) > 0 }

// pass returns what may go on of the held bytes and p. The frame that begins at
// offset open, or none, has not ended and is held back.
func (s *stripper) pass(p []byte, open int64) []byte {
	begin := s.off - int64(len(s.held))
	s.off += int64(len(p))
	switch {
	case open == nothingOpen || open+1 == s.released:
		open = s.off
	case s.off-open > maxHeld:
		s.released = open + 1
		open = s.off
	}
	if len(s.held) > 0 && open == begin {
		s.held = append(s.held, p...)
		return nil
	}
	if len(s.held) == 0 && len(s.edits) == 0 {
		n := len(p) - int(s.off-open)
		s.hold(p[n:])
		return p[:n]
	}
	s.out = s.out[:0]
	at := begin
	for _, e := range s.edits {
		s.copyOut(p, offsets{at, e.from})
		if begun := len(s.out); !e.whole {
			s.copyOut(p, e.offsets)
			s.out = s.out[:begun+len(withoutNullUsage(s.out[begun:]))]
		}
		at = e.to
	}
	s.copyOut(p, offsets{at, open})
	// A frame that opened anew began in p: the held one was judged before.
	s.hold(p[len(p)-int(s.off-open):])
	s.edits = s.edits[:0]
	out := s.out
	if cap(out) > maxKept {
		s.out = nil
	}
	return out
}

// hold replaces what is held by the beginning of another frame.
func (s *stripper) hold(p []byte) {
	if cap(s.held) > maxKept {
		s.held = nil
	}
	s.held = append(s.held[:0], p...)
}

// release returns p behind what was held back of a body that turned out not to
// be a stream of events.
func (s *stripper) release(p []byte) []byte {
	if len(s.held) == 0 {
		return p
	}
	p = append(s.held, p...)
	s.held = nil
	return p
}

// copyOut appends a range of the stream that lies in held followed by p.
func (s *stripper) copyOut(p []byte, r offsets) {
	base := s.off - int64(len(p)) - int64(len(s.held))
	from, to, n := int(r.from-base), int(r.to-base), len(s.held)
	if from < n {
		s.out = append(s.out, s.held[from:min(to, n)]...)
	}
	if to > n {
		s.out = append(s.out, p[max(from-n, 0):to-n]...)
	}
}

var usageKey = []byte(`"usage"`)

// lineSpace is the white space of JSON that does not end a line of the stream.
const lineSpace = " \t"

// withoutNullUsage takes the member "usage":null with its comma out of a frame,
// in place. The caller knows that the frame's object has it; where the same key
// stands a second time, or the member is spread over lines, all of it stays.
func withoutNullUsage(frame []byte) []byte {
	from := bytes.Index(frame, usageKey)
	if from < 0 || bytes.Contains(frame[from+len(usageKey):], usageKey) {
		return frame
	}
	rest, named := bytes.CutPrefix(bytes.TrimLeft(frame[from+len(usageKey):], lineSpace), []byte(":"))
	rest, null := bytes.CutPrefix(bytes.TrimLeft(rest, lineSpace), []byte("null"))
	before, after := bytes.TrimRight(frame[:from], lineSpace), bytes.TrimLeft(rest, lineSpace)
	switch {
	case !named || !null:
		return frame
	case bytes.HasSuffix(before, []byte(",")) && (bytes.HasPrefix(after, []byte(",")) || bytes.HasPrefix(after, []byte("}"))):
		return append(before[:len(before)-1], rest...)
	case bytes.HasSuffix(before, []byte("{")) && bytes.HasPrefix(after, []byte(",")):
		return append(frame[:from], after[1:]...)
	}
	return frame
}
