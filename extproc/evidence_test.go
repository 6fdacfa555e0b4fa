package extproc

import (
	"context"
	"encoding/base64"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
	"keyway/wire"
)

// fakeBook notes what it is told.
type fakeBook struct {
	mu      sync.Mutex
	err     error
	cooled  []domain.Evidence
	ended   []domain.ChannelClass
	claims  []domain.Trial
	samples []domain.ChannelSample
}

func (f *fakeBook) Cool(_ context.Context, e domain.Evidence) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.cooled = append(f.cooled, e)
	}
	return f.err == nil, f.err
}

func (f *fakeBook) EndCooldown(_ context.Context, c domain.ChannelClass) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, c)
	return f.err
}

func (f *fakeBook) ClaimTrial(_ context.Context, t domain.Trial) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims = append(f.claims, t)
	return false, f.err
}

func (f *fakeBook) LearnChannels(_ context.Context, samples []domain.ChannelSample) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.samples = append(f.samples, samples...)
	return f.err
}

// newTestEvidence is told the time by the pointer that comes with it.
func newTestEvidence() (*evidence, *fakeBook, *time.Time) {
	book, now := &fakeBook{}, start
	m := newMetrics(prometheus.NewRegistry(), func() float64 { return 0 }, func() float64 { return 0 })
	e := &evidence{
		book: book, learner: book, metrics: m, logger: slog.New(slog.DiscardHandler), now: func() time.Time { return now },
		bounds: func() domain.CooldownBounds {
			return domain.CooldownBounds{First: 2 * time.Second, Least: time.Second, Most: time.Minute}
		},
	}
	return e.init(), book, &now
}

var (
	tiredOne = domain.Candidate{Channel: "a", Class: "large", Account: "a1"}
	limited  = wire.Failure{Status: 429, Headers: []wire.Header{{Name: "retry-after", Value: "20"}}}
	broken   = wire.Failure{Status: 500}
)

func TestOneClearFailureIsEnough(t *testing.T) {
	t.Parallel()
	e, book, _ := newTestEvidence()
	e.failed(tiredOne, limited)
	require.Len(t, e.wake, 1, "the store is told at once")
	e.report(t.Context())
	e.report(t.Context())
	require.Equal(t, []domain.Evidence{{
		ChannelClass: domain.ChannelClass{Channel: "a", Class: "large"}, Account: "a1",
		Reason: domain.ReasonRate, Wait: 20 * time.Second, Bounds: e.bounds(),
	}}, book.cooled)
}

func TestMoneyConcernsEveryClass(t *testing.T) {
	t.Parallel()
	e, book, _ := newTestEvidence()
	e.failed(tiredOne, wire.Failure{Status: 402})
	e.failed(tiredOne, limited)
	e.report(t.Context())
	require.Len(t, book.cooled, 2)
	for _, found := range book.cooled {
		assert.Equal(t, found.Class == domain.EveryClass, found.Reason == domain.ReasonQuota)
	}
}

// What may be one request's bad luck counts when it repeats.
func TestDoubtfulFailures(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		// ends are attempts: f failed, w worked.
		ends string
		want int
	}{
		{"one", "f", 0},
		{"two in a row", "ff", 1},
		{"two in a row after a good time", "wwwwwwwwff", 1},
		{"now and then", "fwwwwfwwwwfwwww", 0},
		{"every second", "fwf", 1},
		{"those before a cooldown do not count after it", "fff", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e, book, _ := newTestEvidence()
			for _, end := range tc.ends {
				if end == 'f' {
					e.failed(tiredOne, broken)
				} else {
					e.worked(tiredOne, 0)
				}
				e.report(t.Context())
			}
			assert.Len(t, book.cooled, tc.want)
		})
	}
}

