package corpus

import (
	"encoding/json"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tiktoken-go/tokenizer"

	"keyway/domain"
	"keyway/wire"
)

const (
	// textBytes bounds one prompt.
	textBytes = 6000
	// frameTokens is what a provider counts for a chat of one message beside its text.
	frameTokens = 7
	// inertia is that of the region's store: for how many requests a factor stands.
	inertia = 64
)

// prompts are texts by what they are. None of them is what the estimator's
// coefficients were tuned on.
func prompts(t *testing.T) map[string][]string {
	t.Helper()
	root := build.Default.GOROOT
	source := files(t, filepath.Join(root, "src", "net"), ".go")
	source = append(source, files(t, filepath.Join(root, "src", "go"), ".go")...)
	cjk, err := os.ReadFile("testdata/cjk.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{
		"Go": source, "English": packageDocs(t, root),
		"JSON":     files(t, "../../wire/testdata", ".json"),
		"Markdown": append(files(t, "../../docs", ".md"), files(t, filepath.Join(root, "src"), ".md")...),
		"CJK":      strings.Split(strings.TrimSpace(string(cjk)), "\n\n"),
	}
	for kind, texts := range all {
		if len(texts) < 8 {
			t.Fatalf("%s: %d texts are no corpus", kind, len(texts))
		}
	}
	return all
}

// files are the beginnings of all files under dir whose names end in suffix.
func files(t *testing.T, dir, suffix string) (texts []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, suffix) {
			return err
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			texts = append(texts, strings.ToValidUTF8(string(raw[:min(len(raw), textBytes)]), ""))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// packageDocs are what the standard library's packages say of themselves.
func packageDocs(t *testing.T, root string) (texts []string) {
	t.Helper()
	for _, name := range []string{"net", "crypto", "encoding", "go", "text", "html", "log", "math", "os", "runtime", "database"} {
		err := filepath.WalkDir(filepath.Join(root, "src", name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() || d.Name() == "testdata" {
				return err
			}
			p, err := build.ImportDir(path, build.ImportComment)
			if err != nil {
				return nil // a folder without a package for this machine
			}
			set := token.NewFileSet()
			for _, file := range p.GoFiles {
				parsed, err := parser.ParseFile(set, filepath.Join(path, file), nil, parser.ParseComments|parser.PackageClauseOnly)
				if err == nil && parsed.Doc != nil && len(parsed.Doc.Text()) > 300 {
					text := parsed.Doc.Text()
					texts = append(texts, text[:min(textBytes, len(text))])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return texts
}

// measured is one prompt: what was estimated, and what it has.
type measured struct {
	class            domain.ContentClass
	estimate, actual int64
}

func measure(t *testing.T, codec tokenizer.Codec, text string) measured {
	t.Helper()
	content, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	q, err := wire.Peek(domain.APIChat, []byte(`{"model":"gpt-4o","messages":[{"role":"user","content":`+string(content)+`}]}`))
	if err != nil {
		t.Fatal(err)
	}
	n, err := codec.Count(text)
	if err != nil {
		t.Fatal(err)
	}
	return measured{class: q.Class, estimate: q.PromptTokens, actual: int64(n) + frameTokens}
}

// TestEstimateBand holds that estimates, once corrected by what other prompts
// of their class came to, are 1.05 to 1.2 times the count of o200k at the
// median of every kind of text.
func TestEstimateBand(t *testing.T) {
	codec, err := tokenizer.Get(tokenizer.O200kBase)
	if err != nil {
		t.Fatal(err)
	}
	known := domain.Calibration{}
	heldOut := map[string][]measured{}
	lessons := map[string][]measured{}
	for kind, texts := range prompts(t) {
		for i, text := range texts {
			m := measure(t, codec, text)
			if m.estimate < domain.CalibrationFloor {
				continue
			}
			if i%2 == 0 {
				lessons[kind] = append(lessons[kind], m)
			} else {
				heldOut[kind] = append(heldOut[kind], m)
			}
		}
	}
	const rounds = 500
	for i := range rounds {
		// In turns, as if clients sent each kind as often as any other.
		for _, kind := range slices.Sorted(maps.Keys(lessons)) {
			m := lessons[kind][i%len(lessons[kind])]
			key := domain.CalibrationKey{Class: m.class}
			factor, ok := known[key]
			if !ok {
				factor = 1
			}
			seen := domain.CalibrationSample{Requests: 1, Estimated: m.estimate, Actual: m.actual}.Factor()
			known[key] = factor + (seen-factor)/(1+inertia)
		}
	}
	t.Logf("factors: %v", known)
	for _, kind := range slices.Sorted(maps.Keys(heldOut)) {
		list := heldOut[kind]
		var before, after []float64
		classes := map[domain.ContentClass]int{}
		for _, m := range list {
			classes[m.class]++
			before = append(before, float64(m.estimate)/float64(m.actual))
			after = append(after, float64(known.Correct(domain.CalibrationKey{Class: m.class}, m.estimate))/float64(m.actual))
		}
		t.Logf("%-8s %4d prompts %v: estimate/o200k p10 %.2f, median %.2f, p90 %.2f; corrected %.2f, %.2f, %.2f", kind, len(list), classes,
			quantile(before, .1), quantile(before, .5), quantile(before, .9), quantile(after, .1), quantile(after, .5), quantile(after, .9))
		if m := quantile(after, .5); m < 1.05 || m > 1.2 {
			t.Errorf("%s: the median of corrected estimates is %.3f", kind, m)
		}
	}
}

func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}
