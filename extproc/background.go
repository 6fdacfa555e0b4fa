package extproc

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"keyway/domain"
	"keyway/telemetry"
	"keyway/wire"
)

// Followings keeps, for the whole region, who follows what providers make in the
// background, so that another process goes on where one stops.
type Followings interface {
	// Follow notes, or goes on with, what follower follows, for half of each lease.
	Follow(ctx context.Context, follower string, list []domain.Settlement) ([]domain.Following, error)
	// HandOver leaves list to whoever takes over, and forgets what has ended. What
	// nobody has taken over yet is still held; a repeated call keeps it open.
	HandOver(ctx context.Context, follower string, list []domain.Settlement) ([]domain.Following, error)
	// TakeOver gives follower up to most of those that nobody follows any more.
	TakeOver(ctx context.Context, follower string, lease time.Duration, most int) ([]domain.Settlement, error)
}

const (
	// mostBackground bounds the responses in the background that one process
	// follows; each costs a few KiB. One more is settled at once, as lost.
	mostBackground = 10_000
	// roundsPerLease is how often in a lease the store is told of those that are
	// followed, and asked for those that nobody follows: three times before a
	// follower loses one, and twice before the sweeper gets it.
	roundsPerLease = 6
	// takeBatch bounds those that are taken over at once, and takeSpread sets their
	// first questions apart.
	takeBatch  = 500
	takeSpread = 10 * time.Millisecond
	// configPause is how soon it is looked again for a first configuration.
	configPause = 100 * time.Millisecond
)

// background follows responses that providers make in the background, which go
// on, and cost, when their request is over: it asks how each stands until it has
// ended, and settles it then. What it follows stands in the store from the moment
// its id is known, with a lease. A process that stops hands over, and one that
// dies loses its leases: another one, or its own successor, takes over. Two that
// follow the same are harmless: the first to settle is the only one.
type background struct {
	server *Server
	egress *http.Client
	book   Followings
	// name tells this process from all others, and from its own former self.
	name string
	// These are constants but for tests.
	most                          int
	first, longest, limit, refuse time.Duration

	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex // guards all below, and running against its Wait
	stopped bool
	// mine are those whose lease this process holds, by request.
	mine    map[string]*followed
	polled  int
	rooms   map[string]*semaphore.Weighted
	running sync.WaitGroup
}

// followed is one response whose lease this process holds.
type followed struct {
	progress domain.Settlement
	// stop ends the questions; nil while the request itself still runs here.
	stop context.CancelFunc
	// left: it is for another one to follow, and kept open until that has come.
	left bool
}

func newBackground(s *Server, egress *http.Client, book Followings) *background {
	b := &background{
		server: s, egress: egress, book: book, name: rand.Text(),
		most: mostBackground, first: firstPoll, longest: longestPoll, limit: backgroundLimit, refuse: refusedLimit,
		mine: make(map[string]*followed), rooms: make(map[string]*semaphore.Weighted),
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// run keeps the leases and takes over what others left, until ctx ends. When the
// stop begins it hands over what it asks for; what comes of streams that run on
// is handed over as they end. Until it ends itself it keeps that from the sweeper:
// the successor may wait for its end.
func (b *background) run(ctx context.Context, stopping <-chan struct{}) {
	defer b.egress.CloseIdleConnections()
	defer b.handOverAll()
	answering := true
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			b.handOverAll()
			stopping = nil
		case <-timer.C:
			answering = b.round(ctx, answering)
			timer.Reset(b.pause())
		}
	}
}

// lease is the region's; 0 without a configuration.
func (b *background) lease() time.Duration {
	if snap := b.server.config.Load(); snap != nil {
		return snap.Lease
	}
	return 0
}

// pause is until the next round.
func (b *background) pause() time.Duration {
	lease := b.lease()
	if lease == 0 {
		return configPause
	}
	return jitter(lease / roundsPerLease)
}

// round tells the store of all that is followed, and takes over what nobody
// follows; answered says whether the store did at the round before. Where it did
// not, every lease may have ended with its follower alive, who goes first now.
func (b *background) round(ctx context.Context, answered bool) (answering bool) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := b.renew(ctx)
	if err == nil && answered && b.lease() > 0 {
		err = b.takeOver(ctx)
	}
	if err != nil && !errors.Is(err, domain.ErrStoreDown) && ctx.Err() == nil {
		b.server.logger.Error("follow responses in the background", telemetry.Err(err))
	}
	return err == nil
}

func (b *background) renew(ctx context.Context) error {
	if err := b.tell(ctx, b.book.Follow, func(f *followed) bool { return !f.left }); err != nil {
		return err
	}
	return b.tell(ctx, b.book.HandOver, func(f *followed) bool { return f.left })
}

// tell tells the store of those of mine that are wanted, and leaves what it says
// is no longer mine.
func (b *background) tell(ctx context.Context, call func(context.Context, string, []domain.Settlement) ([]domain.Following, error), wanted func(*followed) bool) error {
	b.mu.Lock()
	list := make([]domain.Settlement, 0, len(b.mine))
	for _, f := range b.mine {
		if wanted(f) {
			list = append(list, f.progress)
		}
	}
	b.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	states, err := call(ctx, b.name, list)
	if err != nil {
		return err
	}
	for i, state := range states {
		if state == domain.FollowingEnded || state == domain.FollowingElsewhere {
			b.leave(list[i].Decision.RequestID)
		}
	}
	return nil
}

// leave gives up one that has ended elsewhere, or that another one follows now.
func (b *background) leave(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.mine[id]
	if !ok {
		return
	}
	delete(b.mine, id)
	b.server.leases.drop(id)
	if f.stop != nil {
		f.stop()
	}
}

