package domain

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// maxModelPattern bounds one pattern, in bytes; no model name is longer.
const maxModelPattern = 256

// MatchModel reports whether a model's whole name fits pattern. In a pattern
// "*" stands for any characters, also none and slashes included; every other
// character, in its case, stands for itself.
func MatchModel(pattern, name string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	name = name[len(head):]
	for {
		part, next, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, part)
		}
		// The leftmost place leaves the most for what follows.
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name, rest = name[at+len(part):], next
	}
}

// CheckModelPattern returns why pattern can stand in no key; nil when it can.
func CheckModelPattern(pattern string) error {
	switch {
	case pattern == "":
		return errors.New("a model name is empty")
	case len(pattern) > maxModelPattern:
		return fmt.Errorf("the model name %.32q… is longer than %d bytes", pattern, maxModelPattern)
	case strings.TrimSpace(pattern) != pattern || strings.ContainsFunc(pattern, unicode.IsControl):
		return fmt.Errorf("the model name %q begins or ends with a space, or holds a control character", pattern)
	}
	return nil
}
