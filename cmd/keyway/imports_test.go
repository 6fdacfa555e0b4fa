package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "keyway"

// allowed is the import table: what each package may import of ours. The order
// of the rows is that of the layers. Tests of a package may use the packages
// named in testOnly besides.
var allowed = map[string][]string{
	"domain":                  {},
	"wire/sse":                {},
	"lua":                     {},
	"journal":                 {},
	"api/keyway/v1":           {"domain"},
	"secret":                  {"domain"},
	"telemetry":               {"domain"},
	"telemetry/telemetrytest": {},
	"routing":                 {"domain"},
	"config":                  {"domain", "api/keyway/v1"},
	"envoy":                   {"domain", "api/keyway/v1"},
	"envoy/envoytest":         {"domain", "api/keyway/v1", "envoy"},
	"ledger":                  {"domain", "api/keyway/v1"},
	"wire/multipart":          {},
	"wire":                    {"domain", "wire/sse", "wire/multipart"},
	"store":                   {"domain", "lua", "api/keyway/v1"},
	"store/storetest":         {},
	"authz":                   {"domain", "api/keyway/v1", "config", "wire", "routing", "envoy", "telemetry", "journal"},
	"extproc":                 {"domain", "api/keyway/v1", "config", "wire", "wire/sse", "envoy", "secret", "telemetry", "journal"},
	"xds":                     {"domain", "api/keyway/v1", "config", "envoy", "telemetry"},
	"worker":                  {"domain", "api/keyway/v1", "config", "wire", "telemetry"},
	"e2e/fakeprovider":        {"domain"},
	"e2e/bench":               {},
	"e2e/sdk/sdkcase":         {},
	"e2e/sdk/gosdk":           {"e2e/sdk/sdkcase"},
	"e2e/sdk":                 {"e2e/sdk/sdkcase", "e2e/sdk/gosdk"},
	"cmd/keyway/parts":        {},
	"cmd/keyway/supervise":    {},
	"cmd/keyway":              {anything},
	"e2e":                     {anything},
}

// anything marks the two packages that join the others.
const anything = "*"

// testOnly may be imported by the tests of any package, and by nothing else
// but e2e: they run real parts.
var testOnly = []string{"envoy/envoytest", "store/storetest", "telemetry/telemetrytest", "e2e/fakeprovider", "e2e/sdk"}

// sourcePackage is one folder with Go files.
type sourcePackage struct {
	docs    []string            // files with a package comment
	imports map[string][]string // ours, by the file that imports
	tests   map[string][]string // the same of _test.go files
}

func sources(t *testing.T) map[string]*sourcePackage {
	t.Helper()
	root := filepath.Join("..", "..")
	_, err := os.Stat(filepath.Join(root, "go.mod"))
	require.NoError(t, err, "the test runs in its package's folder")
	found := map[string]*sourcePackage{}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			skip := path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" || name == "tools")
			if skip {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		folder = filepath.ToSlash(folder)
		if found[folder] == nil {
			found[folder] = &sourcePackage{imports: map[string][]string{}, tests: map[string][]string{}}
		}
		return found[folder].read(path)
	}))
	return found
}

func (p *sourcePackage) read(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return err
	}
	into := p.imports
	if strings.HasSuffix(path, "_test.go") {
		into = p.tests
	} else if file.Doc != nil && !strings.HasSuffix(path, ".pb.go") {
		p.docs = append(p.docs, filepath.Base(path))
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		if ours, ok := strings.CutPrefix(imported, module+"/"); ok {
			into[ours] = append(into[ours], filepath.Base(path))
		}
	}
	return nil
}

func TestImportTable(t *testing.T) {
	t.Parallel()
	for folder, p := range sources(t) {
		may, known := allowed[folder]
		if !assert.True(t, known, "package %s has no row in the import table", folder) || slices.Contains(may, anything) {
			continue
		}
		for imported, files := range p.imports {
			assert.Contains(t, may, imported, "%s may not import it (%v)", folder, files)
		}
		for imported, files := range p.tests {
			assert.True(t, imported == folder || slices.Contains(may, imported) || slices.Contains(testOnly, imported),
				"tests of %s may not import %s (%v)", folder, imported, files)
		}
	}
}

func TestNobodyImportsTheProgramOrTheTests(t *testing.T) {
	t.Parallel()
	for folder, p := range sources(t) {
		for imported, files := range p.imports {
			if strings.HasPrefix(imported, "cmd/") {
				assert.Equal(t, "cmd/keyway", folder, "%s is imported by %v", imported, files)
			}
			if slices.Contains(testOnly, imported) && imported != "e2e/fakeprovider" {
				assert.True(t, slices.Contains(testOnly, folder) || strings.HasPrefix(folder, "e2e"), "%s in %s is for tests (%v)", imported, folder, files)
			}
			assert.NotEqual(t, "e2e", imported)
		}
	}
}

// "Plaintext only at egress" is a fact of the imports: only extproc, and the
// program that joins it with the resolver, can name a Secret.
func TestSecretIsReachedFromExtprocOnly(t *testing.T) {
	t.Parallel()
	for folder, p := range sources(t) {
		if files, ok := p.imports["secret"]; ok {
			assert.Contains(t, []string{"extproc", "cmd/keyway"}, folder, "%v", files)
		}
	}
}

func TestEveryPackageSaysWhatItMustNotKnow(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	for folder, p := range sources(t) {
		if folder == "api/keyway/v1" && len(p.docs) == 0 {
			continue // Generated code; the .proto files say it.
		}
		if !assert.Equal(t, []string{"doc.go"}, p.docs, "package %s has exactly one package comment, in doc.go", folder) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, folder, "doc.go"))
		require.NoError(t, err)
		assert.Greater(t, len(text), 100, "%s/doc.go says too little", folder)
	}
}
