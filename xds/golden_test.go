package xds_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"keyway/config"
	"keyway/envoy"
	"keyway/envoy/envoytest"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

const goldenInput = "config.yaml"

// TestGolden shows what a configuration becomes: testdata/<case>/config.yaml
// in, one file per resource type out. After an intended change, write them
// anew with `go test ./xds -run TestGolden -update` and read the diff.
func TestGolden(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob(filepath.Join("testdata", "*", goldenInput))
	require.NoError(t, err)
	require.NotEmpty(t, inputs)
	for _, input := range inputs {
		dir := filepath.Dir(input)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			cfg, err := config.Load(input)
			require.NoError(t, err)
			res, err := envoy.Build(cfg)
			require.NoError(t, err)
			outputs := map[string][]byte{
				"listeners.yaml": document(t, res.Listeners),
				"routes.yaml":    document(t, res.Routes),
				"clusters.yaml":  document(t, res.Clusters),
				"region.yaml":    document(t, map[string]proto.Message{config.RegionConfigName(cfg.GetRegion()): regionConfig(1, cfg)}),
			}
			if *update {
				rewrite(t, dir, outputs)
			}
			compare(t, dir, outputs)
		})
	}
}

// TestGoldenPassesEnvoy runs the same cases through Envoy itself.
func TestGoldenPassesEnvoy(t *testing.T) {
	t.Parallel()
	envoytest.FindEnvoy(t)
	inputs, err := filepath.Glob(filepath.Join("testdata", "*", goldenInput))
	require.NoError(t, err)
	for _, input := range inputs {
		t.Run(filepath.Base(filepath.Dir(input)), func(t *testing.T) {
			t.Parallel()
			cfg, err := config.Load(input)
			require.NoError(t, err)
			res, err := envoy.Build(cfg)
			require.NoError(t, err)
			bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
				NodeID: "envoy-1", Region: cfg.GetRegion(),
				XDS: "127.0.0.1:18000", Authz: "127.0.0.1:18001", Extproc: "127.0.0.1:18002", Relay: "127.0.0.1:18003", Egress: "unix:/tmp/e.sock",
			})
			require.NoError(t, err)
			inlined, err := envoy.Inline(bootstrap, res)
			require.NoError(t, err)
			envoytest.Validate(t, inlined)
		})
	}
}

// document prints resources by name. It goes over JSON because protojson's own
// spacing is random on purpose.
func document[M proto.Message](t *testing.T, resources map[string]M) []byte {
	t.Helper()
	all := make(map[string]any)
	for name, res := range resources {
		raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(res)
		require.NoError(t, err)
		var plain any
		require.NoError(t, yaml.Unmarshal(raw, &plain))
		all[name] = plain
	}
	out, err := yaml.Marshal(all)
	require.NoError(t, err)
	return out
}

// rewrite replaces everything in dir but the input, so that no stale output stays.
func rewrite(t *testing.T, dir string, outputs map[string][]byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Name() != goldenInput {
			require.NoError(t, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	for name, content := range outputs {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
}

func compare(t *testing.T, dir string, outputs map[string][]byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, len(outputs)+1, "no file without a meaning")
	for name, content := range outputs {
		want, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, string(want), string(content), name)
	}
}
