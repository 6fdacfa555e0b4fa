package config

import (
	"fmt"
	"regexp"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	// Path is the field at fault, such as "channels[1].provider"; "" is the file as a whole.
	Path string
	// Message says what is wrong and what is allowed. It never repeats a
	// value that may be a secret.
	Message string
}

// String is "path: message".
func (p Problem) String() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// ValidationError holds everything that is wrong with one configuration, in
// the order of the file as far as that is known.
type ValidationError struct {
	Problems []Problem
}

// Error prints one problem per line.
func (e *ValidationError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// problems collects; a path is reported once, because a second remark on the
// same field, or on one below it, is nearly always the echo of the first.
type problems struct {
	list []Problem
	seen map[string]struct{}
}

func (p *problems) add(path, format string, args ...any) {
	for at := path; at != ""; at = parent(at) {
		if _, dup := p.seen[at]; dup {
			return
		}
	}
	if p.seen == nil {
		p.seen = make(map[string]struct{})
	}
	p.seen[path] = struct{}{}
	p.list = append(p.list, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// parent is the path without its last field or index; "" at the top.
func parent(path string) string {
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

// addEach reports several remarks on one object, such as its unknown fields.
func (p *problems) addEach(path, format string, args ...any) {
	p.list = append(p.list, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	return &ValidationError{Problems: p.list}
}

// shownLength bounds how much of a wrong value a message repeats, in bytes.
const shownLength = 80

// The shapes of credentials: the prefixes that providers and Keyway itself
// use, and any long run without a separator that words would have.
var (
	secretPrefix = regexp.MustCompile(`(?i)^(bearer\s|basic\s|sk[-_]|pk[-_]|rk[-_]|kw_|gsk_|xai-|aiza|hf_|r8_|ghp_|ya29\.|eyj)`)
	secretRun    = regexp.MustCompile(`[A-Za-z0-9_+=]{32,}`)
)

// looksSecret reports whether value may be a credential. It errs towards yes:
// a hidden harmless value costs a look into the file, a printed key is lost.
func looksSecret(value string) bool {
	value = strings.TrimSpace(value)
	return secretPrefix.MatchString(value) || secretRun.MatchString(value)
}

// quote shows a wrong value in a message, unless it may be a secret.
func quote(value string) string {
	switch {
	case looksSecret(value):
		return "the value (hidden, it looks like a secret)"
	case len(value) > shownLength:
		return fmt.Sprintf("%q…", value[:shownLength])
	}
	return fmt.Sprintf("%q", value)
}
