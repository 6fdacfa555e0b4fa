package extproc

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"keyway/domain"
	"keyway/envoy"
	"keyway/telemetry"
	"keyway/wire"
)

const (
	// mostBackground bounds the responses in the background that one process
	// follows; each costs a few KiB. One more is settled at once, as lost.
	mostBackground = 10_000
	// firstPoll is the first pause before a provider is asked how a response
	// stands, longestPoll what the pauses grow to.
	firstPoll   = time.Second
	longestPoll = 15 * time.Second
	// pollLimit bounds one question.
	pollLimit = 30 * time.Second
	// backgroundLimit is how long a response is followed.
	backgroundLimit = time.Hour
)

// background follows responses that providers make in the background, which go
// on, and cost, when their request is over: it asks how each stands until it has
// ended, and settles it then. It asks the way of an attempt, through Envoy's
// egress listener. Nothing of it outlives the process: at its end reservations
// are left to the sweeper.
type background struct {
	egress *http.Client
	room   *semaphore.Weighted
	// The pauses and the limit are constants but for tests.
	first, longest, limit time.Duration

	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex // guards stopped, and running against its Wait
	stopped bool
	running sync.WaitGroup
}

func newBackground(egress *http.Client) *background {
	b := &background{egress: egress, room: semaphore.NewWeighted(mostBackground), first: firstPoll, longest: longestPoll, limit: backgroundLimit}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// run lets responses be followed until ctx ends.
func (b *background) run(ctx context.Context) {
	<-ctx.Done()
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.stop()
	b.running.Wait()
	b.egress.CloseIdleConnections()
}

// errNoBackground refuses a response in the background that nobody would follow.
var errNoBackground = &domain.Error{
	Code: domain.CodeInvalidRequest, Param: "background", NoRetry: true,
	Message: "This gateway cannot take responses in the background now. Send the request without background, as a stream if it may take long.",
}

// goesOn reports whether the provider still works on what was watched.
func (w *watch) goesOn(result wire.Result) bool {
	return w.decision.Background && result.Unfinished && !result.Failed && result.UpstreamID != ""
}

// follow ends the watch of a response that goes on. Its holds stay, and it is
// settled when it has ended.
func (w *watch) follow(id string) {
	w.praise() // it took the request, and nobody knows more
	rest := *w // the stream's goroutine keeps w
	w.settled = true
	s := w.server
	// What the access log says of the request's end settles nothing.
	s.recent.add(w.decision.RequestID)
	b := s.background
	if b == nil || !b.room.TryAcquire(1) {
		s.logger.Warn("response in the background cannot be followed", telemetry.RequestID(w.decision.RequestID))
		rest.lose()
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		b.room.Release(1)
		return // the sweeper settles it
	}
	s.metrics.background.Inc()
	b.running.Go(func() {
		defer s.metrics.background.Dec()
		defer b.room.Release(1)
		b.poll(&rest, id)
	})
}

// lose settles a response whose end nobody can tell, by what was reserved: less
// would be an invitation to delete what has been read before it is counted.
func (w *watch) lose() {
	w.lost = true
	w.settle(domain.OutcomeUpstreamCut)
}

// errForgotten: the provider does not have the response, or no longer.
var errForgotten = errors.New("provider does not know the response")

// poll asks until the response has ended. A question without an answer is no
// evidence against the channel, and is asked again.
func (b *background) poll(w *watch, id string) {
	s := w.server
	over := time.Now().Add(b.limit)
	for pause := b.first; ; pause = min(pause+pause/2, b.longest) {
		// Jitter keeps responses that began together from being asked for together.
		timer := time.NewTimer(time.Duration((0.8 + 0.2*rand.Float64()) * float64(pause)))
		select {
		case <-b.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		watcher, err := b.ask(w, id)
		switch {
		case b.ctx.Err() != nil:
			return
		case errors.Is(err, errForgotten), err != nil && time.Now().After(over):
			s.logger.Warn("response in the background is lost", telemetry.RequestID(w.decision.RequestID), "channel", w.slotHolder().Channel, telemetry.Err(err))
			w.lose()
			return
		case err == nil:
			w.watcher, w.finished, w.broken, w.left = watcher, true, false, false
			w.end()
			return
		}
	}
}

// errGoesOn: the response has not ended.
var errGoesOn = errors.New("response has not ended")

// errUnclear: the answer does not say how the response stands.
var errUnclear = errors.New("provider does not say how the response stands")

// ask asks the channel once, and returns what has read the response if it has ended.
func (b *background) ask(w *watch, id string) (*wire.Watcher, error) {
	ctx, cancel := context.WithTimeout(b.ctx, pollLimit)
	defer cancel()
	holder, d := w.slotHolder(), w.decision
	holder.Patches = nil
	// It goes by the request's own id and holds, which its attempt renews.
	d.API, d.Path, d.BodyLen, d.Background = domain.APIStored, "/responses/"+url.PathEscape(id), 0, false
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://egress"+domain.APIVersionPrefix+d.Path, http.NoBody)
	if err != nil {
		return nil, err
	}
	if err := aim(req, d, holder); err != nil {
		return nil, err
	}
	req.Header.Set("X-Request-Id", d.RequestID)
	req.Header.Set("User-Agent", "keyway-background")
	resp, err := b.egress.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch {
	case resp.Header.Get(envoy.HeaderReply) != "":
		return nil, errUnclear
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusGone:
		return nil, errForgotten
	case resp.StatusCode != http.StatusOK:
		return nil, errUnclear
	}
	watcher := wire.NewWatcher(wire.WatchOptions{API: domain.APIResponses, Format: wire.FormatJSON, RequestID: d.RequestID})
	if _, err := io.Copy(watching{watcher}, resp.Body); err != nil {
		return nil, err
	}
	switch result := watcher.Result(); {
	case !result.Terminal || result.UpstreamID != id:
		return nil, errUnclear
	case result.Unfinished:
		return nil, errGoesOn
	}
	return watcher, nil
}

// watching feeds a body to a watcher.
type watching struct{ watcher *wire.Watcher }

// Write implements io.Writer.
func (w watching) Write(p []byte) (int, error) {
	w.watcher.Write(p)
	return len(p), nil
}
