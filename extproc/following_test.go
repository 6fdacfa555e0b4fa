package extproc

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
)

// fakeFollowers is what a region knows of followers, whose leases end when a test says so.
type fakeFollowers struct {
	mu       sync.Mutex
	err      error
	by       map[string]string // follower by request; "" is free
	progress map[string]domain.Settlement
	// stores know what has ended.
	stores []*fakeStore
}

func (f *fakeFollowers) ended(id string) bool {
	return slices.ContainsFunc(f.stores, func(s *fakeStore) bool { return s.has(id) })
}

// free ends every lease.
func (f *fakeFollowers) free() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.by {
		f.by[id] = ""
	}
}

func (f *fakeFollowers) holder(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.by[id]
}

func (f *fakeFollowers) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeFollowers) Follow(_ context.Context, follower string, list []domain.Settlement) ([]domain.Following, error) {
	return f.note(follower, list, follower)
}

func (f *fakeFollowers) HandOver(_ context.Context, follower string, list []domain.Settlement) ([]domain.Following, error) {
	return f.note(follower, list, "")
}

// note leaves what follower may have to then.
func (f *fakeFollowers) note(follower string, list []domain.Settlement, then string) ([]domain.Following, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	if f.by == nil {
		f.by, f.progress = map[string]string{}, map[string]domain.Settlement{}
	}
	answers := make([]domain.Following, len(list))
	for i, one := range list {
		id := one.Decision.RequestID
		switch by := f.by[id]; {
		case f.ended(id):
			answers[i] = domain.FollowingEnded
			delete(f.by, id)
		case by != "" && by != follower:
			answers[i] = domain.FollowingElsewhere
		default:
			answers[i] = domain.FollowingHeld
			f.by[id], f.progress[id] = then, one
		}
	}
	return answers, nil
}

func (f *fakeFollowers) TakeOver(_ context.Context, follower string, _ time.Duration, most int) (list []domain.Settlement, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	for id, by := range f.by {
		if by == "" && !f.ended(id) && len(list) < most {
			f.by[id] = follower
			list = append(list, f.progress[id])
		}
	}
	return list, nil
}

// apart makes a second process of the same region, with a store of its own so
// that a test sees which of them settles.
func apart(t *testing.T, s *Server, provider *asked) (*Server, *fakeStore) {
	t.Helper()
	other, store := newServer(t)
	provider.follows(t, other)
	book := s.background.book.(*fakeFollowers)
	book.stores = append(book.stores, store)
	other.background.book = book
	return other, store
}

// rounds makes b do its rounds as fast as it can until the test ends.
func rounds(t *testing.T, b *background) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			b.round(ctx, true)
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// What one process followed another one goes on with, and settles with all that
// the first one knew.
func TestBackgroundIsTakenOver(t *testing.T) {
	t.Parallel()
	for name, stops := range map[string]func(s *Server){
		"handed over":       func(s *Server) { s.background.handOverAll() },
		"its lease is over": func(s *Server) { s.background.book.(*fakeFollowers).free() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			before := &asked{answers: []http.HandlerFunc{says(200, responseOf("queued", "null"))}}
			before.follows(t, s)
			passes(s, responseOf("queued", "null"))
			require.Eventually(t, func() bool { return before.count() > 2 }, 10*time.Second, time.Millisecond)
			after := &asked{answers: []http.HandlerFunc{says(200, responseOf("queued", "null")), says(200, responseOf("completed", someUsage))}}
			other, elsewhere := apart(t, s, after)
			stops(s)
			rounds(t, other.background)
			require.Eventually(t, func() bool { return elsewhere.has("req-1") }, 10*time.Second, time.Millisecond)
			got := elsewhere.get(t, "req-1")
			assert.Equal(t, domain.OutcomeSuccess, got.Record.Outcome)
			assert.Equal(t, domain.SourceUpstream, got.Record.Source)
			assert.Equal(t, domain.Usage{InputUncached: 11, Output: 7}, got.Record.Usage)
			assert.Equal(t, "b", got.Channel)
			assert.NotEmpty(t, got.Stored.ID)
			assert.Equal(t, []domain.StoredID{got.Stored}, elsewhere.stored, "the first one may have died before its id was kept")
			assert.Equal(t, []string{"a", "b"}, []string{got.Record.Attempts[0].Channel, got.Record.Attempts[1].Channel})
			assert.Equal(t, http.StatusOK, got.Record.Status)
			assert.False(t, got.Record.FirstByteAt.IsZero())
			assert.InDelta(t, 1, testutil.ToFloat64(other.metrics.takenOver), 0)
			assert.Eventually(t, func() bool { return testutil.ToFloat64(other.metrics.background) == 0 }, 10*time.Second, time.Millisecond)
			assert.Zero(t, other.leases.len())
			// The first one leaves it alone from the moment it hears of that.
			s.background.round(t.Context(), true)
			assert.Zero(t, s.leases.len())
			asked := before.count()
			time.Sleep(20 * time.Millisecond)
			assert.LessOrEqual(t, before.count(), asked+1, "one may have been on its way")
			assert.False(t, store.has("req-1"))
		})
	}
}

