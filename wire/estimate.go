package wire

import (
	"strings"
	"unicode/utf8"
)

// Estimator counts the tokens of a text that comes in pieces, by runs of like
// characters (PROTOCOLS §9). It reads each byte once, keeps a fixed few bytes
// and gives the same count however the text was cut. The zero value is ready.
//
// Costs are kept in thousandths of a token, of the vocabulary o200k; other
// vocabularies are reached by FamilyFactor.
type Estimator struct {
	milli  int64
	class  charClass
	runLen int64
	// humps are the changes from a lower to an upper case letter in the run.
	humps int64
	upper bool
	// A word is a sequence of letters, digits and the signs of base64; when it
	// is long and restless it is no language, and its length alone counts.
	wordLen   int64
	wordFlips int64
	wordBase  int64
	wordKind  charClass
	// part holds the bytes of a character that the last piece cut.
	part    [utf8.UTFMax]byte
	partLen int
}

type charClass uint8

const (
	classNone charClass = iota
	classLower
	classUpper
	classDigit
	classSpace
	classPunct
	classWide // not ASCII
)

const (
	milliToken    = 1000
	opaqueWordMin = 16 // bytes from which a restless word is taken for base64, hex or an id
)

var charClasses = buildClasses()

func buildClasses() (t [256]charClass) {
	for c := range t {
		switch {
		case c >= 'a' && c <= 'z':
			t[c] = classLower
		case c >= 'A' && c <= 'Z':
			t[c] = classUpper
		case c >= '0' && c <= '9':
			t[c] = classDigit
		case c <= ' ' || c == 0x7f:
			t[c] = classSpace
		case c < utf8.RuneSelf:
			t[c] = classPunct
		default:
			t[c] = classWide
		}
	}
	return t
}

// EstimateTokens counts the tokens of one whole text.
func EstimateTokens(text []byte) int64 {
	var e Estimator
	e.Feed(text)
	return e.Tokens()
}

// Feed adds the next piece of the text.
func (e *Estimator) Feed(text []byte) {
	i := 0
	for e.partLen > 0 && i < len(text) {
		i = e.completeRune(text, i)
	}
	for i < len(text) {
		switch charClasses[text[i]] {
		case classLower, classUpper:
			i = e.letters(text, i)
		case classDigit:
			i = e.digits(text, i)
		case classSpace:
			i = e.spaces(text, i)
		case classPunct:
			i = e.punctuation(text, i)
		default:
			i = e.wide(text, i)
		}
	}
}

// Break ends the text: what is fed next is another one, not its continuation.
func (e *Estimator) Break() {
	e.endWord()
	e.endRun()
	if e.partLen > 0 {
		e.milli += int64(e.partLen) * milliToken / 2
		e.partLen = 0
	}
}

// Tokens returns the count of all that was fed, rounded up.
func (e *Estimator) Tokens() int64 {
	end := *e // a copy, so that asking does not end the run
	end.Break()
	return (end.milli + milliToken - 1) / milliToken
}

func (e *Estimator) letters(text []byte, i int) int {
	if e.class != classLower {
		e.endRun()
		e.class = classLower // a letter run may mix both cases
		e.upper = charClasses[text[i]] == classUpper
	}
	if e.wordLen == 0 {
		e.wordBase, e.wordFlips, e.wordKind = e.milli, 0, charClasses[text[i]]
	}
	begin := i
	for ; i < len(text); i++ {
		c := charClasses[text[i]]
		if c != classLower && c != classUpper {
			break
		}
		if c != e.wordKind {
			e.wordFlips++
			e.wordKind = c
		}
		upper := c == classUpper
		if upper && !e.upper {
			e.humps++
		}
		e.upper = upper
	}
	e.runLen += int64(i - begin)
	e.wordLen += int64(i - begin)
	return i
}

func (e *Estimator) digits(text []byte, i int) int {
	if e.class != classDigit {
		e.endRun()
		e.class = classDigit
	}
	if e.wordLen == 0 {
		e.wordBase, e.wordFlips, e.wordKind = e.milli, 0, classDigit
	}
	if e.wordKind != classDigit {
		e.wordFlips++
		e.wordKind = classDigit
	}
	begin := i
	for i < len(text) && charClasses[text[i]] == classDigit {
		i++
	}
	e.runLen += int64(i - begin)
	e.wordLen += int64(i - begin)
	return i
}

