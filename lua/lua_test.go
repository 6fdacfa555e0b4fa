package lua

import (
	"crypto/sha1" //nolint:gosec // the store's protocol names scripts by SHA-1
	"encoding/hex"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// maxBody is how many lines of code a script may have (STYLE §4).
const maxBody = 60

var (
	docKey  = regexp.MustCompile(`(?m)^-- KEYS\[(\d+)(\.\.)?\] \S`)
	docArg  = regexp.MustCompile(`(?m)^-- ARGV\[(\d+)(\.\.)?\] \S`)
	useKey  = regexp.MustCompile(`KEYS\[(\d+)\]`)
	useArg  = regexp.MustCompile(`ARGV\[(\d+)\]`)
	useMore = map[string]*regexp.Regexp{
		"KEYS": regexp.MustCompile(`KEYS\[[^\]\d]*i|KEYS\[i`),
		"ARGV": regexp.MustCompile(`ARGV\[\d+ \* i|ARGV\[i`),
	}
	built = regexp.MustCompile(`['"]\{|\{s\d|cjson|KEYS\[\d+\] *\.\.`)
)

// split parts a script into header (comments before the first code) and body.
func split(t *testing.T, source string) (header, body string) {
	t.Helper()
	lines := strings.Split(strings.TrimRight(source, "\n"), "\n")
	require.True(t, strings.HasPrefix(lines[0], "#!lua"), "the first line names the engine, so that flags and key checks apply")
	n := 1
	for n < len(lines) && strings.HasPrefix(lines[n], "--") {
		n++
	}
	return strings.Join(lines[1:n], "\n"), strings.Join(lines[n:], "\n")
}

// documented returns the highest index that a header describes and whether it is open-ended.
func documented(re *regexp.Regexp, header string) (highest int, open bool) {
	for i, m := range re.FindAllStringSubmatch(header, -1) {
		n, _ := strconv.Atoi(m[1])
		if n != i+1 {
			return -1, false // a gap or a wrong order
		}
		highest, open = n, m[2] != ""
	}
	return highest, open
}

func highest(re *regexp.Regexp, body string) int {
	top := 0
	for _, m := range re.FindAllStringSubmatch(body, -1) {
		n, _ := strconv.Atoi(m[1])
		top = max(top, n)
	}
	return top
}

func TestEveryScriptKeepsItsContract(t *testing.T) {
	t.Parallel()
	for _, s := range All() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			header, body := split(t, s.Source)
			last := -1
			for _, section := range []string{"-- Purpose: ", "-- KEYS[1] ", "-- ARGV[1] ", "-- Returns: ", "-- Errors: "} {
				at := strings.Index("\n"+header, "\n"+section)
				assert.Greater(t, at, last, "section %q is missing or out of order", section)
				last = at
			}
			for name, pair := range map[string][2]*regexp.Regexp{"KEYS": {docKey, useKey}, "ARGV": {docArg, useArg}} {
				doc, open := documented(pair[0], header)
				fixed := doc
				if open {
					fixed--
				}
				assert.Equal(t, fixed, highest(pair[1], body), "%s: documented and used differ", name)
				assert.Equal(t, open, useMore[name].MatchString(body), "%s: open-ended in header and body differ", name)
			}
			assert.NotRegexp(t, built, body, "keys come in, and nothing is JSON")
			assert.NotContains(t, body, "'SCAN'")
			assert.NotContains(t, body, "'KEYS'")
			assert.LessOrEqual(t, strings.Count(body, "\n")+1, maxBody, "lines of code")
		})
	}
}

func TestEveryFileHasAValue(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(files, "*.lua")
	require.NoError(t, err)
	var have []string
	for _, s := range All() {
		have = append(have, s.Name+".lua")
		sum := sha1.Sum([]byte(s.Source)) //nolint:gosec // a name, not a proof
		assert.Equal(t, hex.EncodeToString(sum[:]), s.SHA)
	}
	assert.ElementsMatch(t, names, have)
}
