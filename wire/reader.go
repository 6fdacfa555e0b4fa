package wire

import (
	"fmt"
	"unicode/utf8"

	"keyway/domain"
)

// maxDepth is how deep a request's arrays and objects may be nested. No SDK
// comes near it, and it bounds the stack of every reader behind us.
const maxDepth = 256

// reader walks one JSON document that lies whole in memory, and accepts exactly
// the grammar of RFC 8259 without lone surrogates. The caller checks that the
// bytes are UTF-8. Its methods return false once err is set; none goes on after that.
type reader struct {
	b     []byte
	i     int
	depth int
	err   *domain.Error
	// plain holds the last key that had escapes, decoded.
	plain []byte
}

// text is a JSON string's place: b[from:to] lies between the quotes.
type text struct {
	from, to int
	escaped  bool
}

func (r *reader) fail(what string) bool {
	if r.err == nil {
		r.err = domain.Errorf(domain.CodeInvalidRequest,
			"The request body is not valid JSON: %s at byte %d. Send one JSON object in UTF-8.", what, r.i)
	}
	return false
}

// peek returns the next byte, or 0 at the end; a NUL byte is legal nowhere outside a string either.
func (r *reader) peek() byte {
	if r.i < len(r.b) {
		return r.b[r.i]
	}
	return 0
}

func (r *reader) space() {
	if r.i < len(r.b) && r.b[r.i] <= ' ' {
		r.spaces()
	}
}

func (r *reader) spaces() {
	for r.i < len(r.b) {
		switch r.b[r.i] {
		case ' ', '\n', '\t', '\r':
			r.i++
		default:
			return
		}
	}
}

// members walks the object at the cursor. For every key, decoded, it calls
// each with the cursor at the value; each must consume the value, and must be
// done with the key before it reads another one.
func (r *reader) members(each func(key []byte) bool) bool {
	if !r.enter() {
		return false
	}
	if r.peek() == '}' {
		return r.leave()
	}
	for {
		if r.peek() != '"' {
			return r.fail("a quoted key is missing")
		}
		t, ok := r.str()
		if !ok {
			return false
		}
		r.space()
		if r.peek() != ':' {
			return r.fail("a colon is missing after a key")
		}
		r.i++
		r.space()
		if !each(r.key(t)) {
			return false
		}
		if more, ok := r.more('}'); !more {
			return ok
		}
	}
}

// elements walks the array at the cursor and calls each with the cursor at every element.
func (r *reader) elements(each func() bool) bool {
	if !r.enter() {
		return false
	}
	if r.peek() == ']' {
		return r.leave()
	}
	for {
		if !each() {
			return false
		}
		if more, ok := r.more(']'); !more {
			return ok
		}
	}
}

// more steps over the comma to the next element or member, or over the closing
// end; more is false after the end, and where neither stands.
func (r *reader) more(end byte) (more, ok bool) {
	r.space()
	switch r.peek() {
	case ',':
		r.i++
		r.space()
		return true, true
	case end:
		return false, r.leave()
	}
	return false, r.fail("a comma or a closing bracket is missing")
}

func (r *reader) enter() bool {
	if r.depth++; r.depth > maxDepth {
		return r.fail(fmt.Sprintf("arrays and objects are nested more than %d deep", maxDepth))
	}
	r.i++
	r.space()
	return true
}

func (r *reader) leave() bool {
	r.depth--
	r.i++
	return true
}

func (r *reader) key(t text) []byte {
	raw := r.b[t.from:t.to]
	if !t.escaped {
		return raw
	}
	r.plain = appendUnescaped(r.plain[:0], raw)
	return r.plain
}

// skip consumes one value of any kind.
func (r *reader) skip() bool {
	switch r.peek() {
	case '{':
		return r.members(func([]byte) bool { return r.skip() })
	case '[':
		return r.elements(r.skip)
	case '"':
		_, ok := r.str()
		return ok
	}
	return r.scalar()
}

// scalar consumes a number, true, false or null.
func (r *reader) scalar() bool {
	switch c := r.peek(); {
	case c == 't':
		return r.word("true")
	case c == 'f':
		return r.word("false")
	case c == 'n':
		return r.word("null")
	case c == '-' || isDigit(c):
		return r.number()
	}
	return r.fail("a value is missing")
}

func (r *reader) word(w string) bool {
	if len(r.b)-r.i < len(w) || string(r.b[r.i:r.i+len(w)]) != w {
		return r.fail("a value is misspelt")
	}
	r.i += len(w)
	return true
}

