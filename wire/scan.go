package wire

import (
	"unicode/utf8"
)

// scanner reads one JSON document that comes in arbitrary pieces. It keeps the
// raw values of a few wanted paths and feeds the text of others to an
// Estimator; everything else it walks past. Its memory is fixed: a document of
// any size or shape costs no more than the wanted values, each up to
// maxCapture. What is no JSON is given up until the next reset; the scanner
// never fails and never judges, it only finds less.
type scanner struct {
	paths *pathTable
	// text receives the characters of the paths marked as text; nil drops them.
	text *Estimator
	// closed is called when a value of a path marked so ends; may be nil.
	closed func()

	state scanState
	depth int
	stack [maxScanDepth]scanLevel
	// node is where the next value stands; 0 is anywhere unwanted.
	node  uint8
	slots [slotCount]slot

	capture  int8 // the slot being filled, or noSlot
	capFrom  int  // where it begins in the current piece
	capDepth int

	sink    textSink
	esc     escapeState
	hex     rune
	hexLen  int8
	high    rune // a first half of a surrogate pair, waiting for the second
	key     [maxKeyLen]byte
	keyLen  int
	keyLong bool
}

const (
	maxScanDepth = 256
	maxKeyLen    = 40 // no wanted key is longer
	maxCapture   = 16 << 10
)

type scanLevel struct {
	node  uint8
	array bool
}

type scanState uint8

const (
	scanValue scanState = iota
	scanFirstElement
	scanFirstKey
	scanKey
	scanColon
	scanAfter
	scanString
	scanKeyString
	scanScalar
	scanDone
	scanBroken
)

type textSink uint8

const (
	sinkNone textSink = iota
	sinkKey
	sinkText
)

type escapeState uint8

const (
	escNone escapeState = iota
	escBegun
	escHex
)

// slot holds what was found at a wanted path in the current document.
type slot struct {
	// kind is the value's first byte; 0 when it has not come.
	kind byte
	// over is true for a value longer than maxCapture; raw is then its beginning.
	over bool
	raw  []byte
}

// reset prepares for the next document.
func (s *scanner) reset() {
	s.state, s.depth, s.node = scanValue, 0, rootNode
	s.capture = noSlot
	s.esc, s.high = escNone, 0
	for i := range s.slots {
		s.slots[i].kind = 0
	}
}

// feed reads the next piece of the document. What follows its end is ignored.
func (s *scanner) feed(p []byte) {
	s.capFrom = 0
	for i := 0; i < len(p) && s.state < scanDone; {
		switch s.state {
		case scanString, scanKeyString:
			i = s.inString(p, i)
			continue
		case scanScalar:
			for i < len(p) && !scalarEnds[p[i]] {
				i++
			}
			if i < len(p) {
				s.endValue(p, i)
			}
			continue
		}
		if c := p[i]; c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			s.token(p, i)
		}
		i++
	}
	if s.capture != noSlot && s.state != scanBroken {
		s.keep(p[s.capFrom:])
	}
}

// done reports whether a whole document was read.
func (s *scanner) done() bool { return s.state == scanDone }

// scalarEnds marks the bytes that end a number or a word.
var scalarEnds = [256]bool{',': true, '}': true, ']': true, ' ': true, '\n': true, '\r': true, '\t': true}

func (s *scanner) token(p []byte, i int) {
	c := p[i]
	switch s.state {
	case scanFirstElement:
		if c == ']' {
			s.pop(p, i)
			return
		}
		s.begin(c, i)
	case scanValue:
		s.begin(c, i)
	case scanFirstKey, scanKey:
		switch {
		case c == '"':
			s.beginKey()
		case c == '}' && s.state == scanFirstKey:
			s.pop(p, i)
		default:
			s.state = scanBroken
		}
	case scanColon:
		s.state = scanValue
		if c != ':' {
			s.state = scanBroken
		}
	case scanAfter:
		s.after(p, i)
	}
}

func (s *scanner) after(p []byte, i int) {
	top := s.stack[s.depth-1]
	switch c := p[i]; {
	case c == ',' && top.array:
		s.state, s.node = scanValue, s.paths.nodes[top.node].element
	case c == ',':
		s.state = scanKey
	case c == ']' && top.array, c == '}' && !top.array:
		s.pop(p, i)
	default:
		s.state = scanBroken
	}
}

func (s *scanner) begin(c byte, i int) {
	n := &s.paths.nodes[s.node]
	if n.slot != noSlot {
		v := &s.slots[n.slot]
		v.kind, v.over, v.raw = c, false, v.raw[:0]
		if n.does&keepRaw != 0 && s.capture == noSlot {
			s.capture, s.capFrom, s.capDepth = n.slot, i, s.depth
		}
	}
	switch {
	case c == '{':
		s.push(scanLevel{node: s.node})
	case c == '[':
		s.push(scanLevel{node: s.node, array: true})
		s.node = n.element
	case c == '"':
		s.state, s.sink = scanString, sinkNone
		if n.does&isText != 0 && s.text != nil {
			s.sink = sinkText
		}
	case c == '-' || isDigit(c) || c == 't' || c == 'f' || c == 'n',
		c == 'N' || c == 'I': // NaN and Infinity, which Python's servers write into logprobs
		s.state = scanScalar
	default:
		s.state = scanBroken
	}
}