func TestTrialDecides(t *testing.T) {
	t.Parallel()
	trial := tiredOne
	trial.Trial = true
	e, book, _ := newTestEvidence()
	e.worked(tiredOne, 0)
	e.undecided("req-1", tiredOne)
	e.report(t.Context())
	require.Empty(t, book.ended, "an answer of no trial ends no cooldown")
	require.Empty(t, book.claims)

	e.worked(trial, 0)
	e.report(t.Context())
	require.Equal(t, []domain.ChannelClass{{Channel: "a", Class: "large"}}, book.ended)
	e.failed(trial, broken)
	e.report(t.Context())
	require.Len(t, book.cooled, 1, "one failure of a trial is enough")
	e.failed(trial, wire.Failure{Status: 400})
	e.report(t.Context())
	require.Len(t, book.ended, 2, "a refusal of the request is an answer")
	e.undecided("req-1", trial)
	e.report(t.Context())
	require.Equal(t, []domain.Trial{{ChannelClass: domain.ChannelClass{Channel: "a", Class: "large"}, RequestID: "req-1"}}, book.claims)
	e.worked(trial, 0)
	e.failed(trial, limited)
	e.report(t.Context())
	require.Len(t, book.ended, 2, "what failed in the end did not work")
	require.Len(t, book.cooled, 2)
}

func TestEvidenceWaitsForTheStore(t *testing.T) {
	t.Parallel()
	e, book, now := newTestEvidence()
	book.err = domain.ErrStoreDown
	other := domain.Candidate{Channel: "b", Class: "large", Account: "b1"}
	gone := domain.Candidate{Channel: "c", Class: "large", Account: "c1"}
	e.failed(tiredOne, limited)
	e.failed(other, wire.Failure{Status: 401})
	e.failed(gone, wire.Failure{Status: 429})
	e.report(t.Context())
	e.failed(tiredOne, wire.Failure{Status: 429, Headers: []wire.Header{{Name: "retry-after", Value: "5"}}})
	*now = now.Add(8 * time.Second)
	e.report(t.Context())
	book.err = nil
	e.report(t.Context())
	require.Len(t, book.cooled, 2, "a cooldown that would be over is not begun")
	for _, found := range book.cooled {
		if found.Channel == "a" {
			assert.Equal(t, 12*time.Second, found.Wait, "the longest wait, less what has passed")
		}
	}
	e.report(t.Context())
	require.Len(t, book.cooled, 2)
}

func TestAttemptsAreSummedUp(t *testing.T) {
	t.Parallel()
	e, book, _ := newTestEvidence()
	e.worked(tiredOne, 100*time.Millisecond)
	e.worked(tiredOne, 0)
	e.failed(tiredOne, broken)
	e.failed(tiredOne, wire.Failure{Status: 404})
	e.teach(t.Context())
	e.teach(t.Context())
	require.Equal(t, []domain.ChannelSample{{
		ChannelClass: domain.ChannelClass{Channel: "a", Class: "large"}, Attempts: 4, Failed: 1, TTFT: 100 * time.Millisecond, Timed: 1,
	}}, book.samples)
}

