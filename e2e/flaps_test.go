package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A store that comes and goes costs a service one line for each change, however
// many requests are refused meanwhile, and hardly any processor time.
func TestCase096FlappingStore(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	c.ask(t, ask{model: "m"})
	s.records(t, c.keyID, 1)
	const flaps, refusals, senders = 3, 500, 10
	services := []string{"authz", "extproc", "worker"}
	logged := map[string]int{}
	for _, name := range services {
		logged[name] = len(s.log(t, name))
	}
	resume := func() { s.signal(t, "store", syscall.SIGCONT) }
	t.Cleanup(resume)
	for range flaps {
		s.signal(t, "store", syscall.SIGSTOP)
		eventually(t, func() bool { return c.refused(t) }, patience, time.Millisecond)
		before := s.processorTime(t, "authz")
		var wg sync.WaitGroup
		for range senders {
			wg.Go(func() {
				for range refusals / flaps / senders {
					l, err := c.open(t.Context(), ask{model: "m"})
					if !assert.NoError(t, err) {
						return
					}
					body, err := l.rest()
					assert.NoError(t, err)
					assert.Equal(t, http.StatusServiceUnavailable, l.StatusCode, "%s", body)
				}
			})
		}
		wg.Wait()
		assert.Less(t, s.processorTime(t, "authz")-before, time.Second, "refusals are dear")
		// With nothing to do, nobody spins until the store is back.
		const pause = 300 * time.Millisecond
		used := map[string]time.Duration{}
		for _, name := range services {
			used[name] = s.processorTime(t, name)
		}
		time.Sleep(pause)
		for _, name := range services {
			assert.Less(t, s.processorTime(t, name)-used[name], pause/2, "%s spins", name)
		}
		resume()
		eventually(t, func() bool { return !c.refused(t) }, patience, 20*time.Millisecond)
	}
	for _, name := range services {
		lines := map[string]int{}
		for line := range strings.Lines(s.log(t, name)[logged[name]:]) {
			if message := logMessage.FindString(line); message != `msg="request settled"` {
				lines[message+" "+logOperation.FindString(line)]++
			}
		}
		t.Log(name, lines)
		for message, n := range lines {
			assert.LessOrEqual(t, n, flaps, "%s says too often: %s", name, message)
		}
	}
	c.requireIdle(t)
}

var (
	logMessage   = regexp.MustCompile(`msg=("[^"]*"|\S+)`)
	logOperation = regexp.MustCompile(`operation=\S+`)
)

// refused asks once.
func (c *caller) refused(t testing.TB) bool {
	t.Helper()
	return c.ask(t, ask{model: "m"}).StatusCode == http.StatusServiceUnavailable
}

// log is what a process of the region has logged.
func (s *stack) log(t testing.TB, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.dir, "up", "log", name+".log"))
	require.NoError(t, err)
	return string(raw)
}

// processorTime is what a process of the region has used, to a hundredth of a second.
func (s *stack) processorTime(t testing.TB, name string) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.ready.PIDs[name]))
	require.NoError(t, err)
	// The second field is the command in brackets; user and system time are the 14th and 15th.
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	require.Greater(t, len(fields), 12)
	var sum time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		require.NoError(t, err)
		sum += time.Duration(ticks) * 10 * time.Millisecond
	}
	return sum
}
