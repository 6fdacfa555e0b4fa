package storetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// ErrMissing says that no server program was found on this machine.
var ErrMissing = errors.New("no valkey-server or redis-server: set KEYWAY_STORE_BIN, put one on PATH, or have the parts installed")

// startTimeout is generous, because many suites may start at once on few cores.
const startTimeout = 30 * time.Second

// Server is one store server that a test owns. It is not safe for concurrent use.
type Server struct {
	// URL is redis://127.0.0.1:<port>.
	URL string
	// Addr is 127.0.0.1:<port>.
	Addr string

	program string
	dir     string
	args    []string
	cmd     *exec.Cmd
}

// Start runs a server of the first kind that is found until the test ends.
// Without a server program the test is skipped, or fails where CI=true. Args are
// added to the command line, such as "--maxmemory", "10mb".
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return Kind{}.Start(t, args...)
}

// Start runs a server of kind k until the test ends.
func (k Kind) Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := k.launch(withDefaults(args)...)
	if errors.Is(err, ErrMissing) {
		Missing(t)
	}
	if err != nil {
		t.Fatalf("start store server: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Missing skips the test, or fails it where CI=true.
func Missing(t testing.TB) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(ErrMissing)
	}
	t.Skip(ErrMissing)
}

// Launch is Start for a whole suite, which then calls Stop.
func Launch(args ...string) (*Server, error) { return Kind{}.launch(withDefaults(args)...) }

func withDefaults(args []string) []string {
	return append([]string{
		// A replica need not wait for others that might come.
		"--repl-diskless-sync-delay", "0",
		"--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction",
	}, args...)
}

func (k Kind) launch(args ...string) (*Server, error) {
	program := k.program
	var err error
	if program == "" {
		program, err = find()
	}
	if err != nil {
		return nil, err
	}
	var s *Server
	for range launchTries {
		if s, err = launchOnce(program, args); !errors.Is(err, errPortTaken) {
			break
		}
	}
	return s, err
}

// launchTries bounds the search for a port that stays free.
const launchTries = 10

func launchOnce(program string, args []string) (*Server, error) {
	dir, err := os.MkdirTemp("", "keyway-store-")
	if err != nil {
		return nil, fmt.Errorf("make data folder: %w", err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	s := &Server{URL: "redis://" + addr, Addr: addr, program: program, dir: dir, args: args}
	if err := s.run(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// highestPort leaves room for a cluster node's second port, 10000 above the first.
const highestPort = 55000

func freePort() (int, error) {
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("find a free port: %w", err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		if port <= highestPort {
			return port, nil
		}
	}
}

// errPortTaken: between the search for a free port and its use, another server
// took it.
var errPortTaken = errors.New("another server has taken the port")

// run starts the process and waits until it serves: it, and not another one
// that was quicker to take the port.
func (s *Server) run() error {
	_, port, _ := net.SplitHostPort(s.Addr)
	args := append(slices.Clone(s.args),
		"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--logfile", filepath.Join(s.dir, "server.out"))
	s.cmd = exec.Command(s.program, args...)
	s.cmd.SysProcAttr = attributes()
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.program, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	logging.Disable() // refused dials are what is waited for
	client := redis.NewClient(&redis.Options{Addr: s.Addr, DialerRetries: 1, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	for {
		err := client.Ping(ctx).Err()
		if err == nil {
			info, err := client.Info(ctx, "server").Result()
			if err != nil {
				return fmt.Errorf("ask %s who it is: %w", s.program, err)
			}
			return s.isOurs(info)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for %s: %w (%s)", s.program, err, s.tail())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// isOurs returns errPortTaken when info is that of another process. A program
// that hides its process id is believed.
func (s *Server) isOurs(info string) error {
	for line := range strings.Lines(info) {
		if pid, ok := strings.CutPrefix(line, "process_id:"); ok && strings.TrimSpace(pid) != strconv.Itoa(s.cmd.Process.Pid) {
			return errPortTaken
		}
	}
	return nil
}

// tail returns the end of the server's log, which says why it did not start.
func (s *Server) tail() string {
	raw, _ := os.ReadFile(filepath.Join(s.dir, "server.out"))
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}

// Pause freezes the server: it accepts connections and answers nothing.
func (s *Server) Pause(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Resume ends Pause.
func (s *Server) Resume(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("signal store server: %v", err)
	}
}

// Kill ends the process as a crash would; its data stays for Restart.
func (s *Server) Kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Restart runs the server again on the same port and data.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill()
	if err := s.run(); err != nil {
		t.Fatalf("restart store server: %v", err)
	}
}

// Stop ends the process and removes its data.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.dir)
}
