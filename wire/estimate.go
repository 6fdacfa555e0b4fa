package wire

import (
	"strings"
	"unicode/utf8"

	"keyway/domain"
)

// Estimator counts the tokens of a text that comes in pieces, by runs of like
// characters (PROTOCOLS §9). It reads each byte once, keeps a fixed few bytes
// and gives the same count however the text was cut. The zero value is ready.
//
// Costs are kept in thousandths of a token, of the vocabulary o200k; other
// vocabularies are reached by FamilyFactor.
type Estimator struct {
	milli int64
	state runState
	// A word is a sequence of letters, digits and the signs of base64; when it
	// is long and restless it is no language, and its length alone counts.
	wordLen   int64
	wordFlips int64
	wordBase  int64 // milli at its beginning
	// part holds the bytes of a character that the last piece cut.
	part    [utf8.UTFMax]byte
	partLen int
	// What tells the class of a text: its bytes, its signs, and the cost of its
	// East Asian characters.
	bytes    int64
	puncts   int64
	cjkMilli int64
}

// charClass is the kind of a byte. The first three begin and continue a word,
// the fourth only continues it.
type charClass uint8

const (
	classLower charClass = iota
	classUpper
	classDigit
	classSign // + / =
	classPunct
	classBlank
	classSpace // white space but the blank, and control characters
	classWide  // not ASCII
	charClassCount
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
		case c == '+' || c == '/' || c == '=':
			t[c] = classSign
		case c == ' ':
			t[c] = classBlank
		case c < ' ' || c == 0x7f:
			t[c] = classSpace
		case c < utf8.RuneSelf:
			t[c] = classPunct
		default:
			t[c] = classWide
		}
	}
	return t
}

// runState is the run being read: its kind, and its length as far as the cost
// of the next character depends on it.
type runState uint8

const (
	runNone   runState = 0
	runLower  runState = 1 // and the 7 behind it: 1 to 8 letters, or more, that end in lower case
	runUpper           = runLower + flatLetters
	runDigit           = runUpper + flatLetters
	runBlank           = runDigit + 1
	runSpace           = runDigit + 2
	runSpaces          = runDigit + 3
	runPunct           = runDigit + 4
	runPuncts          = runDigit + 5

	runStateCount = runDigit + 6
)

// flatLetters is how long a word may be at the price of one token.
const flatLetters = 8

// step is what one character does in a state.
type step struct {
	next  runState
	flips uint8 // 1 where the class changes within a word
	milli int16
}

var steps = buildSteps()

// buildSteps unrolls the rule of runs into a cost per character, so that
// reading needs no branch on what the text holds.
func buildSteps() (t [runStateCount][charClassCount]step) {
	for s := range runStateCount {
		t[s] = [charClassCount]step{
			classLower: letterStep(s, classLower),
			classUpper: letterStep(s, classUpper),
			classDigit: {next: runDigit, milli: 767},
			classPunct: {next: runPunct, milli: 900},
			classBlank: {next: runBlank},
			classSpace: {next: runSpace, milli: 600},
		}
		switch s {
		case runDigit:
			t[s][classDigit].milli = 417
		case runPunct:
			t[s][classPunct] = step{next: runPuncts, milli: 100}
		case runPuncts:
			t[s][classPunct] = step{next: runPuncts, milli: 250}
		case runBlank:
			t[s][classBlank] = step{next: runSpaces, milli: 1025}
		case runSpace:
			t[s][classBlank] = step{next: runSpaces, milli: 425}
		case runSpaces:
			t[s][classBlank] = step{next: runSpaces, milli: 25}
		}
		if s == runBlank || s == runSpace || s == runSpaces {
			t[s][classSpace] = t[s][classBlank]
		}
		t[s][classSign] = t[s][classPunct]
		for c := classLower; c <= classSign; c++ {
			if from, ok := wordClass(s); ok && from != c {
				t[s][c].flips = 1
			}
		}
	}
	return t
}

