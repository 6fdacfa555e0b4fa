package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// child is one process of a Spec. While it lives, the one goroutine made by
// start waits for it; a restart makes a new child.
type child struct {
	spec    Spec
	cmd     *exec.Cmd
	pid     int
	started time.Time
	// ended is closed once the process is gone; err may be read after that.
	ended chan struct{}
	err   error

	mu      sync.Mutex
	readyAt time.Time // guarded by mu; zero until Ready returned nil
}

// start runs the process and returns at once.
func start(s *starter, spec Spec) (*child, error) {
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", spec.Name, err)
	}
	defer log.Close() // The process has its own descriptor.

	c := &child{spec: spec, ended: make(chan struct{}), started: time.Now()}
	c.cmd = exec.Command(spec.Path, spec.Args...)
	c.cmd.Env = append(os.Environ(), spec.Env...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = childAttributes()
	if err := s.start(c.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	c.pid = c.cmd.Process.Pid
	go func() {
		defer close(c.ended)
		c.err = c.cmd.Wait()
	}()
	return c, nil
}

// waitReady polls Ready until it is nil, the child ended or the time is up.
func (c *child) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.spec.readyWithin())
	defer cancel()
	var last error
	for {
		if last = c.look(ctx); last == nil {
			c.mu.Lock()
			c.readyAt = time.Now()
			c.mu.Unlock()
			return nil
		}
		select {
		case <-c.ended:
			return fmt.Errorf("%s ended before it was ready: %s", c.spec.Name, c.reason())
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%s is not ready after %s: %w", c.spec.Name, c.spec.readyWithin(), last)
			}
			return ctx.Err()
		case <-time.After(readyPoll):
		}
	}
}

func (c *child) look(ctx context.Context) error {
	select {
	case <-c.ended:
		return errors.New("process has ended")
	default:
	}
	if c.spec.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyCall)
	defer cancel()
	return c.spec.Ready(ctx)
}

// stop ends the process: BeforeStop, SIGTERM, and SIGKILL when the deadline has
// passed or hurry is closed. It returns once the process is gone.
func (c *child) stop(hurry <-chan struct{}) (killed bool) {
	ctx, cancel := context.WithTimeout(context.Background(), c.spec.stopWithin())
	defer cancel()
	go func() { // Ends with ctx, at the latest when stop returns.
		select {
		case <-hurry:
			cancel()
		case <-c.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	if c.spec.BeforeStop != nil {
		c.spec.BeforeStop(ctx)
	}
	c.signal(syscall.SIGTERM)
	select {
	case <-c.ended:
		return false
	case <-ctx.Done():
	}
	select {
	case <-c.ended: // ctx may have been cancelled by the end itself.
		return false
	default:
	}
	c.signal(syscall.SIGKILL)
	<-c.ended
	return true
}

// signal reaches the child's whole group. An error means that it is gone.
func (c *child) signal(sig syscall.Signal) { _ = syscall.Kill(-c.pid, sig) }

// failedToServe reports whether its end says that it cannot work, as opposed to
// having been killed from outside or having died after good service.
func (c *child) failedToServe() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readyAt.IsZero() {
		return true
	}
	var exit *exec.ExitError
	if errors.As(c.err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
			return false
		}
	}
	return time.Since(c.readyAt) < quick
}

// reason says how the process ended; only for a child that has.
func (c *child) reason() string {
	if c.err == nil {
		return "exit status 0"
	}
	return c.err.Error()
}
