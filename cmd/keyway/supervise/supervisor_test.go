package supervise

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// supervisorFolder makes the test binary act as a supervisor of one child
// instead of running tests; its pid file goes into the folder named.
const supervisorFolder = "SUPERVISE_TEST_FOLDER"

func TestMain(m *testing.M) {
	if folder := os.Getenv(supervisorFolder); folder != "" {
		s := New(Options{})
		if err := s.Start(context.Background(), shell(folder, "orphan", "echo $$ > "+folder+"/pid; exec sleep 600")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		select {}
	}
	goleak.VerifyTestMain(m)
}

// shell is a child that runs script and is ready once the file folder/name.up exists.
func shell(folder, name, script string) Spec {
	up := filepath.Join(folder, name+".up")
	return Spec{
		Name: name, Path: "/bin/sh", Args: []string{"-c", "touch " + up + "; " + script},
		LogFile: filepath.Join(folder, name+".log"),
		Ready: func(context.Context) error {
			_, err := os.Stat(up)
			return err
		},
		StopWithin: 20 * time.Second,
	}
}

// journal collects progress lines.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "\n")
}

func gone(pid int) bool { return syscall.Kill(pid, 0) != nil }

func TestStopsInTheGivenOrder(t *testing.T) {
	t.Parallel()
	folder, j := t.TempDir(), new(journal)
	s := New(Options{Progress: j.add})
	for _, name := range []string{"first", "second", "third"} {
		require.NoError(t, s.Start(t.Context(), shell(folder, name, "exec sleep 600")))
	}
	pids := s.PIDs()
	require.Len(t, pids, 3)
	s.Stop([]string{"second", "third", "first"}, nil)
	for name, pid := range pids {
		assert.True(t, gone(pid), name)
	}
	text := j.text()
	assert.Less(t, strings.Index(text, "starting first"), strings.Index(text, "starting second"))
	assert.Less(t, strings.Index(text, "stopping second"), strings.Index(text, "stopping third"))
	assert.Less(t, strings.Index(text, "stopping third"), strings.Index(text, "stopping first"))
}

func TestRestartsAKilledChild(t *testing.T) {
	t.Parallel()
	changed := make(chan struct{}, 10)
	j := new(journal)
	s := New(Options{Progress: j.add, Changed: func() { changed <- struct{}{} }})
	defer s.Stop(nil, nil)
	require.NoError(t, s.Start(t.Context(), shell(t.TempDir(), "svc", "exec sleep 600")))

	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { waited <- s.Wait(ctx) }()

	// More kills than quick failures are allowed: being killed is not failing.
	for range maxQuickFailures + 1 {
		before := s.PIDs()["svc"]
		require.NoError(t, syscall.Kill(before, syscall.SIGKILL))
		<-changed
		after := s.PIDs()["svc"]
		assert.NotEqual(t, before, after)
		assert.False(t, gone(after))
	}
	assert.Contains(t, j.text(), "signal: killed; restarting")
	cancel()
	require.NoError(t, <-waited)
}

func TestGivesUpOnAChildThatCannotWork(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	defer s.Stop(nil, nil)
	require.NoError(t, s.Start(t.Context(), shell(t.TempDir(), "svc", "sleep 0.1; echo no disk left; exit 3")))
	err := s.Wait(t.Context())
	require.ErrorContains(t, err, "svc failed 3 times in a row: exit status 3")
	require.ErrorContains(t, err, "no disk left", "the log's tail says why")
}

func TestStartShowsWhyAChildIsNotReady(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	defer s.Stop(nil, nil)
	spec := shell(t.TempDir(), "svc", "")
	spec.Args = []string{"-c", "echo wrong flag; exit 2"}
	err := s.Start(t.Context(), spec)
	require.ErrorContains(t, err, "svc ended before it was ready: exit status 2")
	require.ErrorContains(t, err, "wrong flag")

	slow := shell(t.TempDir(), "slow", "")
	slow.Args = []string{"-c", "exec sleep 600"}
	slow.ReadyWithin = 50 * time.Millisecond
	require.ErrorContains(t, s.Start(t.Context(), slow), "slow is not ready after 50ms")
}

func TestKillsAChildThatIgnoresTheSignal(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name       string
		stopWithin time.Duration
		hurry      bool
	}{
		{"at its deadline", 100 * time.Millisecond, false},
		{"at once when hurried", time.Hour, true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			j := new(journal)
			s := New(Options{Progress: j.add})
			spec := shell(t.TempDir(), "stubborn", "")
			// The trap must stand before the file says ready.
			spec.Args[1] = "trap '' TERM; " + spec.Args[1] + " while :; do sleep 600; done"
			spec.StopWithin = row.stopWithin
			require.NoError(t, s.Start(t.Context(), spec))
			pid := s.PIDs()["stubborn"]
			hurry := make(chan struct{})
			if row.hurry {
				close(hurry)
			}
			s.Stop(nil, hurry)
			assert.True(t, gone(pid))
			assert.Contains(t, j.text(), "stopping stubborn … killed")
		})
	}
}

func TestDrainsBeforeTheSignal(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	spec := shell(t.TempDir(), "svc", "exec sleep 600")
	alive := false
	spec.BeforeStop = func(context.Context) { alive = !gone(s.PIDs()["svc"]) }
	require.NoError(t, s.Start(t.Context(), spec))
	s.Stop(nil, nil)
	assert.True(t, alive)
}

func TestAKilledSupervisorLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" && os.Getenv("CI") != "true" {
		t.Skip("only Linux ties a child's life to its parent's")
	}
	folder := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), supervisorFolder+"="+folder)
	require.NoError(t, cmd.Start())
	var pid int
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(filepath.Join(folder, "pid"))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(raw)))
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
	require.False(t, gone(pid))

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // It was killed, so this is an error.
	require.Eventually(t, func() bool { return gone(pid) || zombie(pid) }, 30*time.Second, 10*time.Millisecond)
}

// zombie reports whether only the entry of a dead process is left: whoever
// adopted it here may be slow to collect it.
func zombie(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(raw), ") Z ")
}
