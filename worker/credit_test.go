package worker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// fakeCredits is the ledger and the store of what one identity has paid in.
type fakeCredits struct {
	mu        sync.Mutex
	paid      domain.Credit
	known     domain.Credit
	mark      int64
	asked     []int64
	away      error
	markAfter error // of the mark that follows the sums
}

func (f *fakeCredits) Credits(_ context.Context, after int64) ([]domain.Credit, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, after)
	if f.away != nil || f.paid.Entry <= after {
		return nil, f.away
	}
	return []domain.Credit{f.paid}, nil
}

func (f *fakeCredits) CreditMark(context.Context) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mark, nil
}

func (f *fakeCredits) SetCredits(_ context.Context, credits []domain.Credit, entry int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = credits[0]
	if f.markAfter != nil {
		return f.markAfter
	}
	f.mark = entry
	return nil
}

func (f *fakeCredits) set(change func(*fakeCredits)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeCredits) get(read func(*fakeCredits) bool) func() bool {
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return read(f)
	}
}

func TestCreditsAreCarried(t *testing.T) {
	t.Parallel()
	f := &fakeCredits{paid: domain.Credit{Identity: "acme", Micros: 100, Entry: 3}}
	opts := options(newOutbox(), newLedger(), &fakeStore{})
	opts.Credits, opts.CreditStore, opts.CreditInterval = f, f, time.Millisecond
	w := newWorker(t, opts)
	stop := start(t, w)
	defer stop()
	at := func(micros, mark int64) func() bool {
		return f.get(func(f *fakeCredits) bool { return f.known.Micros == micros && f.mark == mark })
	}
	eventually(t, at(100, 3), "the first top-up")
	f.set(func(f *fakeCredits) { f.paid = domain.Credit{Identity: "acme", Micros: 150, Entry: 4} })
	eventually(t, at(150, 4), "the next one")

	f.set(func(f *fakeCredits) { f.known, f.mark = domain.Credit{}, 0 })
	eventually(t, at(150, 4), "a store that lost its data gets it again")

	f.set(func(f *fakeCredits) {
		f.away, f.asked = errAway, nil
		f.paid = domain.Credit{Identity: "acme", Micros: 160, Entry: 5}
	})
	eventually(t, f.get(func(f *fakeCredits) bool { return len(f.asked) > 1 }), "the ledger is asked again")
	f.set(func(f *fakeCredits) { f.away, f.markAfter = nil, errAway })
	eventually(t, at(160, 4), "what was carried and not marked")
	f.set(func(f *fakeCredits) { f.markAfter = nil })
	eventually(t, at(160, 5), "comes again")
	stop()
	require.GreaterOrEqual(t, testutil.ToFloat64(w.metrics.credits), 4.0)
	for _, op := range []operation{opCredits, opSetCredits} {
		require.GreaterOrEqual(t, testutil.ToFloat64(w.metrics.errors.WithLabelValues(op.name)), 1.0, op.name)
	}
}

func TestCreditsNeedTheirStore(t *testing.T) {
	t.Parallel()
	opts := options(newOutbox(), newLedger(), &fakeStore{})
	opts.Credits = &fakeCredits{}
	_, err := New(opts)
	require.ErrorContains(t, err, "Credits and CreditStore go together")
}
