package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/semaphore"

	"keyway/domain"
	"keyway/envoy"
	"keyway/telemetry"
	"keyway/wire"
)

const (
	// firstPoll is the first pause before a provider is asked how a response
	// stands, longestPoll what the pauses grow to.
	firstPoll   = time.Second
	longestPoll = 15 * time.Second
	// longestWait bounds what a provider may ask for by Retry-After.
	longestWait = 5 * time.Minute
	// pollLimit bounds one question, and pollsAtOnce those that one channel is
	// asked at once.
	pollLimit   = 30 * time.Second
	pollsAtOnce = 32
	// backgroundLimit is how long after its admission a response is cancelled and
	// followed no more.
	backgroundLimit = time.Hour
	// refusedLimit is how long a provider may refuse every question, or a channel be
	// out of the configuration, before its response is lost: time to mend it.
	refusedLimit = 10 * time.Minute
)

// Why a response in the background was given up, as metrics name it.
const (
	whyForgotten = "forgotten"
	whyRefused   = "refused"
	whyAge       = "age"
	whyNoRoom    = "no_room"
)

// lose settles a response whose end nobody can tell, by what was reserved: less
// would be an invitation to delete what has been read before it is counted.
func (w *watch) lose(why string) {
	w.server.metrics.givenUp.WithLabelValues(why).Inc()
	w.server.logger.Warn("response in the background is lost", telemetry.RequestID(w.decision.RequestID), "channel", w.slotHolder().Channel, "why", why)
	w.lost = true
	w.settle(domain.OutcomeUpstreamCut)
}

// poll asks, the first time after wait, until the response of w has ended, and
// settles it; or until ctx ends. No answer is evidence against the channel: that
// would keep requests away for what is not theirs.
func (b *background) poll(ctx context.Context, w *watch, wait time.Duration) {
	age := b.server.now().Sub(w.decision.AdmittedAt)
	over := time.Now().Add(b.limit - age)
	var refused time.Time // since when every question was
	for pause := b.first; ; pause = min(pause+pause/2, b.longest) {
		if !sleep(ctx, min(wait, max(time.Until(over), 0))) {
			return
		}
		what, old := question{method: http.MethodGet}, !time.Now().Before(over)
		if old {
			what = question{method: http.MethodPost, action: "/cancel"}
		}
		watcher, err := b.ask(ctx, w, what)
		if ctx.Err() != nil && err != nil {
			return
		}
		var u *unclear
		errors.As(err, &u)
		switch {
		case err == nil:
			w.watcher, w.finished = watcher, true
			w.end()
			return
		case errors.Is(err, errForgotten):
			w.lose(whyForgotten)
			return
		case old:
			w.lose(whyAge)
			return
		case u == nil || !u.refused:
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		case time.Since(refused) > b.refuse:
			w.lose(whyRefused)
			return
		}
		wait = jitter(pause)
		if u != nil {
			wait += min(u.wait, longestWait)
		}
	}
}

// jitter is a little less than d: what began together does not go on together.
func jitter(d time.Duration) time.Duration {
	return time.Duration((0.8 + 0.2*rand.Float64()) * float64(d))
}

// sleep reports false where ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// errForgotten: the provider does not have the response, or no longer.
var errForgotten = errors.New("provider does not know the response")

// errGoesOn: the response has not ended.
var errGoesOn = errors.New("response has not ended")

// unclear is an answer that does not say how the response stands.
type unclear struct {
	status int
	// wait is what it asks for, 0 for nothing.
	wait time.Duration
	// refused: it will not say until somebody changes something.
	refused bool
}

func (u *unclear) Error() string {
	return fmt.Sprintf("provider does not say how the response stands, but %d", u.status)
}

// question is what is asked of a response.
type question struct{ method, action string }

// ask asks the channel once, and returns what has read the response if it has ended.
func (b *background) ask(ctx context.Context, w *watch, what question) (*wire.Watcher, error) {
	holder, d, id := w.slotHolder(), w.decision, w.resumed.Stored.ID
	room := b.roomOf(holder.Channel)
	if err := room.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer room.Release(1)
	ctx, cancel := context.WithTimeout(ctx, pollLimit)
	defer cancel()
	holder.Patches = nil
	// It goes by the request's own id, and holds nothing: its follower does.
	d.API, d.Path, d.BodyLen, d.Background = domain.APIStored, "/responses/"+url.PathEscape(id)+what.action, 0, false
	d.Holds, d.Lease = nil, 0
	req, err := http.NewRequestWithContext(ctx, what.method, "http://egress"+domain.APIVersionPrefix+d.Path, http.NoBody)
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
	if resp.Header.Get(envoy.HeaderReply) != "" {
		return nil, &unclear{status: resp.StatusCode, refused: !b.server.configured(holder.Channel)}
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return readEnd(resp.Body, d.RequestID, id)
	case http.StatusNotFound, http.StatusGone:
		return nil, errForgotten
	}
	u := &unclear{status: resp.StatusCode, wait: failureOf(resp).Judge(time.Now()).Wait}
	u.refused = u.status == http.StatusUnauthorized || u.status == http.StatusForbidden
	return nil, u
}

// configured reports whether the configuration, where there is one, has a channel.
func (s *Server) configured(channel string) bool {
	snap := s.config.Load()
	if snap == nil {
		return true
	}
	_, ok := snap.Channels[channel]
	return ok
}

// readEnd reads a response object, and returns what has read it if it has ended.
func readEnd(body io.Reader, requestID, id string) (*wire.Watcher, error) {
	watcher := wire.NewWatcher(wire.WatchOptions{API: domain.APIResponses, Format: wire.FormatJSON, RequestID: requestID})
	if _, err := io.Copy(watching{watcher}, body); err != nil {
		return nil, err
	}
	switch result := watcher.Result(); {
	case !result.Terminal || result.UpstreamID != id:
		return nil, &unclear{status: http.StatusOK}
	case result.Unfinished:
		return nil, errGoesOn
	}
	return watcher, nil
}

// roomOf bounds the questions at once to one channel; a silent one keeps nobody
// but its own waiting.
func (b *background) roomOf(channel string) *semaphore.Weighted {
	b.mu.Lock()
	defer b.mu.Unlock()
	room, ok := b.rooms[channel]
	if !ok {
		room = semaphore.NewWeighted(pollsAtOnce)
		b.rooms[channel] = room
	}
	return room
}

// watching feeds a body to a watcher.
type watching struct{ watcher *wire.Watcher }

// Write implements io.Writer.
func (w watching) Write(p []byte) (int, error) {
	w.watcher.Write(p)
	return len(p), nil
}
