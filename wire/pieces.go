package wire

import (
	"unicode/utf8"

	"keyway/domain"
)

// documentsPerUnit is how many documents one search unit ranks.
const documentsPerUnit = 100

// readPiece reads what bears on the number or the price of what is charged by
// the piece. To an API that does not know the field it is part of the prompt.
func (p *peeker) readPiece(f requestField) bool {
	switch {
	case f == fieldDocuments && p.api == domain.APIRerank && p.r.peek() == '[':
		return p.r.elements(func() bool {
			p.documents++
			return p.count(inPrompt)
		})
	case f == fieldSize && p.api.MakesImages():
		return p.readString("size", &p.req.Size)
	case f == fieldQuality && p.api.MakesImages():
		return p.readString("quality", &p.req.Quality)
	}
	return p.countField(f)
}

// countSpoken counts the text that is to be spoken, by tokens and by characters.
func (p *peeker) countSpoken() bool {
	t, ok := p.r.str()
	if !ok {
		return false
	}
	p.countText(t)
	raw := p.r.b[t.from:t.to]
	if t.escaped {
		raw = appendUnescaped(nil, raw)
	}
	p.characters = int64(utf8.RuneCount(raw))
	return true
}