func (s *scanner) push(l scanLevel) {
	if s.depth == maxScanDepth {
		s.state = scanBroken
		return
	}
	s.stack[s.depth] = l
	s.depth++
	s.state = scanFirstKey
	if l.array {
		s.state = scanFirstElement
	}
}

func (s *scanner) pop(p []byte, i int) {
	s.depth--
	node := s.stack[s.depth].node
	s.endValue(p, i+1)
	if s.paths.nodes[node].does&reportEnd != 0 && s.closed != nil {
		s.closed()
	}
}

// endValue ends the value whose last byte stands before p[i].
func (s *scanner) endValue(p []byte, i int) {
	if s.capture != noSlot && s.depth == s.capDepth {
		s.keep(p[s.capFrom:i])
		s.capture = noSlot
	}
	s.state = scanAfter
	if s.depth == 0 {
		s.state = scanDone
	}
}

func (s *scanner) keep(raw []byte) {
	v := &s.slots[s.capture]
	if room := maxCapture - len(v.raw); len(raw) > room {
		v.over = true
		raw = raw[:room]
	}
	v.raw = append(v.raw, raw...)
}

func (s *scanner) beginKey() {
	s.state, s.sink = scanKeyString, sinkNone
	if s.stack[s.depth-1].node != noNode {
		s.sink = sinkKey
		s.keyLen, s.keyLong = 0, false
	}
}

func (s *scanner) endKey() {
	s.state = scanColon
	s.node = noNode
	if s.sink == sinkKey && !s.keyLong {
		s.node = s.paths.child(s.stack[s.depth-1].node, s.key[:s.keyLen])
	}
}

// inString reads on inside a string, up to its end or the end of the piece.
func (s *scanner) inString(p []byte, i int) int {
	for i < len(p) {
		if s.esc != escNone {
			s.escaped(p[i])
			i++
			if s.state == scanBroken {
				return i // or the string's end would mend it
			}
			continue
		}
		begin := i
		for i < len(p) && p[i] != '"' && p[i] != '\\' {
			i++
		}
		if s.sink != sinkNone && i > begin {
			s.halfPair()
			s.emit(p[begin:i])
		}
		if i == len(p) {
			break
		}
		i++
		if p[i-1] == '\\' {
			s.esc = escBegun
			continue
		}
		s.halfPair()
		if s.state == scanKeyString {
			s.endKey()
		} else {
			s.endValue(p, i)
		}
		break
	}
	return i
}

// escaped reads a byte after a backslash.
func (s *scanner) escaped(c byte) {
	switch {
	case s.sink == sinkNone:
		s.esc = escNone // the digits of \u are plain bytes to a reader that does not decode
	case s.esc == escBegun && c == 'u':
		s.esc, s.hex, s.hexLen = escHex, 0, 0
	case s.esc == escBegun:
		s.esc = escNone
		s.halfPair()
		s.emitRune(rune(plainEscape(c)))
	default:
		d := hexDigit(c)
		if d < 0 {
			s.state = scanBroken
			return
		}
		s.hex = s.hex<<4 | d
		if s.hexLen++; s.hexLen == 4 {
			s.esc = escNone
			s.codeUnit(s.hex)
		}
	}
}

func (s *scanner) codeUnit(u rune) {
	isLow := u >= surrogateLow && u <= surrogateMax
	if s.high != 0 && isLow {
		s.emitRune(joinSurrogates(s.high, u))
		s.high = 0
		return
	}
	s.halfPair()
	switch {
	case isLow:
		s.emitRune(utf8.RuneError)
	case u >= surrogateMin && u < surrogateLow:
		s.high = u
	default:
		s.emitRune(u)
	}
}

// halfPair replaces a first half of a surrogate pair whose second did not come.
func (s *scanner) halfPair() {
	if s.high != 0 {
		s.high = 0
		s.emitRune(utf8.RuneError)
	}
}

func (s *scanner) emitRune(r rune) {
	var b [utf8.UTFMax]byte
	s.emit(b[:utf8.EncodeRune(b[:], r)])
}

func (s *scanner) emit(p []byte) {
	switch s.sink {
	case sinkText:
		s.text.Feed(p)
	case sinkKey:
		n := copy(s.key[s.keyLen:], p)
		s.keyLen += n
		s.keyLong = s.keyLong || n < len(p)
	case sinkNone:
	}
}
