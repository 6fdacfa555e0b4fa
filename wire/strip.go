package wire

import "keyway/wire/sse"

// maxHeld is how many bytes of one frame may wait for the verdict on it. A
// longer frame is no usage chunk: it is released as it stands.
const maxHeld = 64 << 10

// stripper takes whole frames out of a stream whose bytes are otherwise passed
// on as they came. It holds back only what belongs to the frame being read.
type stripper struct {
	on bool
	// off is the offset in the stream of the next byte to come; held are the
	// bytes before it that have not been passed on.
	off  int64
	held []byte
	// released is one more than the start of the frame that grew too long to be held.
	released int64
	drops    []offsets
	out      []byte
}

// offsets is a half-open range of the stream.
type offsets struct{ from, to int64 }

// nothingOpen tells pass that no frame has begun.
const nothingOpen int64 = -1

// drop takes out a frame that ended in the bytes about to be passed, unless it
// is too long to have been held, however it came.
func (s *stripper) drop(f sse.Frame) {
	if f.End-f.Start <= maxHeld {
		s.drops = append(s.drops, offsets{f.Start, f.End})
	}
}

// droppedTo reports whether the stream up to offset end was taken out last.
func (s *stripper) droppedTo(end int64) bool {
	n := len(s.drops)
	return n > 0 && s.drops[n-1].to == end
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
	if len(s.held) == 0 && len(s.drops) == 0 {
		n := len(p) - int(s.off-open)
		s.held = append(s.held, p[n:]...)
		return p[:n]
	}
	s.out = s.out[:0]
	at := begin
	for _, d := range s.drops {
		s.copyOut(p, offsets{at, d.from})
		at = d.to
	}
	s.copyOut(p, offsets{at, open})
	// A frame that opened anew began in p: the held one was judged before.
	s.held = append(s.held[:0], p[len(p)-int(s.off-open):]...)
	s.drops = s.drops[:0]
	return s.out
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