func (e *Estimator) spaces(text []byte, i int) int {
	e.endWord()
	if e.class != classSpace {
		e.endRun()
		e.class = classSpace
		e.upper = false
	}
	for i < len(text) && charClasses[text[i]] == classSpace {
		e.runLen++
		// A run of one costs by which one it is: upper marks any but the blank.
		e.upper = text[i] != ' '
		i++
	}
	return i
}

func (e *Estimator) punctuation(text []byte, i int) int {
	if e.class != classPunct {
		e.endRun()
		e.class = classPunct
	}
	for ; i < len(text) && charClasses[text[i]] == classPunct; i++ {
		if e.wordLen > 0 {
			switch text[i] {
			case '+', '/', '=':
				e.wordLen++
				if e.wordKind != classPunct {
					e.wordFlips++
					e.wordKind = classPunct
				}
			default:
				e.endWord()
				e.class = classPunct
			}
		}
		e.runLen++
	}
	return i
}

func (e *Estimator) wide(text []byte, i int) int {
	e.endWord()
	e.endRun()
	for i < len(text) && text[i] >= utf8.RuneSelf {
		if !utf8.FullRune(text[i:]) {
			e.partLen = copy(e.part[:], text[i:])
			return len(text)
		}
		r, size := utf8.DecodeRune(text[i:])
		e.milli += runeCost(r, size)
		i += size
	}
	return i
}

func (e *Estimator) completeRune(text []byte, i int) int {
	e.part[e.partLen] = text[i]
	if !utf8.FullRune(e.part[:e.partLen+1]) {
		e.partLen++
		return i + 1
	}
	r, size := utf8.DecodeRune(e.part[:e.partLen+1])
	e.milli += runeCost(r, size)
	if size == e.partLen+1 {
		e.partLen = 0
		return i + 1
	}
	// The first byte stood for nothing: it is dropped, what follows it is read again.
	e.partLen = copy(e.part[:], e.part[size:e.partLen])
	for e.partLen > 0 && utf8.FullRune(e.part[:e.partLen]) {
		e.milli += runeCost(utf8.RuneError, 1)
		e.partLen = copy(e.part[:], e.part[1:e.partLen])
	}
	return i
}

// runeCost is the cost of a character beyond ASCII in thousandths of a token;
// a byte that is no character costs half a token.
func runeCost(r rune, size int) int64 {
	switch {
	case size == 4:
		return 1600
	case size < 3:
		return 500
	case r >= 0x3040 && r <= 0x30ff: // kana
		return 750
	case r >= 0x2e80 && r <= 0x9fff, // CJK signs and Han
		r >= 0xac00 && r <= 0xd7a3, // Hangul
		r >= 0xf900 && r <= 0xfaff, // Han, compatibility
		r >= 0xff00 && r <= 0xffef: // fullwidth
		return 800
	}
	return 1000
}

func (e *Estimator) endRun() {
	n := e.runLen
	switch e.class {
	case classLower:
		e.milli += milliToken + 200*max(0, n-8) + 750*e.humps
	case classDigit:
		e.milli += n*10*milliToken/24 + 350
	case classSpace:
		switch {
		case n > 1:
			e.milli += milliToken + (n-1)*milliToken/40
		case e.upper:
			e.milli += 600
		}
	case classPunct:
		if n == 1 {
			e.milli += 900
		} else if n > 1 {
			e.milli += milliToken + (n-2)*milliToken/4
		}
	}
	e.class, e.runLen, e.humps = classNone, 0, 0
}

func (e *Estimator) endWord() {
	if e.wordLen == 0 {
		return
	}
	n := e.wordLen
	e.wordLen = 0
	if n < opaqueWordMin || e.wordFlips*10 < n*4 {
		return
	}
	e.endRun()
	e.milli = e.wordBase + n*10*milliToken/14
}

// FamilyFactor is by how much the vocabulary of a model needs more tokens than
// o200k for the same text, judged by the model's name; 1 when unknown.
func FamilyFactor(model string) float64 {
	if i := strings.LastIndexByte(model, '/'); i >= 0 {
		model = model[i+1:]
	}
	for _, f := range familyFactors {
		if strings.HasPrefix(model, f.prefix) {
			return f.factor
		}
	}
	return 1
}

// familyFactors is searched in order; a longer prefix stands before a shorter one.
var familyFactors = []struct {
	prefix string
	factor float64
}{
	{"claude", 1.2},
	{"gpt-4o", 1},
	{"gpt-4.", 1},
	{"gpt-4", 1.25},
	{"gpt-3.5", 1.25},
	{"text-embedding", 1.25},
}
