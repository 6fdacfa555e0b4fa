package extproc

import (
	"sync"
	"time"

	"keyway/domain"
)

// errIdle ends a stream whose upstream has been silent for too long.
var errIdle = &domain.Error{
	Code:    domain.CodeUpstreamTimeout,
	Message: "The provider has sent nothing for too long, so the gateway ended the stream. Send the request again.",
}

// answering is a stream of events on its way to a client, over whichever door.
// A pulse calls it with the pulse's lock held.
type answering interface {
	// beat sends a heartbeat, if one may stand here; false sent nothing.
	beat() bool
	// idle ends the stream, or looks for another upstream: this one has been
	// silent for too long.
	idle()
}

// pulse keeps a silent stream alive and ends one whose upstream stays silent.
// Whoever writes to the client holds the pulse, so that a heartbeat never
// stands in another write; a heartbeat never waits for one, either: who waits
// for a slow client is not silent.
type pulse struct {
	stream answering
	// every is how long the client may hear nothing, limit how long the
	// upstream may say nothing.
	every, limit time.Duration

	mu    sync.Mutex // guards all below and the way to the client
	timer *time.Timer
	// sent is when the client got bytes last, heard when the upstream gave some.
	sent, heard time.Time
	// stopped: nothing may be written any more.
	stopped bool
}

// newPulse makes a pulse that begins with start.
func newPulse(stream answering, d domain.Decision) *pulse {
	return &pulse{stream: stream, every: d.Heartbeat, limit: d.IdleLimit}
}

// start begins the beat; the caller holds the pulse. Later calls do nothing.
func (p *pulse) start() {
	if p.timer != nil || p.every <= 0 || p.limit <= 0 {
		return
	}
	p.sent = time.Now()
	p.heard = p.sent
	// Set before it can call: a tick reads it without the lock.
	p.timer = time.AfterFunc(p.limit, p.tick)
	p.timer.Reset(p.next(p.sent))
}

// passed notes that bytes of the upstream went on; the caller holds the pulse.
func (p *pulse) passed() {
	if p.timer != nil {
		p.sent = time.Now()
		p.heard = p.sent
	}
}

// heardOf notes that the upstream gave a sign of life that went no further; the
// caller holds the pulse.
func (p *pulse) heardOf() { p.heard = time.Now() }

// stop ends the beat; the caller holds the pulse.
func (p *pulse) stop() {
	p.stopped = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// tick runs when something may be due.
func (p *pulse) tick() {
	if !p.mu.TryLock() {
		// Bytes are on their way to the client, however slow it is. The timer is
		// there since it has called.
		p.timer.Reset(p.every)
		return
	}
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	now := time.Now()
	if now.Sub(p.heard) >= p.limit {
		p.heard = now
		p.stream.idle()
	}
	wait := p.next(now)
	if !p.stopped && now.Sub(p.sent) >= p.every {
		// Within a frame nothing can be said; the next look comes all the same.
		if p.stream.beat() {
			p.sent = now
		}
		wait = min(p.every, p.limit-now.Sub(p.heard))
	}
	if !p.stopped {
		p.timer.Reset(wait)
	}
}

// next is how long nothing is due from now on.
func (p *pulse) next(now time.Time) time.Duration {
	return min(p.every-now.Sub(p.sent), p.limit-now.Sub(p.heard))
}
