package journal

import (
	"context"
	"errors"
	"time"
)

const (
	// replayPause is how long a replay rests when nothing waits or an entry stays.
	replayPause = 200 * time.Millisecond
	// complaintPause is the least time between two calls of Replay.Stays.
	complaintPause = 10 * time.Second
)

// Replay says how the entries of a journal land. All of it is mandatory. One
// goroutine at a time may use it.
type Replay[T any] struct {
	Journal *Journal[T]
	// Land hands an entry over; twice must be harmless.
	Land func(ctx context.Context, e T) error
	// Timeout bounds one call of Land.
	Timeout time.Duration
	// Final is in the errors of Land after which an entry never lands: it is set
	// aside. After any other error it stays, and so does what is behind it.
	Final error
	// Stays hears now and then why the oldest entry does not land; it may wait for
	// Land, or for room where it is to be set aside.
	Stays func(e T, err error)
	// SetAside hears once why an entry was set aside.
	SetAside func(e T, err error)

	complained time.Time
}

// Run lands what waits, oldest first, until ctx ends.
func (r *Replay[T]) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			r.Drain(ctx)
			timer.Reset(replayPause)
		}
	}
}

// Drain lands what waits, until nothing does, one stays or ctx ends.
func (r *Replay[T]) Drain(ctx context.Context) {
	for ctx.Err() == nil && r.oldest(ctx) {
	}
}

// oldest reports whether there was an entry and it is out of the way.
func (r *Replay[T]) oldest(ctx context.Context) bool {
	e, ok := r.Journal.Oldest()
	if !ok {
		return false
	}
	landing, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	err := r.Land(landing, e)
	if err == nil {
		if err := r.Journal.Landed(); err != nil {
			r.complain(e, err)
		}
		return true
	}
	if !errors.Is(err, r.Final) {
		if ctx.Err() == nil {
			r.complain(e, err)
		}
		return false
	}
	if full := r.Journal.SetAside(); full != nil {
		r.complain(e, errors.Join(err, full))
		return false
	}
	r.SetAside(e, err)
	return true
}

func (r *Replay[T]) complain(e T, err error) {
	if now := time.Now(); now.Sub(r.complained) >= complaintPause {
		r.complained = now
		r.Stays(e, err)
	}
}
