package envoytest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
)

// FindEnvoy returns the path of the Envoy binary: ENVOY_BIN, the one that
// `make parts` put into .parts/bin, or envoy on PATH. Without one the test is
// skipped, and fails under CI=true.
func FindEnvoy(t testing.TB) string {
	t.Helper()
	if bin := os.Getenv("ENVOY_BIN"); bin != "" {
		return bin
	}
	if root, ok := moduleRoot(); ok {
		bin := filepath.Join(root, ".parts", "bin", "envoy")
		if _, err := os.Stat(bin); err == nil {
			return bin
		}
	}
	if bin, err := exec.LookPath("envoy"); err == nil {
		return bin
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("no Envoy found: run `make parts` or set ENVOY_BIN")
	}
	t.Skip("no Envoy found: run `make parts` or set ENVOY_BIN")
	return ""
}

// Validate runs `envoy --mode validate` over b and fails the test with
// Envoy's own words when it refuses.
func Validate(t testing.TB, b *bootstrapv3.Bootstrap) {
	t.Helper()
	raw, err := protojson.Marshal(b)
	require.NoError(t, err, "marshal bootstrap")
	file := filepath.Join(t.TempDir(), "bootstrap.json")
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	cmd := exec.CommandContext(context.Background(), FindEnvoy(t), "--mode", "validate", "--config-path", file, "--log-level", "warning")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "envoy refuses the configuration:\n%s", out)
}

// moduleRoot is the folder of the nearest go.mod above the working directory.
func moduleRoot() (string, bool) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}
