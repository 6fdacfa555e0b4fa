package config

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

const (
	// maxFallbacks leaves the model itself a place among the candidates of a request.
	maxFallbacks    = 3
	maxNoticeLength = 256
	maxPercent      = 99
)

// route checks what a model says about its routing; every model's name is known.
func (c *checker) route(at string, m *keywayv1.Model) {
	if !domain.Strategy(m.Strategy).Valid() {
		c.add(at+".strategy", "%s is not known; known: %s", quote(m.Strategy), words(domain.Strategies()))
	}
	if len(m.Fallbacks) > maxFallbacks {
		c.add(at+".fallbacks", "%d models; at most %d", len(m.Fallbacks), maxFallbacks)
	}
	var names []string
	for i, name := range m.Fallbacks {
		here := fmt.Sprintf("%s.fallbacks[%d]", at, i)
		c.reference(here, name, reference{"model", c.models})
		names = c.unique(names, here, name)
		if name == m.Name && name != "" {
			c.add(here, "%s is the model itself", quote(name))
		}
	}
	state := domain.ModelState(m.State)
	if !state.Valid() {
		c.add(at+".state", "%s is not known; known: %s", quote(m.State),
			words([]domain.ModelState{domain.ModelActive, domain.ModelPreview, domain.ModelDeprecated}))
	}
	if m.Sunset != "" && day(m.Sunset).IsZero() {
		c.add(at+".sunset", "%s is not a day, such as \"2027-03-31\"", quote(m.Sunset))
	}
	printable := func(r rune) bool { return r >= ' ' && r < unicode.MaxASCII }
	if len(m.Notice) > maxNoticeLength || strings.ContainsFunc(m.Notice, func(r rune) bool { return !printable(r) }) {
		c.add(at+".notice", "%s cannot be a header value; printable ASCII, at most %d bytes", quote(m.Notice), maxNoticeLength)
	}
	if state != domain.ModelDeprecated && (m.Sunset != "" || m.Notice != "") {
		c.add(at+".state", "%s has neither sunset nor notice; they belong to a deprecated model", quote(m.State))
	}
}

func (c *checker) aliases(aliases []*keywayv1.Alias) {
	names := slices.Clone(c.models)
	for i, a := range aliases {
		at := fmt.Sprintf("aliases[%d]", i)
		names = c.unique(names, at+".name", a.Name)
		c.opaque(at+".name", a.Name, maxOpaqueLength)
		c.reference(at+".model", a.Model, reference{"model", c.models})
		switch {
		case a.Canary == "":
			if a.Percent != 0 {
				c.add(at+".percent", "is set without a canary")
			}
			continue
		case a.Percent < 1 || a.Percent > maxPercent:
			c.add(at+".percent", "%d is out of range; 1 to %d", a.Percent, maxPercent)
		}
		c.reference(at+".canary", a.Canary, reference{"model", c.models})
		if a.Canary == a.Model {
			c.add(at+".canary", "%s is the model itself", quote(a.Canary))
		}
	}
}

// words lists the values of a closed set.
func words[T ~string](list []T) string {
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = string(w)
	}
	return strings.Join(out, ", ")
}

// day reads a calendar day, in UTC; zero for anything else.
func day(text string) time.Time {
	at, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

func compileAliases(aliases []*keywayv1.Alias) map[string]domain.Alias {
	if len(aliases) == 0 {
		return nil
	}
	out := make(map[string]domain.Alias, len(aliases))
	for _, a := range aliases {
		out[a.Name] = domain.Alias{Name: a.Name, Model: a.Model, Canary: a.Canary, Percent: int(a.Percent)}
	}
	return out
}