// A stream is noted before its id reaches the client, so that the death of its
// process leaves it to another one; one that ends by itself is forgotten.
func TestBackgroundStreamsAreNoted(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	provider := &asked{answers: []http.HandlerFunc{says(200, responseOf("completed", someUsage))}}
	provider.follows(t, s)
	book := s.background.book.(*fakeFollowers)
	w, _ := s.begin(backgroundDecision(), streamed(2))
	w.chunk([]byte("event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_9\",\"status\":\"queued\",\"usage\":null}}\n\n"))
	require.Equal(t, s.background.name, book.by["req-1"])
	require.Equal(t, "resp_9", book.progress["req-1"].Stored.ID)
	for _, c := range book.progress["req-1"].Decision.Candidates {
		assert.Nil(t, c.Patches, "a question needs none")
	}
	s.background.round(t.Context(), true)
	assert.Zero(t, provider.count(), "as long as the stream runs nobody asks")
	w.chunk([]byte("event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_9\",\"status\":\"completed\",\"usage\":" + someUsage + "}}\n\n"))
	w.finish()
	w.end()
	require.True(t, store.has("req-1"))
	assert.Empty(t, book.by["req-1"])
	assert.Empty(t, s.background.mine)
	assert.Zero(t, provider.count())
}

// A stop hands over at once what is asked for, and streams as they end.
func TestBackgroundIsHandedOverAtTheStop(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	provider := &asked{answers: []http.HandlerFunc{says(200, responseOf("queued", "null"))}}
	provider.follows(t, s)
	book := s.background.book.(*fakeFollowers)
	ctx, cancel := context.WithCancel(context.Background())
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		s.background.run(ctx, stopping)
	}()
	passes(s, responseOf("queued", "null"))
	d := backgroundDecision()
	d.RequestID = "req-2"
	w, _ := s.begin(d, streamed(2))
	w.chunk([]byte("event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_9\",\"status\":\"queued\",\"usage\":null}}\n\n"))
	close(stopping)
	require.Eventually(t, func() bool { return book.holder("req-1") == "" }, 10*time.Second, time.Millisecond)
	assert.Equal(t, s.background.name, book.holder("req-2"), "its stream runs here")
	require.Eventually(t, func() bool { return !s.leases.owned("req-1") }, 10*time.Second, time.Millisecond)
	assert.True(t, s.leases.owned("req-2"))
	w.finish()
	w.end()
	assert.Empty(t, book.holder("req-2"))
	assert.Zero(t, s.leases.len(), "the stop waits for nothing more")
	cancel()
	<-stopped
	assert.False(t, store.has("req-1"))
	assert.False(t, store.has("req-2"))
}

// One whose settlement waits in the journal keeps its follower, so that nobody asks
// for it again.
func TestFollowedUntilTheSettlementHasLanded(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	provider := &asked{answers: []http.HandlerFunc{says(200, responseOf("queued", "null")), says(200, responseOf("completed", someUsage))}}
	provider.follows(t, s)
	book := s.background.book.(*fakeFollowers)
	passes(s, responseOf("queued", "null"))
	store.mu.Lock()
	store.err = domain.ErrStoreDown
	store.mu.Unlock()
	require.Eventually(t, func() bool { return s.journal.Len() == 1 }, 10*time.Second, time.Millisecond)
	asked := provider.count()
	s.background.round(t.Context(), true)
	require.Equal(t, s.background.name, book.holder("req-1"))
	assert.Equal(t, asked, provider.count())
	assert.Zero(t, testutil.ToFloat64(s.metrics.takenOver))
}

// While the store is away nobody can renew: who followed goes first when it is back.
func TestFollowersGoOnAfterTheStoreWasAway(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t)
	provider := &asked{answers: []http.HandlerFunc{says(200, responseOf("queued", "null"))}}
	provider.follows(t, s)
	passes(s, responseOf("queued", "null"))
	other, _ := apart(t, s, provider)
	book := s.background.book.(*fakeFollowers)
	book.fail(domain.ErrStoreDown)
	assert.False(t, s.background.round(t.Context(), true))
	assert.False(t, other.background.round(t.Context(), true))
	book.fail(nil)
	book.free() // every lease has ended
	assert.True(t, other.background.round(t.Context(), false))
	assert.Empty(t, book.holder("req-1"), "its follower may live")
	assert.True(t, s.background.round(t.Context(), false))
	assert.True(t, other.background.round(t.Context(), true))
	assert.Equal(t, s.background.name, book.holder("req-1"))
	assert.Zero(t, testutil.ToFloat64(other.metrics.takenOver))
}

