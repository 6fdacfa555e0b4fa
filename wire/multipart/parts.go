package multipart

import (
	"bytes"
	"errors"
	"mime"
	"strings"
)

// The bounds of a form. No SDK comes near them.
const (
	maxParts    = 256
	maxHeader   = 8 << 10
	maxBoundary = 70 // RFC 2046
)

// Part is one part of a form.
type Part struct {
	Name string
	// IsFile: the part has a file name.
	IsFile bool
	// From and To are where its content lies in the body.
	From, To int
}

// The ways in which a form is refused. Each is the rest of a sentence about the body.
var (
	errType     = errors.New("it is not multipart/form-data with a boundary")
	errStart    = errors.New("it does not begin with its boundary")
	errUnended  = errors.New("it ends before its last boundary")
	errTrailing = errors.New("something follows its last part")
	errInside   = errors.New("its boundary stands inside a part")
	errCount    = errors.New("it has too many parts")
	errHeader   = errors.New("the header of a part is broken or too long")
	errName     = errors.New("a part has no plain name")
	errEncoding = errors.New("a part has a content-transfer-encoding")
)

// IsForm reports whether contentType is that of a form.
func IsForm(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(media), "multipart/form-data")
}

// Parts lists the parts of a form in their order. An error tells the client
// what is wrong.
func Parts(contentType string, body []byte) ([]Part, error) {
	delimiter, err := delimiterOf(contentType)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(body, delimiter) {
		return nil, errStart
	}
	var parts []Part
	at := len(delimiter)
	for {
		rest := body[at:]
		if tail, ended := bytes.CutPrefix(rest, []byte("--")); ended {
			if len(tail) > 0 && !bytes.Equal(tail, []byte("\r\n")) {
				return nil, errTrailing
			}
			return parts, nil
		}
		switch {
		case len(rest) < 2:
			return nil, errUnended
		case !bytes.HasPrefix(rest, []byte("\r\n")):
			return nil, errInside
		case len(parts) == maxParts:
			return nil, errCount
		}
		size := bytes.Index(rest, delimiter)
		if size < 0 {
			return nil, errUnended
		}
		// The line end in front of a boundary belongs to it.
		part, err := partAt(body, span{at + 2, at + size - 2})
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		at += size + len(delimiter)
	}
}

func delimiterOf(contentType string) ([]byte, error) {
	media, params, err := mime.ParseMediaType(contentType)
	boundary := params["boundary"]
	if err != nil || media != "multipart/form-data" || boundary == "" || len(boundary) > maxBoundary ||
		strings.ContainsFunc(boundary, func(r rune) bool { return r < ' ' || r > '~' }) || boundary[len(boundary)-1] == ' ' {
		return nil, errType
	}
	return []byte("--" + boundary), nil
}

// span is a half-open range of the body.
type span struct{ from, to int }

// partAt reads the part in s, header and content.
func partAt(body []byte, s span) (Part, error) {
	if s.to < s.from || string(body[s.to:s.to+2]) != "\r\n" {
		return Part{}, errInside
	}
	block := body[s.from:s.to]
	size := bytes.Index(block[:min(len(block), maxHeader)], []byte("\r\n\r\n"))
	if size < 0 {
		return Part{}, errHeader
	}
	part, err := readHeader(string(block[:size]))
	part.From, part.To = s.from+size+4, s.to
	return part, err
}

// readHeader reads what a part says of itself.
func readHeader(header string) (part Part, err error) {
	for line := range strings.SplitSeq(header, "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsFunc(line, isControl) || strings.ContainsFunc(name, noToken) {
			return Part{}, errHeader // a folded line begins with a blank, so it ends here too
		}
		switch strings.ToLower(name) {
		case "content-disposition":
			if part.Name != "" {
				return Part{}, errHeader
			}
			if part.Name, part.IsFile, err = disposition(value); err != nil {
				return Part{}, err
			}
		case "content-transfer-encoding":
			switch strings.ToLower(strings.TrimSpace(value)) {
			case "7bit", "8bit", "binary":
			default:
				return Part{}, errEncoding
			}
		}
	}
	if part.Name == "" {
		return Part{}, errName
	}
	return part, nil
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// noToken: r has no place in the name of a header (RFC 9110 §5.6.2); readers
// differ in what they make of it.
func noToken(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }

func disposition(value string) (name string, isFile bool, err error) {
	media, params, err := mime.ParseMediaType(value)
	name = params["name"]
	// Readers differ in what they make of escapes and of the extended form of
	// a name, so a name has neither.
	extended := strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"\%`, r) })
	for _, before := range []string{";", " ", "\t"} {
		extended = extended || strings.Contains(strings.ToLower(value), before+"name*")
	}
	if err != nil || media != "form-data" || name == "" || extended {
		return "", false, errName
	}
	_, isFile = params["filename"]
	return name, isFile, nil
}
