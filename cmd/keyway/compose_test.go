package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/resolver"
	"sigs.k8s.io/yaml"

	"keyway/config"
)

// composeFile is what the tests read of docker-compose.yml.
type composeFile struct {
	Services map[string]struct {
		Image       string         `json:"image"`
		Command     []string       `json:"command"`
		Environment map[string]any `json:"environment"`
		Volumes     []string       `json:"volumes"`
		DependsOn   map[string]any `json:"depends_on"`
		Healthcheck struct {
			Test []string `json:"test"`
		} `json:"healthcheck"`
		Build *struct {
			Dockerfile string `json:"dockerfile"`
		} `json:"build"`
	} `json:"services"`
	Volumes map[string]any `json:"volumes"`
}

func readCompose(t *testing.T) (composeFile, string) {
	t.Helper()
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	require.NoError(t, err)
	var file composeFile
	require.NoError(t, yaml.Unmarshal(text, &file))
	return file, root
}

// The commands of the containers are command lines of this binary: a flag that
// is renamed here must be renamed there.
func TestComposeRunsCommandsThatExist(t *testing.T) {
	t.Parallel()
	file, _ := readCompose(t)
	seen := map[string]bool{}
	for name, service := range file.Services {
		if service.Build == nil {
			continue
		}
		lines := [][]string{service.Command}
		if test := service.Healthcheck.Test; len(test) > 0 {
			require.Equal(t, []string{"CMD", "/keyway"}, test[:2], name)
			lines = append(lines, test[2:])
		}
		for _, line := range lines {
			cmd, rest, err := newRoot(nil).Find(line)
			require.NoError(t, err, name)
			require.NoError(t, cmd.ParseFlags(rest), "%s: %v", name, line)
			assert.Empty(t, cmd.Flags().Args(), "%s: %v", name, line)
			seen[cmd.Name()] = true
		}
	}
	for _, name := range []string{procXDS, procAuthz, procExtproc, procWorker, procFakeProvider} {
		assert.True(t, seen[name], "%s is part of it", name)
	}
}

func TestComposeIsWhole(t *testing.T) {
	t.Parallel()
	file, root := readCompose(t)
	pinned := regexp.MustCompile(`^[a-z/]+:v?\d+\.\d+`)
	for name, service := range file.Services {
		if service.Build != nil {
			assert.FileExists(t, filepath.Join(root, service.Build.Dockerfile))
		} else {
			assert.Regexp(t, pinned, service.Image, "%s has a version", name)
		}
		for other := range service.DependsOn {
			assert.Contains(t, file.Services, other, name)
		}
		for _, volume := range service.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if strings.HasPrefix(source, ".") {
				assert.DirExists(t, filepath.Join(root, source))
			} else {
				assert.Contains(t, file.Volumes, source, name)
			}
		}
	}
	assert.Equal(t, "envoyproxy/envoy:v1.40.0", file.Services["envoy"].Image)
	// gRPC would take "xds:9090" for a scheme if anything registered that one.
	assert.Nil(t, resolver.Get("xds"))
}

func TestComposeConfigurationIsValid(t *testing.T) {
	t.Parallel()
	file, root := readCompose(t)
	cfg, err := config.Load(filepath.Join(root, "deploy", "compose", "config.yaml"))
	require.NoError(t, err)
	for _, channel := range cfg.GetChannels() {
		variable, ok := strings.CutPrefix(channel.GetSecret(), "env:")
		require.True(t, ok)
		for name, service := range file.Services {
			_, has := service.Environment[variable]
			assert.Equal(t, name == procExtproc, has, "a provider's key is in extproc and nowhere else (%s)", name)
		}
	}
	for _, name := range []string{procAuthz, procExtproc, "bootstrap"} {
		assert.Contains(t, strings.Join(file.Services[name].Command, " "), "--region "+cfg.GetRegion())
	}
}
