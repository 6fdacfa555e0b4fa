package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"keyway/domain"
	"keyway/wire/multipart"
)

// PeekBody reads the body of a request for api: the form of one that sends a
// file, the JSON of any other. The rules and the error are those of Peek.
func PeekBody(api domain.API, contentType string, body []byte) (*Request, error) {
	switch {
	case multipart.IsForm(contentType) && (api.Transcribes() || api == domain.APIImageEdits):
		return peekForm(api, contentType, body)
	case api.Transcribes():
		return nil, &domain.Error{
			Code: domain.CodeUnsupportedBody, NoRetry: true,
			Message: "Send this request as multipart/form-data, with the fields file and model.",
		}
	}
	return Peek(api, body)
}

// formPeeker reads the parts of a form.
type formPeeker struct {
	peeker
	body []byte
	// seen are the decisive fields that came.
	seen map[string]bool
}

func peekForm(api domain.API, contentType string, body []byte) (*Request, error) {
	parts, err := multipart.Parts(contentType, body)
	if err != nil {
		return nil, domain.Errorf(domain.CodeInvalidRequest,
			"The request body is not a valid form: %s. Send multipart/form-data as the SDKs do.", err)
	}
	p := formPeeker{body: body, seen: map[string]bool{}}
	p.api, p.req = api, Request{API: api, N: 1, bodyLen: int64(len(body)), form: true}
	for _, part := range parts {
		if !p.part(part) {
			return nil, p.r.err
		}
	}
	if p.req.Model == "" && !p.modelMissing() {
		return nil, p.r.err
	}
	p.finish()
	return &p.req, nil
}

// part reads one part. A field that decides is text, and comes once.
func (p *formPeeker) part(part multipart.Part) bool {
	value := p.body[part.From:part.To]
	switch part.Name {
	case "model", "stream", "n", "size", "quality":
	default:
		if name := disguised([]byte(part.Name)); name != "" && name != part.Name {
			return p.refuse(part.Name, "differs from "+name+" in case only; send it as "+name)
		}
		p.countPart(part, value)
		return true
	}
	switch {
	case p.seen[part.Name]:
		return p.refuse(part.Name, "is given twice; send it once")
	case part.IsFile:
		return p.refuse(part.Name, "must be text, not a file")
	case len(value) > MaxModelLen:
		return p.refuse(part.Name, fmt.Sprintf("is longer than %d bytes", MaxModelLen))
	case !utf8.Valid(value) || bytes.ContainsAny(value, "\r\n\x00"):
		return p.refuse(part.Name, "must be one line of text in UTF-8")
	}
	p.seen[part.Name] = true
	return p.decide(part, string(value))
}

func (p *formPeeker) decide(part multipart.Part, value string) bool {
	switch part.Name {
	case "model":
		p.req.Model, p.req.model = value, span{part.From, part.To}
		return value != "" || p.modelMissing()
	case "stream":
		// Python clients write it with a capital.
		switch value {
		case "true", "True":
			p.req.Stream = true
		case "false", "False", "":
		default:
			return p.refuse("stream", "must be true or false")
		}
	case "n":
		n, ok := parseCount([]byte(value), maxN)
		if !ok || n < 1 {
			return p.refuse("n", fmt.Sprintf("must be an integer from 1 to %d", maxN))
		}
		p.req.N = n
	case "size":
		p.req.Size = value
	case "quality":
		p.req.Quality = value
	}
	return true
}

// countPart counts what is part of the prompt.
func (p *formPeeker) countPart(part multipart.Part, value []byte) {
	switch {
	case !part.IsFile && utf8.Valid(value):
		p.est.Feed(value)
		p.est.Break()
	case p.api.Transcribes():
		p.countMedia(max(1, int64(len(value))/audioBytesPerToken))
		p.req.Units[domain.ToolAudioSecond] += soundSeconds(value)
	default:
		p.countMedia(imageCap(p.api))
	}
}

// soundBytesPerSecond is what a second of sound takes where the file does not say:
// that of common recordings of speech.
const soundBytesPerSecond = 10_000

// soundSeconds estimates how long a recording is; a WAV file tells.
func soundSeconds(file []byte) int64 {
	const header, rateAt = 44, 28
	size, rate := int64(len(file)), int64(soundBytesPerSecond)
	if len(file) > header && bytes.HasPrefix(file, []byte("RIFF")) && string(file[8:12]) == "WAVE" {
		// Slower than telephony, or faster than any studio, is not believed.
		if said := int64(binary.LittleEndian.Uint32(file[rateAt:])); said >= 1000 && said <= 10_000_000 {
			size, rate = size-header, said
		}
	}
	return max(1, (size+rate-1)/rate)
}