// Each attempt is reported once, by whoever knows of its end first.
func TestEndsOfAttemptsAreReported(t *testing.T) {
	t.Parallel()
	quota := base64.StdEncoding.EncodeToString([]byte("retry-after: 7\n\n" + `{"error":{"code":"insufficient_quota"}}`))
	type found = map[domain.ChannelClass]domain.CooldownReason
	class := func(channel string) domain.ChannelClass { return domain.ChannelClass{Channel: channel, Class: "large"} }
	every := domain.ChannelClass{Channel: "a", Class: domain.EveryClass}
	errorBody := map[string][]string{"content-type": {"application/json"}, "retry-after": {"9"}}
	for _, tc := range []struct {
		name string
		ends func(s *Server, d domain.Decision)
		want found
		// attempts and failed are those of the samples.
		attempts, failed int64
	}{
		{"a first attempt that a second follows", func(s *Server, d domain.Decision) {
			s.blameEarlier(d, 1, "a=429,"+quota+";")
		}, found{every: domain.ReasonQuota}, 1, 1},
		{"one that was not answered", func(s *Server, d domain.Decision) {
			s.blameEarlier(d, 1, "-")
			s.blameEarlier(d, 1, "")
		}, found{class("a"): domain.ReasonUnanswered}, 2, 2},
		{"an earlier one, where the next is native", func(s *Server, d domain.Decision) {
			s.channels.follow(&config.Snapshot{Channels: map[string]domain.Channel{"b": {Name: "b", Egress: domain.EgressNative}}})
			s.begin(d, answer{status: 404, fromUpstream: true, attempts: 2, notes: "a=429;b=404;", headers: errorBody})
		}, found{class("a"): domain.ReasonRate}, 2, 1},
		{"the last one, with an error", func(s *Server, d domain.Decision) {
			s.begin(d, answer{status: 429, fromUpstream: true, attempts: 2, notes: "a=500;b=429;", headers: errorBody})
		}, found{class("b"): domain.ReasonRate}, 1, 1},
		{"the last one, with a fault of the client's", func(s *Server, d domain.Decision) {
			s.begin(d, answer{status: 400, fromUpstream: true, attempts: 1, notes: "a=400;", headers: errorBody})
		}, nil, 1, 0},
		{"the last one, without an answer", func(s *Server, d domain.Decision) {
			for range 2 {
				s.begin(d, answer{status: 503, unanswered: true, attempts: 1, headers: errorBody})
			}
		}, found{class("a"): domain.ReasonUnanswered}, 2, 2},
		{"a refusal of ours", func(s *Server, d domain.Decision) {
			for range 3 {
				s.begin(d, answer{status: 429, attempts: 1, headers: errorBody})
			}
		}, nil, 0, 0},
		{"an error inside an answer", func(s *Server, d domain.Decision) {
			w, _ := s.begin(d, sseAnswer())
			w.chunk([]byte(`data: {"error":{"type":"rate_limit_error","message":"try again in 3s"}}` + "\n\n"))
			w.finish()
			w.end()
		}, found{class("a"): domain.ReasonRate}, 1, 1},
		{"a client that leaves", func(s *Server, d domain.Decision) {
			for range 3 {
				w, _ := s.begin(d, sseAnswer())
				s.ends.expect(d.RequestID)
				s.ends.tell(d.RequestID, ending{byClient: true})
				w.end()
			}
		}, nil, 0, 0},
		{"a good answer", func(s *Server, d domain.Decision) {
			w, _ := s.begin(d, sseAnswer())
			w.chunk([]byte(deltaFrame + stopFrame + doneFrame))
			w.finish()
			w.end()
		}, nil, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s, _ := newServer(t)
			book := &fakeBook{}
			s.evidence.book, s.evidence.learner = book, book
			d := decisionOf(domain.APIChat)
			for i := range d.Candidates {
				d.Candidates[i].Class = "large"
			}
			tc.ends(s, d)
			s.evidence.report(t.Context())
			s.evidence.teach(t.Context())
			got := found{}
			for _, e := range book.cooled {
				got[e.ChannelClass] = e.Reason
			}
			if tc.want == nil {
				tc.want = found{}
			}
			assert.Equal(t, tc.want, got)
			var attempts, failed int64
			for _, sample := range book.samples {
				attempts, failed = attempts+sample.Attempts, failed+sample.Failed
			}
			assert.Equal(t, tc.attempts, attempts)
			assert.Equal(t, tc.failed, failed)
		})
	}
}

func TestNotesAreReadInOrder(t *testing.T) {
	t.Parallel()
	twice := domain.Decision{Candidates: []domain.Candidate{{Channel: "a"}, {Channel: "b"}, {Channel: "a"}}}
	notes := readNotes("a=429@1796126400000,QUJD;a=500;garbage;x=;")
	require.Equal(t, []note{{channel: "a", status: 429, at: time.UnixMilli(1796126400000), detail: "QUJD"}, {channel: "a", status: 500}}, notes)
	first, ok := noteOf(twice, 1, notes)
	require.True(t, ok)
	assert.Equal(t, 429, first.status)
	_, ok = noteOf(twice, 2, notes)
	assert.False(t, ok, "b was not answered")
	third, ok := noteOf(twice, 3, notes)
	require.True(t, ok)
	assert.Equal(t, 500, third.status)
	assert.Equal(t, wire.Failure{Status: 500}, note{channel: "a", status: 500, detail: "%%%"}.failure(), "what is not base64 is left out")
}