func (b *background) takeOver(ctx context.Context) error {
	b.mu.Lock()
	most := min(b.most-b.polled, takeBatch)
	if b.stopped {
		most = 0
	}
	b.mu.Unlock()
	if most <= 0 {
		return nil
	}
	list, err := b.book.TakeOver(ctx, b.name, b.lease(), most)
	for i, progress := range list {
		w := b.server.resume(progress)
		w.unkept = progress.Stored // who noted it may have died before the store had its id
		b.server.leases.hold(leaseOf(w.decision, w.slotHolder()), time.Time{})
		if !b.follow(w, jitter(b.first)+time.Duration(i)*takeSpread) {
			b.server.leases.drop(w.decision.RequestID) // its lease ends, for another one
			continue
		}
		b.server.metrics.takenOver.Inc()
	}
	if len(list) > 0 {
		b.server.logger.Info("took over responses in the background", slog.Int("count", len(list)))
	}
	return err
}

// keep notes that the response of a request that still runs here may go on, before
// its id reaches the client. What the store does not take now the next round tells it.
func (b *background) keep(ctx context.Context, progress domain.Settlement) {
	id := progress.Decision.RequestID
	b.mu.Lock()
	b.mine[id] = &followed{progress: progress}
	b.mu.Unlock()
	if _, err := b.book.Follow(ctx, b.name, []domain.Settlement{progress}); err != nil {
		b.server.logger.Warn("follower waits to be noted", telemetry.RequestID(id), telemetry.Err(err))
	}
}

// follow asks for the response of w, which is resumed, until it has ended, the
// first time after wait. It reports false when there is no room.
func (b *background) follow(w *watch, wait time.Duration) bool {
	id, progress := w.decision.RequestID, *w.resumed
	b.mu.Lock()
	if b.stopped {
		b.mine[id] = &followed{progress: progress, left: true}
		b.mu.Unlock()
		b.handOver(func(f *followed) bool { return f.progress.Decision.RequestID == id })
		return true
	}
	defer b.mu.Unlock()
	if f := b.mine[id]; f != nil && f.stop != nil {
		return true // its lease had ended unnoticed, and came back
	}
	if b.polled >= b.most {
		return false
	}
	ctx, stop := context.WithCancel(b.ctx)
	b.mine[id] = &followed{progress: progress, stop: stop}
	b.polled++
	b.server.metrics.background.Inc()
	b.running.Go(func() {
		defer stop()
		b.poll(ctx, w, wait)
		b.server.metrics.background.Dec()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.polled--
	})
	return true
}

// done forgets one that is settled.
func (b *background) done(id string) {
	b.mu.Lock()
	f, ok := b.mine[id]
	delete(b.mine, id)
	b.mu.Unlock()
	if !ok {
		return
	}
	if f.stop != nil {
		f.stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	// Where the store does not listen, whoever looks next finds it settled.
	_, _ = b.book.HandOver(ctx, b.name, []domain.Settlement{f.progress})
}

// handOverAll ends all questions and leaves their responses to another process.
func (b *background) handOverAll() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.stop()
	b.running.Wait() // one that has ended is being settled
	b.mu.Lock()
	for _, f := range b.mine {
		f.left = f.left || f.stop != nil
	}
	b.mu.Unlock()
	b.handOver(func(f *followed) bool { return f.left })
}

// handOver leaves those of mine that are wanted, whose holds are the successor's from
// now on. Where the store does not listen, the leases end by themselves.
func (b *background) handOver(wanted func(*followed) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	count := 0
	left := func(f *followed) bool {
		if !wanted(f) {
			return false
		}
		count++
		b.server.leases.drop(f.progress.Decision.RequestID)
		return true
	}
	if err := b.tell(ctx, b.book.HandOver, left); err != nil {
		b.server.logger.Warn("responses in the background were not handed over", slog.Int("count", count), telemetry.Err(err))
	} else if count > 0 {
		b.server.logger.Info("handed over responses in the background", slog.Int("count", count))
	}
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
	w.settled = true
	s, rest := w.server, w.server.resume(w.soFar(id))
	rest.unkept = w.unkept
	// What the access log says of the request's end settles nothing.
	s.recent.add(w.decision.RequestID)
	if b := s.background; b == nil || !b.follow(rest, jitter(b.first)) {
		rest.lose(whyNoRoom)
	}
}

// soFar is the settlement of a request whose response id goes on, as far as it is
// known: all but its end. It goes to the store, so it holds what another process
// needs to settle it, and no more.
func (w *watch) soFar(id string) domain.Settlement {
	holder, d := w.slotHolder(), w.decision
	d.Route, d.Candidates = nil, slices.Clone(d.Candidates)
	for i := range d.Candidates {
		d.Candidates[i].Patches = nil
	}
	return domain.Settlement{
		Decision: d, Channel: holder.Channel, Record: w.record(),
		Stored: domain.StoredID{Identity: d.Identity, ID: id, Channel: holder.Channel, Model: d.ModelOf(holder)},
	}
}

// record is what goes to the ledger, but for the end and what was used.
func (w *watch) record() domain.UsageRecord {
	if w.resumed != nil {
		r := w.resumed.Record
		r.Attempts = w.judgeLast(slices.Clone(r.Attempts))
		return r
	}
	r := recordOf(w.decision, w.attempts())
	r.Status, r.UpstreamRequestID, r.FirstByteAt = w.status, w.upstreamRequestID(), w.firstByte
	return r
}

// resume makes the watch of a response that goes on out of what was known when
// its request was over.
func (s *Server) resume(progress domain.Settlement) *watch {
	return &watch{
		server: s, decision: progress.Decision, resumed: &progress, served: true, begun: s.now(), status: progress.Record.Status,
		answer: answer{status: progress.Record.Status, attempts: progress.Record.Attempt},
	}
}