// What a provider answers to questions slows them down, and ends them some time;
// it is no evidence against the channel.
func TestBackgroundQuestionsBackOff(t *testing.T) {
	t.Parallel()
	later := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		says(429, `{"error":{"code":"rate_limit_exceeded"}}`)(w, r)
	}
	cancels := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				says(status, body)(w, r)
				return
			}
			says(200, responseOf("in_progress", "null"))(w, r)
		}
	}
	refusal := says(401, `{"error":{"code":"invalid_api_key"}}`)
	read, all := domain.Usage{InputUncached: 11, Output: 7}, domain.Usage{InputUncached: 30, Output: 100}
	for name, tc := range map[string]struct {
		answer  http.HandlerFunc
		limit   time.Duration
		outcome domain.Outcome
		usage   domain.Usage
		why     string
		last    string
		most    int
	}{
		"told to wait":             {later, 2500 * time.Millisecond, domain.OutcomeUpstreamCut, all, whyAge, "POST /v1/responses/resp_9/cancel of req-1", 4},
		"refused":                  {refusal, time.Minute, domain.OutcomeUpstreamCut, all, whyRefused, "GET /v1/responses/resp_9 of req-1", 1000},
		"too old, cancelled":       {cancels(200, responseOf("cancelled", someUsage)), 1100 * time.Millisecond, domain.OutcomeCancelled, read, "", "POST /v1/responses/resp_9/cancel of req-1", 1000},
		"too old, and deaf":        {cancels(500, `{}`), 1100 * time.Millisecond, domain.OutcomeUpstreamCut, all, whyAge, "POST /v1/responses/resp_9/cancel of req-1", 1000},
		"too old, and not to stop": {cancels(200, responseOf("in_progress", "null")), 1100 * time.Millisecond, domain.OutcomeUpstreamCut, all, whyAge, "POST /v1/responses/resp_9/cancel of req-1", 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, store := newServer(t)
			provider := &asked{answers: []http.HandlerFunc{tc.answer}}
			provider.follows(t, s)
			s.background.limit, s.background.refuse = tc.limit, 50*time.Millisecond
			passes(s, responseOf("queued", "null"))
			require.Eventually(t, func() bool { return store.has("req-1") }, 10*time.Second, time.Millisecond)
			got := store.get(t, "req-1").Record
			assert.Equal(t, tc.outcome, got.Outcome)
			assert.Equal(t, tc.usage, got.Usage)
			for _, why := range []string{whyAge, whyForgotten, whyRefused, whyNoRoom} {
				want := 0.0
				if why == tc.why {
					want = 1
				}
				assert.InDelta(t, want, testutil.ToFloat64(s.metrics.givenUp.WithLabelValues(why)), 0, why)
			}
			provider.mu.Lock()
			defer provider.mu.Unlock()
			assert.LessOrEqual(t, len(provider.paths), tc.most)
			assert.Equal(t, tc.last, provider.paths[len(provider.paths)-1])
			s.evidence.mu.Lock()
			defer s.evidence.mu.Unlock()
			assert.Empty(t, s.evidence.waiting, "no cooldown")
			assert.Zero(t, s.leases.len())
		})
	}
}

// A channel that is gone from the configuration has no cluster to ask it by.
func TestBackgroundEndsWithItsChannel(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	provider := &asked{answers: []http.HandlerFunc{envoysOwn}}
	provider.follows(t, s)
	s.background.refuse = 30 * time.Millisecond
	passes(s, responseOf("queued", "null"))
	require.Eventually(t, func() bool { return provider.count() > 20 }, 10*time.Second, time.Millisecond)
	require.False(t, store.has("req-1"), "a channel that is configured comes back")
	s.config.Set(&config.Snapshot{Channels: map[string]domain.Channel{"a": {Name: "a"}}})
	require.Eventually(t, func() bool { return store.has("req-1") }, 10*time.Second, time.Millisecond)
	assert.Equal(t, domain.Usage{InputUncached: 30, Output: 100}, store.get(t, "req-1").Record.Usage)
}

// One channel is asked a bounded number of questions at once.
func TestBackgroundQuestionsAreBounded(t *testing.T) {
	t.Parallel()
	var now, peak atomic.Int64
	s, store := newServer(t)
	provider := &asked{answers: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		now.Add(-1)
		says(200, responseOf("completed", someUsage))(w, r)
	}}}
	provider.follows(t, s)
	const n = 3 * pollsAtOnce
	for i := range n {
		d := backgroundDecision()
		d.RequestID = fmt.Sprintf("req-%d", i)
		a := streamed(2)
		a.headers["content-type"] = []string{"application/json"}
		w, _ := s.begin(d, a)
		w.chunk([]byte(responseOf("queued", "null")))
		w.finish()
		w.end()
	}
	for i := range n {
		require.Eventually(t, func() bool { return store.has(fmt.Sprintf("req-%d", i)) }, 10*time.Second, time.Millisecond)
	}
	assert.LessOrEqual(t, peak.Load(), int64(pollsAtOnce))
	assert.Equal(t, n, provider.count(), "one question each")
}

// A question of our own holds nothing: its follower does, wherever it passes.
func TestQuestionsHoldNothing(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t)
	d := backgroundDecision()
	d.API, d.Lease, d.Background = domain.APIStored, 0, false
	_, err := s.plan(t.Context(), attempt{decision: d, number: 1, channel: "a"})
	require.NoError(t, err)
	assert.Zero(t, s.leases.len())
}
