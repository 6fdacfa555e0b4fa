package extproc

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"keyway/domain"
)

// silentStream notes when it was asked for something.
type silentStream struct {
	mu       sync.Mutex
	boundary bool
	pulse    *pulse
	began    time.Time
	beats    []time.Duration
	ended    time.Duration
}

func (s *silentStream) beat() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.boundary {
		s.beats = append(s.beats, time.Since(s.began))
	}
	return s.boundary
}

func (s *silentStream) idle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = time.Since(s.began)
	s.pulse.stop()
}

// seen is what it was asked for so far.
func (s *silentStream) seen() (beats []time.Duration, ended time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.beats), s.ended
}

func (s *silentStream) atBoundary() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boundary = true
}

func begin(s *silentStream) *pulse {
	s.began = time.Now()
	p := newPulse(s, domain.Decision{Heartbeat: 14 * time.Second, IdleLimit: time.Minute})
	s.pulse = p
	p.held(p.start)
	return p
}

func (p *pulse) held(act func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	act()
}

func TestPulseBeatsInSilenceOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &silentStream{boundary: true}
		p := begin(s)
		for range 10 {
			time.Sleep(13 * time.Second)
			p.held(p.passed)
		}
		beats, _ := s.seen()
		assert.Empty(t, beats, "bytes came in time")
		began := time.Since(s.began)
		time.Sleep(time.Hour)
		beats, ended := s.seen()
		assert.Equal(t, []time.Duration{began + 14*time.Second, began + 28*time.Second, began + 42*time.Second, began + 56*time.Second}, beats)
		assert.Equal(t, began+time.Minute, ended, "heartbeats do not put off the end")
	})
}

func TestPulseWaitsForABoundaryAndForASlowClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &silentStream{}
		p := begin(s)
		time.Sleep(20 * time.Second)
		s.atBoundary()
		p.held(func() { // a write that the client does not take
			time.Sleep(10 * time.Minute)
			beats, ended := s.seen()
			assert.Empty(t, beats, "within a frame nothing can be said, nor within a write")
			assert.Zero(t, ended, "who waits for the client is not silent")
			p.passed()
		})
		time.Sleep(20 * time.Second)
		p.held(p.stop)
		time.Sleep(time.Hour)
		beats, ended := s.seen()
		assert.Equal(t, []time.Duration{10*time.Minute + 34*time.Second}, beats)
		assert.Zero(t, ended)
	})
}
