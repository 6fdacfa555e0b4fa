package domain_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"keyway/domain"
)

func TestMatchModel(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		pattern string
		fits    []string
		not     []string
	}{
		{"gpt-5", []string{"gpt-5"}, []string{"", "gpt-5-mini", "agpt-5", "GPT-5", "gpt-", "gpt-5\n"}},
		{"gpt-*", []string{"gpt-", "gpt-5", "gpt-5/x:y"}, []string{"gpt", "my-gpt-5", "Gpt-5", "\ngpt-5"}},
		{"*-mini", []string{"-mini", "gpt-5-mini", "a\n-mini"}, []string{"mini", "gpt-5-mini-2"}},
		{"a*a", []string{"aa", "aba", "aaa"}, []string{"a", "ab", "ba"}},
		{"a*b*c", []string{"abc", "axbxc", "abcbc", "abbc"}, []string{"acb", "abcd", "ac"}},
		{"*", []string{"", "anything/at:all"}, nil},
		{"a**b", []string{"ab", "axb"}, []string{"a", "b"}},
		{"gpt-5.1", []string{"gpt-5.1"}, []string{"gpt-5x1"}},
		{"gpt-?[4]", []string{"gpt-?[4]"}, []string{"gpt-54", "gpt-x4"}},
		{`a\*`, []string{`a\`, `a\b`}, []string{"a*", "ab"}},
		{"", []string{""}, []string{"a"}},
	} {
		for _, name := range row.fits {
			assert.True(t, domain.MatchModel(row.pattern, name), "%q fits %q", name, row.pattern)
		}
		for _, name := range row.not {
			assert.False(t, domain.MatchModel(row.pattern, name), "%q does not fit %q", name, row.pattern)
		}
	}
}

// A regular expression anchored at both ends says the same.
func TestMatchModelIsAnAnchoredGlob(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ab.*]{0,8}`)
		pattern, name := text.Draw(t, "pattern"), strings.ReplaceAll(text.Draw(t, "name"), "*", "a")
		quoted := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")
		want := regexp.MustCompile(`(?s)\A` + quoted + `\z`).MatchString(name)
		require.Equal(t, want, domain.MatchModel(pattern, name))
	})
}

func TestCheckModelPattern(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"gpt-5", "gpt-*", "*", "team/model:latest", "two words", strings.Repeat("a", 256)} {
		require.NoError(t, domain.CheckModelPattern(ok), ok)
	}
	for _, bad := range []string{"", " a", "a ", "a\nb", "a\x00", strings.Repeat("a", 257)} {
		require.Error(t, domain.CheckModelPattern(bad), "%q", bad)
	}
}
