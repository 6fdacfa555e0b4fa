package config

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Holder is the place where a process keeps the snapshot in force. One writer
// sets, any number of goroutines load without a lock; a request loads once and
// works on that snapshot to its end. The zero value is ready to use.
type Holder struct {
	current atomic.Pointer[Snapshot]

	// mu orders Set and OnChange against each other, so that every observer
	// sees every version once and in order. It guards the fields below.
	mu        sync.Mutex
	observers []func(*Snapshot)
	first     chan struct{}
}

// Load returns the snapshot in force; nil before the first Set.
func (h *Holder) Load() *Snapshot { return h.current.Load() }

// Set puts s in force and calls the observers, on the caller's goroutine.
func (h *Holder) Set(s *Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current.Store(s)
	select {
	case <-h.firstSet():
	default:
		close(h.first)
	}
	for _, observe := range h.observers {
		observe(s)
	}
}

// Wait blocks until there is a snapshot, and returns the newest; the error is
// that of ctx.
func (h *Holder) Wait(ctx context.Context) (*Snapshot, error) {
	h.mu.Lock()
	first := h.firstSet()
	h.mu.Unlock()
	select {
	case <-first:
		return h.Load(), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the first configuration: %w", context.Cause(ctx))
	}
}

// OnChange calls observe with every snapshot from now on, beginning with the
// one in force if there is one. It must return quickly and must not call Set
// or OnChange.
func (h *Holder) OnChange(observe func(*Snapshot)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.observers = append(h.observers, observe)
	if s := h.current.Load(); s != nil {
		observe(s)
	}
}

// firstSet returns the channel that closes with the first Set. The caller holds mu.
func (h *Holder) firstSet() chan struct{} {
	if h.first == nil {
		h.first = make(chan struct{})
	}
	return h.first
}
