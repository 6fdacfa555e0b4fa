package fakeprovider

import (
	"bytes"
	"compress/gzip"
	"errors"
	"slices"
)

// write is one flushed write of a body.
type write struct {
	data   []byte
	waitMs int
	// frames is how many frames are complete once this is out.
	frames int
}

// finale is what follows the last write.
type finale struct {
	end End
	// hang: wait for the peer to leave instead.
	hang bool
	// beforeHeaders: nothing is written at all.
	beforeHeaders bool
	point         *Point
}

// finale picks the script's end.
func (s *Script) finale() finale {
	f := finale{end: EndCompleted}
	switch {
	case s.ResetAfter != nil:
		f.end, f.point = EndReset, s.ResetAfter
	case s.DropAfter != nil:
		f.end, f.point = EndDropped, s.DropAfter
	case s.CloseAfter != nil:
		f.end, f.point = EndClosed, s.CloseAfter
	case s.HangAfter != nil:
		f.hang, f.point = true, s.HangAfter
	}
	f.beforeHeaders = f.point != nil && f.point.BeforeHeaders
	return f
}

func (s *Script) validateEnds() error {
	ends := 0
	for _, p := range []*Point{s.ResetAfter, s.DropAfter, s.CloseAfter, s.HangAfter} {
		if p != nil {
			ends++
		}
	}
	if ends > 1 {
		return errors.New("reset_after, drop_after, close_after, hang_after: only one can end an answer")
	}
	return nil
}

// plan cuts frames into writes, up to the point where the script ends them.
func plan(frames [][]byte, s *Script) []write {
	if f := s.finale(); f.point != nil {
		frames = truncate(frames, *f.point)
	}
	if s.Coalesce {
		frames = [][]byte{bytes.Join(frames, nil)}
	}
	var out []write
	offset := 0
	for i, frame := range frames {
		wait := s.PausesMs[i]
		for _, piece := range s.cut(frame, offset) {
			if len(out) > 0 {
				wait += s.DelayBetweenMs
			}
			out = append(out, write{data: piece, waitMs: wait, frames: i})
			wait = 0
		}
		if len(out) > 0 {
			out[len(out)-1].frames = i + 1
		}
		offset += len(frame)
	}
	return out
}

// truncate keeps what lies before p.
func truncate(frames [][]byte, p Point) [][]byte {
	if p.Bytes == 0 {
		return frames[:min(p.Frames, len(frames))]
	}
	left := p.Bytes
	for i, frame := range frames {
		if left <= len(frame) {
			return append(slices.Clone(frames[:i]), frame[:left])
		}
		left -= len(frame)
	}
	return frames
}

// cut splits frame, which begins at offset of the body, where the script says.
func (s *Script) cut(frame []byte, offset int) [][]byte {
	if s.CutEvery <= 0 && len(s.CutAt) == 0 {
		return [][]byte{frame}
	}
	var out [][]byte
	for len(frame) > 0 {
		size := len(frame)
		if s.CutEvery > 0 {
			size = min(size, s.CutEvery-offset%s.CutEvery)
		}
		for _, at := range s.CutAt {
			if at > offset {
				size = min(size, at-offset)
			}
		}
		out = append(out, frame[:size])
		frame, offset = frame[size:], offset+size
	}
	return out
}

// compress returns frames as one gzip stream, flushed after each.
func compress(frames [][]byte) [][]byte {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	out := make([][]byte, len(frames))
	for i, frame := range frames {
		// Writes to a buffer do not fail.
		_, _ = zw.Write(frame)
		if i == len(frames)-1 {
			_ = zw.Close()
		} else {
			_ = zw.Flush()
		}
		out[i] = bytes.Clone(buf.Bytes())
		buf.Reset()
	}
	return out
}

func totalBytes(frames [][]byte) int {
	n := 0
	for _, f := range frames {
		n += len(f)
	}
	return n
}
