package config

import (
	"cmp"
	"slices"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// rawPath checks a path whose requests pass unread.
func (c *checker) rawPath(at, path string) {
	plain, segments := domain.PlainPath(path)
	switch {
	case len(path) > maxOpaqueLength || !plain || segments < 2 || !domain.Within(path, domain.APIVersionPrefix):
		c.add(at, "%s is not a path such as \"/v1/files\"; letters, digits and -._~ between slashes", quote(path))
	case domain.IsMetered(path) || domain.HoldsMetered(path):
		c.add(at, "%s is, or holds, a path that the gateway reads and meters itself", quote(path))
	}
}

// compileRaw lists the raw paths of all models, the longest first, so that the
// first that fits is the closest.
func compileRaw(models []*keywayv1.Model) []RawPath {
	var out []RawPath
	for _, m := range models {
		for _, path := range m.Raw {
			out = append(out, RawPath{Path: path, Model: m.Name})
		}
	}
	slices.SortFunc(out, func(a, b RawPath) int {
		return cmp.Or(cmp.Compare(len(b.Path), len(a.Path)), cmp.Compare(a.Path, b.Path))
	})
	return out
}