func (r *reader) number() bool {
	if r.peek() == '-' {
		r.i++
	}
	switch c := r.peek(); {
	case c == '0':
		r.i++
	case isDigit(c):
		r.digits()
	default:
		return r.fail("a number has no digits")
	}
	if r.peek() == '.' {
		r.i++
		if !r.digits() {
			return r.fail("a number ends after its decimal point")
		}
	}
	if c := r.peek(); c == 'e' || c == 'E' {
		r.i++
		if c := r.peek(); c == '+' || c == '-' {
			r.i++
		}
		if !r.digits() {
			return r.fail("a number has an empty exponent")
		}
	}
	return true
}

func (r *reader) digits() bool {
	begin := r.i
	for r.i < len(r.b) && isDigit(r.b[r.i]) {
		r.i++
	}
	return r.i > begin
}

// str consumes the string at the cursor.
func (r *reader) str() (t text, ok bool) {
	r.i++
	t.from = r.i
	for r.plainStretch() {
		switch r.b[r.i] {
		case '"':
			t.to = r.i
			r.i++
			return t, true
		case '\\':
			t.escaped = true
			if !r.escape() {
				return t, false
			}
		default:
			return t, r.fail("a string holds a control character that is not escaped")
		}
	}
	return t, r.fail("a string does not end")
}

// plainStretch steps over the bytes that need no look; false at the end of all.
func (r *reader) plainStretch() bool {
	b, i := r.b, r.i
	for i < len(b) && !stringStops[b[i]] {
		i++
	}
	r.i = i
	return i < len(b)
}

// stringStops marks the bytes that end a plain stretch of a string.
var stringStops = buildStringStops()

func buildStringStops() (t [256]bool) {
	for c := range ' ' {
		t[c] = true
	}
	t['"'], t['\\'] = true, true
	return t
}

func (r *reader) escape() bool {
	if r.i+1 >= len(r.b) {
		return r.fail("a string does not end")
	}
	switch r.b[r.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		r.i += 2
		return true
	case 'u':
	default:
		return r.fail("a string holds an unknown escape")
	}
	u, ok := hex4(r.b[r.i:])
	switch {
	case !ok:
		return r.fail("a string holds a broken \\u escape")
	case u < surrogateMin || u > surrogateMax:
		r.i += unicodeEscapeLen
		return true
	case u >= surrogateLow:
		return r.fail("a string holds half of a surrogate pair")
	}
	low, ok := hex4(r.b[r.i+unicodeEscapeLen:])
	if !ok || low < surrogateLow || low > surrogateMax {
		return r.fail("a string holds half of a surrogate pair")
	}
	r.i += 2 * unicodeEscapeLen
	return true
}

const (
	unicodeEscapeLen = len(`\u0000`)
	surrogateMin     = 0xd800
	surrogateLow     = 0xdc00
	surrogateMax     = 0xdfff
)

// hex4 reads the code unit of a \uXXXX escape at the beginning of b.
func hex4(b []byte) (u rune, ok bool) {
	if len(b) < unicodeEscapeLen || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	for _, c := range b[2:unicodeEscapeLen] {
		d := hexDigit(c)
		if d < 0 {
			return 0, false
		}
		u = u<<4 | d
	}
	return u, true
}

// hexDigit returns the value of a hexadecimal digit, or -1.
func hexDigit(c byte) rune {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0')
	case c >= 'a' && c <= 'f':
		return rune(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return rune(c-'A') + 10
	}
	return -1
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// nextEscape decodes the escape at the beginning of raw, which must be one,
// and returns the character and the escape's length. Half a surrogate pair
// becomes U+FFFD.
func nextEscape(raw []byte) (r rune, size int) {
	if len(raw) < 2 {
		return utf8.RuneError, len(raw)
	}
	if raw[1] != 'u' {
		return rune(plainEscape(raw[1])), 2
	}
	u, ok := hex4(raw)
	if !ok {
		return utf8.RuneError, 2
	}
	if u < surrogateMin || u > surrogateMax {
		return u, unicodeEscapeLen
	}
	low, ok := hex4(raw[unicodeEscapeLen:])
	if u >= surrogateLow || !ok || low < surrogateLow || low > surrogateMax {
		return utf8.RuneError, unicodeEscapeLen
	}
	return joinSurrogates(u, low), 2 * unicodeEscapeLen
}

func joinSurrogates(high, low rune) rune {
	return (high-surrogateMin)<<10 + (low - surrogateLow) + 0x10000
}

// plainEscape is the byte that a one-letter escape stands for.
func plainEscape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// appendUnescaped appends the text of a JSON string's inside.
func appendUnescaped(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		c, size := nextEscape(raw[i:])
		dst = utf8.AppendRune(dst, c)
		i += size
	}
	return dst
}

// appendQuoted appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendQuoted(dst []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', byte(c))
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		default:
			dst = utf8.AppendRune(dst, c)
		}
	}
	return append(dst, '"')
}