// letterStep: the first letter of a run is a token, from the ninth on each is
// a fifth, and an upper case letter after a lower case one begins a new hump.
func letterStep(s runState, c charClass) step {
	length := 0
	switch {
	case s >= runLower && s < runUpper:
		length = int(s-runLower) + 1
	case s >= runUpper && s < runDigit:
		length = int(s-runUpper) + 1
	}
	var milli int16
	switch length {
	case 0:
		milli = milliToken
	case flatLetters:
		milli = 200
	}
	base := runLower
	if c == classUpper {
		base = runUpper
		if length > 0 && s < runUpper {
			milli += 750
		}
	}
	return step{next: base + runState(min(length, flatLetters-1)), milli: milli}
}

// wordClass is the class of the last character in a state that may be within a word.
func wordClass(s runState) (charClass, bool) {
	switch {
	case s >= runLower && s < runUpper:
		return classLower, true
	case s >= runUpper && s < runDigit:
		return classUpper, true
	case s == runDigit:
		return classDigit, true
	case s == runPunct, s == runPuncts:
		return classSign, true
	}
	return 0, false
}

// EstimateTokens counts the tokens of one whole text.
func EstimateTokens(text []byte) int64 {
	var e Estimator
	e.Feed(text)
	return e.Tokens()
}

// Feed adds the next piece of the text.
func (e *Estimator) Feed(text []byte) {
	e.bytes += int64(len(text))
	i := 0
	for e.partLen > 0 && i < len(text) {
		i = e.completeRune(text, i)
	}
	for i < len(text) {
		switch c := charClasses[text[i]]; {
		case c <= classDigit, c == classSign && e.wordLen > 0:
			i = e.word(text, i)
		case c == classWide:
			i = e.wide(text, i)
		default:
			e.endWord()
			t := steps[e.state][c]
			e.puncts += int64(signs[c])
			e.milli += int64(t.milli)
			e.state = t.next
			i++
		}
	}
}

// Break ends the text: what is fed next is another one, not its continuation.
func (e *Estimator) Break() {
	e.endWord()
	e.state = runNone
	if e.partLen > 0 {
		e.milli += int64(e.partLen) * milliToken / 2
		e.partLen = 0
	}
}

// Tokens returns the count of all that was fed, rounded up.
func (e *Estimator) Tokens() int64 {
	end := *e // a copy, so that asking does not end the word
	end.Break()
	return (end.milli + milliToken - 1) / milliToken
}

// word reads on in a word, or begins one.
func (e *Estimator) word(text []byte, i int) int {
	if e.wordLen == 0 {
		e.wordBase, e.wordFlips = e.milli, 0
	}
	s, milli, flips := e.state, e.milli, e.wordFlips
	begin := i
	for ; i < len(text); i++ {
		c := charClasses[text[i]]
		if c > classSign {
			break
		}
		t := steps[s][c]
		s = t.next
		milli += int64(t.milli)
		flips += int64(t.flips)
	}
	e.state, e.milli, e.wordFlips = s, milli, flips
	e.wordLen += int64(i - begin)
	return i
}

func (e *Estimator) endWord() {
	n := e.wordLen
	if n == 0 {
		return
	}
	e.wordLen = 0
	if n >= opaqueWordMin && e.wordFlips*10 >= n*4 {
		e.milli = e.wordBase + n*10*milliToken/14
		e.state = runNone
	}
}

// signs is 1 for the classes that are frequent in code and JSON.
var signs = [charClassCount]uint8{classSign: 1, classPunct: 1}

// The shares from which a text is not plain prose: English has a sign in 30 to
// 50 bytes, Markdown one in 20, code and JSON one in 4 to 9.
const (
	bytesPerCodeSign = 10
	costPerCJK       = 3
)

// class is what most of the text is.
func (e *Estimator) class() domain.ContentClass {
	switch {
	case e.cjkMilli*costPerCJK > e.milli:
		return domain.ContentCJK
	case e.puncts*bytesPerCodeSign > e.bytes:
		return domain.ContentCode
	}
	return domain.ContentText
}

func (e *Estimator) wide(text []byte, i int) int {
	e.endWord()
	e.state = runNone
	for i < len(text) && text[i] >= utf8.RuneSelf {
		if !utf8.FullRune(text[i:]) {
			e.partLen = copy(e.part[:], text[i:])
			return len(text)
		}
		r, size := utf8.DecodeRune(text[i:])
		cost := runeCost(r, size)
		e.milli += cost
		if size == 3 && cost < milliToken { // kana, Han, Hangul
			e.cjkMilli += cost
		}
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
