package xds_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"keyway/envoy"
	"keyway/envoy/envoytest"
	"keyway/xds"
)

// runEnvoy starts an Envoy of the control plane and ends it with the test; its
// log is shown when the test failed.
func runEnvoy(t *testing.T, binary, target string) {
	t.Helper()
	bootstrap, err := envoy.Bootstrap(envoy.BootstrapOptions{
		NodeID: "envoy-real", Region: "local", XDS: target, Authz: "127.0.0.1:1", Extproc: "127.0.0.1:1",
	})
	require.NoError(t, err)
	raw, err := protojson.Marshal(bootstrap)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "bootstrap.json")
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	var log bytes.Buffer
	// Not bound to the test's context: the process is ended in order below.
	cmd := exec.Command(binary, "--config-path", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("envoy:\n%s", log.String())
		}
	})
}

// TestRealEnvoy lets Envoy itself say what an ACK and a NACK are.
func TestRealEnvoy(t *testing.T) {
	t.Parallel()
	binary := envoytest.FindEnvoy(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	head := fmt.Sprintf("listener: {port: %d}\n", lis.Addr().(*net.TCPAddr).Port)
	require.NoError(t, lis.Close())

	r := start(t, head+file("a", "b"), nil)
	runEnvoy(t, binary, r.target)
	s := r.service(t, "authz-1")
	s.next(t)
	envoyAt := func(version int64) func(xds.Status) bool {
		return func(st xds.Status) bool {
			for _, n := range st.Nodes {
				if n.Node == "envoy-real" && n.Kind == "envoy" && n.Version == version {
					return true
				}
			}
			return false
		}
	}
	r.until(t, "Envoy takes the first configuration", envoyAt(1))

	r.write(t, head+file("a", "b", "c"))
	assert.Equal(t, []string{"a", "b", "c"}, channelNames(s.next(t).region))
	r.until(t, "Envoy takes a new channel", envoyAt(2))

	unreadable := strings.NewReplacer(
		`name: d, dialects: [openai], base_url: "http:`, `name: d, dialects: [openai], ca_file: /no/such/ca.pem, base_url: "https:`,
	).Replace(file("a", "b", "c", "d", "e"))
	r.write(t, head+unreadable)
	assert.Equal(t, []string{"a", "b", "c", "e"}, channelNames(s.next(t).region), "only what Envoy refused is withheld")
	st := r.until(t, "the refusal shows", func(st xds.Status) bool { return len(st.Withheld) == 1 })
	assert.Equal(t, []string{"d"}, st.Withheld)
	require.Len(t, st.Nodes, 2)
	assert.EqualValues(t, 2, st.Nodes[1].Version)
	require.NotNil(t, st.Nodes[1].LastNack)
	assert.Contains(t, st.Nodes[1].LastNack.Detail, "/no/such/ca.pem")

	r.write(t, head+file("a", "e"))
	assert.Equal(t, []string{"a", "e"}, channelNames(s.next(t).region))
	r.until(t, "all agree after the repair", envoyAt(4))
}
