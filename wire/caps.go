package wire

import (
	"fmt"
	"strconv"

	"keyway/domain"
)

const (
	maxCap = 1 << 31
	maxN   = 128
)

func (p *peeker) readCap(field string) bool {
	begin := p.r.i
	n, given, ok := p.readInt(field, maxCap)
	switch {
	case given:
		p.req.HasCap = p.req.HasCap || heedsCap(p.api, field)
		p.cap = max(p.cap, n)
	case ok && field == CapField(p.api):
		p.req.capNull = span{begin, p.r.i}
	}
	return ok
}

// CapField is the member in which a request of api bounds its output; "" when
// it has none.
func CapField(api domain.API) string {
	switch api {
	case domain.APIChat:
		return "max_completion_tokens"
	case domain.APICompletions, domain.APIMessages:
		return "max_tokens"
	case domain.APIResponses:
		return "max_output_tokens"
	}
	return ""
}

// heedsCap reports whether providers of api take field for a cap.
func heedsCap(api domain.API, field string) bool {
	return field == CapField(api) || api == domain.APIChat && field == "max_tokens"
}

func (p *peeker) readN(field string) bool {
	n, given, ok := p.readInt(field, maxN)
	if given && n < 1 {
		return p.refuse(field, fmt.Sprintf("must be an integer from 1 to %d", maxN))
	}
	p.req.N = max(p.req.N, n)
	return ok
}

// LacksCap reports whether the request could bound its output and does not. It
// is when OutputCap of PatchOptions acts. A messages request always has a cap:
// without one the provider refuses it.
func (q *Request) LacksCap() bool {
	return !q.HasCap && q.API != domain.APIMessages && CapField(q.API) != ""
}

func (q *Request) capPatch(tokens int64) domain.Patch {
	value := strconv.FormatInt(tokens, 10)
	if !q.capNull.unset() {
		return replace(q.capNull, value)
	}
	return insert(q.open, `"`+CapField(q.API)+`":`+value+",")
}
