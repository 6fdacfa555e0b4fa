package supervise

import (
	"context"
	"time"
)

// Spec describes one child.
type Spec struct {
	// Name is what progress lines and PIDs call it.
	Name string
	// Path and Args are the program and its arguments.
	Path string
	Args []string
	// Env is added to the supervisor's own environment, as "NAME=value".
	Env []string
	// LogFile gets what the child writes to stdout and stderr, appended.
	LogFile string
	// Ready is polled until it returns nil; its context ends after a second.
	// nil means ready as soon as started.
	Ready func(ctx context.Context) error
	// ReadyWithin bounds the wait for Ready; 0 is DefaultReadyWithin.
	ReadyWithin time.Duration
	// BeforeStop is called before the stop signal, with StopWithin as its
	// deadline: a chance to drain. nil does nothing.
	BeforeStop func(ctx context.Context)
	// StopWithin is how long the child may take to end after SIGTERM before it
	// is killed; 0 is DefaultStopWithin.
	StopWithin time.Duration
}

// Defaults of Spec.
const (
	// DefaultReadyWithin is long: a cold start on a busy two-core machine reads
	// a 100 MB binary from disk.
	DefaultReadyWithin = 60 * time.Second
	DefaultStopWithin  = 10 * time.Second
)

func (s Spec) readyWithin() time.Duration {
	if s.ReadyWithin > 0 {
		return s.ReadyWithin
	}
	return DefaultReadyWithin
}

func (s Spec) stopWithin() time.Duration {
	if s.StopWithin > 0 {
		return s.StopWithin
	}
	return DefaultStopWithin
}

// Bounds of the restart policy.
const (
	// maxQuickFailures in a row end the whole set: the child cannot work.
	maxQuickFailures = 3
	// quick is how long after readiness an end still counts as a failure to start.
	quick = 3 * time.Second
	// firstPause and lastPause bound the wait before a restart; it doubles.
	firstPause = 200 * time.Millisecond
	lastPause  = 5 * time.Second
	// readyPoll is the pause between two looks at Ready.
	readyPoll = 25 * time.Millisecond
	// readyCall bounds one look.
	readyCall = time.Second
)
