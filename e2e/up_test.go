package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// demoUp is a `keyway up` without a configuration of its own, as a newcomer
// starts it.
type demoUp struct {
	cmd    *exec.Cmd
	dir    string
	output *lockedBuffer
	done   chan struct{}
}

func startDemo(t *testing.T, dir string) *demoUp {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	d := &demoUp{dir: dir, output: &lockedBuffer{}, done: make(chan struct{})}
	// With the soft limit of open files that most shells give.
	d.cmd = exec.Command("sh", append([]string{
		"-c", `ulimit -S -n 1024 && exec "$@"`, "sh", binary, "up", "--dir", dir, "--parts-dir", filepath.Join(root, ".parts"),
	}, freePorts()...)...)
	d.cmd.Stdout, d.cmd.Stderr = d.output, d.output
	d.cmd.SysProcAttr = ownGroup()
	require.NoError(t, d.cmd.Start())
	go func() {
		defer close(d.done)
		_ = d.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill() // It has usually ended; its children end with it.
		<-d.done
		if t.Failed() {
			t.Logf("keyway up printed:\n%s", d.output)
		}
	})
	eventually(t, func() bool {
		select {
		case <-d.done:
			return true
		default:
			return strings.Contains(d.output.String(), "Ctrl-C stops everything.")
		}
	}, 3*time.Minute, 50*time.Millisecond)
	require.Contains(t, d.output.String(), "Keyway is ready on http://127.0.0.1:")
	return d
}

func freePorts() []string {
	var args []string
	for _, flag := range []string{"port", "admin-port", "provider-port", "envoy-admin-port", "store-port", "authz-port", "extproc-port", "worker-port"} {
		args = append(args, "--"+flag, "0")
	}
	return args
}

// readyFile is all of ready.json that scripts rely on.
func (d *demoUp) readyFile(t *testing.T) (fields map[string]any, pids map[string]int) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(d.dir, "ready.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &fields))
	var part struct {
		PIDs map[string]int `json:"pids"`
	}
	require.NoError(t, json.Unmarshal(raw, &part))
	return fields, part.PIDs
}

// commands are the three that `keyway up` prints, as a shell gets them.
func (d *demoUp) commands(t *testing.T) []string {
	t.Helper()
	var commands []string
	joined := strings.ReplaceAll(d.output.String(), "\\\n", " ")
	for line := range strings.Lines(joined) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "curl ") || strings.Contains(line, " ledger --dir ") {
			commands = append(commands, line)
		}
	}
	require.Len(t, commands, 3)
	return commands
}

func shell(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).Output()
	require.NoError(t, err, command)
	return string(out)
}

func running(pid int) bool { return syscall.Kill(pid, 0) == nil }

var processNames = []string{"store", "fakeprovider", "xds", "authz", "extproc", "worker", "envoy"}

func TestUpForANewcomer(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("no curl to paste the printed commands into")
	}
	dir := filepath.Join(t.TempDir(), "demo")
	d := startDemo(t, dir)
	fields, pids := d.readyFile(t)
	for _, name := range []string{"base_url", "api_key", "model", "admin_url", "provider_url", "envoy_admin_url", "binary", "redis_url", "ledger"} {
		assert.NotEmpty(t, fields[name], "ready.json has %s", name)
	}
	for _, name := range processNames {
		assert.True(t, running(pids[name]), name)
	}
	if limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pids["envoy"])); err == nil { // where there is such a file
		files := regexp.MustCompile(`Max open files +(\d+) +(\d+)`).FindStringSubmatch(string(limits))
		require.Len(t, files, 3)
		assert.Equal(t, files[2], files[1], "Envoy may open as many files as this user may")
	}

	commands := d.commands(t)
	assert.Contains(t, shell(t, commands[0]), "data: [DONE]")
	assert.Contains(t, shell(t, commands[1]), `"type":"message"`)
	eventually(t, func() bool {
		return strings.Count(shell(t, commands[2]), "success") == 2
	}, 30*time.Second, 100*time.Millisecond, "both requests stand in the ledger")
	const entries = "access_logs.grpc_access_log.logs_written"
	assert.Contains(t, shell(t, fmt.Sprintf("curl -s '%s/stats?filter=%s'", fields["envoy_admin_url"], entries)), entries+": 0",
		"Envoy tells nothing of what was watched to its end")

	again, err := exec.Command(binary, append([]string{"up", "--dir", dir}, freePorts()...)...).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(again), "already runs on "+dir)

	require.NoError(t, d.cmd.Process.Signal(os.Interrupt))
	<-d.done
	assert.Equal(t, 0, d.cmd.ProcessState.ExitCode(), "Ctrl-C is no failure")
	for name, pid := range pids {
		assert.False(t, running(pid), "%s has ended", name)
	}
	assert.NoFileExists(t, filepath.Join(dir, "ready.json"))
	out := d.output.String()
	last := -1
	for _, name := range []string{"envoy", "authz", "extproc", "worker", "xds", "fakeprovider", "store"} {
		at := strings.Index(out, "stopping "+name)
		assert.Greater(t, at, last, "%s stops in its turn", name)
		last = at
	}

	// The second start keeps key, configuration and ledger.
	second := startDemo(t, dir)
	kept, _ := second.readyFile(t)
	assert.Equal(t, fields["api_key"], kept["api_key"])
	commands = second.commands(t)
	assert.Contains(t, shell(t, commands[0]), "data: [DONE]")
	eventually(t, func() bool {
		return strings.Count(shell(t, commands[2]), "success") == 3
	}, 30*time.Second, 100*time.Millisecond)
}

func TestUpRestartsWhatDiesAndDiesWhole(t *testing.T) {
	t.Parallel()
	d := startDemo(t, filepath.Join(t.TempDir(), "demo"))
	for _, name := range processNames {
		_, before := d.readyFile(t)
		require.NoError(t, syscall.Kill(before[name], syscall.SIGKILL))
		eventually(t, func() bool {
			_, after := d.readyFile(t)
			return after[name] != before[name] && running(after[name])
		}, time.Minute, 50*time.Millisecond, "%s is started again and ready.json says so", name)
	}
	command := d.commands(t)[0]
	eventually(t, func() bool {
		out, err := exec.Command("sh", "-c", command).Output()
		return err == nil && strings.Contains(string(out), "data: [DONE]")
	}, time.Minute, 200*time.Millisecond, "the region serves again")

	_, pids := d.readyFile(t)
	require.NoError(t, d.cmd.Process.Kill())
	<-d.done
	for name, pid := range pids {
		eventually(t, func() bool { return !running(pid) || isZombie(pid) }, time.Minute, 20*time.Millisecond, "%s does not outlive a killed keyway up", name)
	}
}

// isZombie reports whether only the entry of a dead process is left: whoever
// adopted it may be slow to collect it.
func isZombie(pid int) bool {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(raw), ") Z ")
}
