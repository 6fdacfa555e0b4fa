package supervise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Options are what a Supervisor tells its owner.
type Options struct {
	// Progress gets one line of text per event; nil discards them. It is called
	// from several goroutines, but never two at a time.
	Progress func(line string)
	// Changed is called by Wait, on its goroutine, after a restarted child has
	// become ready and PIDs has changed; nil is allowed.
	Changed func()
}

// Supervisor owns the children.
//
//	Start, Start, …  →  Wait  →  Stop
//
// Start is called from one goroutine. Every child has one goroutine that
// watches it; Stop ends them all.
type Supervisor struct {
	opts    Options
	starter *starter
	// failed gets the first reason to give up.
	failed chan error
	// changes has an element while Wait has not yet heard of a restart.
	changes chan struct{}
	// ctx ends when stopping begins: restarts and waits for readiness end with it.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	tell   sync.Mutex // serialises Options.Progress

	mu       sync.Mutex
	children map[string]*child // guarded by mu; the present process of each name
}

// New returns a Supervisor without children. Stop must be called in the end.
func New(o Options) *Supervisor {
	ctx, cancel := context.WithCancel(context.Background())
	return &Supervisor{
		opts: o, starter: newStarter(), failed: make(chan error, 1),
		changes: make(chan struct{}, 1), ctx: ctx, cancel: cancel, children: map[string]*child{},
	}
}

// Start runs spec's child, waits until it is ready and watches it from then on.
// The error of a child that does not get ready holds the tail of its log.
func (s *Supervisor) Start(ctx context.Context, spec Spec) error {
	c, err := start(s.starter, spec)
	if err != nil {
		return err
	}
	s.put(c)
	if err := c.waitReady(ctx); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return withLogTail(err, spec)
	}
	s.progress("starting %s … ready in %.1f s", spec.Name, time.Since(c.started).Seconds())
	s.wg.Go(func() { s.watch(c) })
	return nil
}

// Wait blocks until ctx ends (nil) or a child cannot be kept running (why).
func (s *Supervisor) Wait(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failed:
			return err
		case <-s.changes:
			if s.opts.Changed != nil {
				s.opts.Changed()
			}
		}
	}
}

// PIDs returns the process id of each child by name.
func (s *Supervisor) PIDs() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	pids := make(map[string]int, len(s.children))
	for name, c := range s.children {
		pids[name] = c.pid
	}
	return pids
}

// Stop ends the children in the given order of names (those not named come
// first) and returns when all are gone. When hurry is closed, whatever still
// runs is killed at once. Stop is called once.
func (s *Supervisor) Stop(order []string, hurry <-chan struct{}) {
	s.cancel()
	s.wg.Wait() // After this nothing is restarted.
	for _, c := range s.inOrder(order) {
		began := time.Now()
		switch killed := c.stop(hurry); {
		case killed:
			s.progress("stopping %s … killed after %.1f s", c.spec.Name, time.Since(began).Seconds())
		default:
			s.progress("stopping %s … done in %.1f s", c.spec.Name, time.Since(began).Seconds())
		}
	}
	s.starter.close()
}

func (s *Supervisor) inOrder(order []string) []*child {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*child, 0, len(s.children))
	for _, c := range s.children {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *child) int {
		return slices.Index(order, a.spec.Name) - slices.Index(order, b.spec.Name)
	})
	return all
}

// watch keeps a child running until stopping begins or it proves hopeless.
func (s *Supervisor) watch(c *child) {
	failures := 0
	pause := firstPause
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-c.ended:
		}
		if s.ctx.Err() != nil {
			return
		}
		if !c.failedToServe() {
			failures, pause = 0, firstPause
		} else if failures++; failures >= maxQuickFailures {
			s.giveUp(withLogTail(fmt.Errorf("%s failed %d times in a row: %s", c.spec.Name, failures, c.reason()), c.spec))
			return
		}
		s.progress("%s (pid %d) ended: %s; restarting in %.1f s", c.spec.Name, c.pid, c.reason(), pause.Seconds())
		if !s.sleep(pause) {
			return
		}
		pause = min(2*pause, lastPause)
		next, err := s.restart(c.spec)
		if err != nil {
			s.giveUp(err)
			return
		}
		c = next
	}
}

// restart starts a successor and waits for its readiness. One that does not get
// ready in time is ended here, so that watch counts it as a failure.
func (s *Supervisor) restart(spec Spec) (*child, error) {
	c, err := start(s.starter, spec)
	if err != nil {
		return nil, err
	}
	s.put(c)
	switch err := c.waitReady(s.ctx); {
	case err == nil:
		s.progress("restarted %s … ready in %.1f s (pid %d)", spec.Name, time.Since(c.started).Seconds(), c.pid)
		s.changed()
	case errors.Is(err, context.Canceled): // Stop will end it.
	default:
		s.progress("%v", err)
		c.stop(s.ctx.Done())
	}
	return c, nil
}

func (s *Supervisor) put(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.children[c.spec.Name] = c
}

func (s *Supervisor) giveUp(err error) {
	select {
	case s.failed <- err:
	default: // The first reason is the one to tell.
	}
}

func (s *Supervisor) sleep(d time.Duration) bool {
	select {
	case <-s.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (s *Supervisor) progress(format string, args ...any) {
	s.tell.Lock()
	defer s.tell.Unlock()
	if s.opts.Progress != nil {
		s.opts.Progress(fmt.Sprintf(format, args...))
	}
}

func (s *Supervisor) changed() {
	select {
	case s.changes <- struct{}{}:
	default: // Wait will see this change with the one before.
	}
}
