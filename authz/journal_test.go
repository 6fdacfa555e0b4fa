package authz

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
)

// optimistic lets the store go away under a policy that spends on credit, with a
// journal of at most limit bytes. A request of the fixture costs a micro-unit for
// each token.
func optimistic(t *testing.T, file string, credit, limit int64) *fixture {
	t.Helper()
	f := newFixture(t)
	f.reservations.err = domain.ErrStoreDown
	f.reconfigure(func(s *config.Snapshot) {
		s.Policies["p"] = domain.Policy{RPM: 600, BudgetDayMicros: 1, OpenWindow: 10 * time.Second, OptimisticMicros: credit}
		s.Identities = nil
		m := s.Models["m"]
		m.Price = domain.Price{Version: "v", Input: 1_000_000, Output: 1_000_000}
		s.Models["m"] = m
	})
	f.server.journalFile, f.server.journalBytes = file, limit
	require.NoError(t, f.server.openJournal())
	return f
}

func (f *fixture) admittedOf(t *testing.T, tries int) (admitted []domain.Decision) {
	t.Helper()
	for i := range tries {
		r := f.request(hello)
		r.ID = "req-" + strconv.Itoa(i)
		got, err := f.server.check(t.Context(), r)
		if err == nil {
			admitted = append(admitted, got.Decision)
			continue
		}
		e := domain.AsError(err)
		require.Equal(t, domain.CodeUnavailable, e.Code)
		require.Positive(t, e.RetryAfter)
	}
	return admitted
}

func TestOptimisticSpendsItsCreditOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "journal")
	f := optimistic(t, file, 1000, DefaultJournalBytes)
	admitted := f.admittedOf(t, 30)
	cost := admitted[0].Holds[1].Amount
	require.Len(t, admitted, int(1000/cost), "a request may cost %d", cost)
	j := f.server.journal.Load()
	require.Equal(t, len(admitted), j.Len(), "each is on disk before it goes out")
	for _, d := range admitted {
		require.True(t, d.Unreserved)
	}
	require.InDelta(t, len(admitted), testutil.ToFloat64(f.server.metrics.outageAdmissions.WithLabelValues(modeOptimistic)), 0)
	require.Len(t, f.server.refunds.queue, 30-len(admitted), "what is refused is given back, where it was written after all")
}

// A successor in the same outage knows what was spent, and lands it in order.
func TestOptimisticSurvivesACrash(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "journal")
	first := optimistic(t, file, 1000, DefaultJournalBytes)
	admitted := first.admittedOf(t, 30)
	// It is killed: its lock ends with it, and nothing else is done.
	require.NoError(t, first.server.journal.Load().Close())
	next := optimistic(t, file, 1000, DefaultJournalBytes)
	require.Empty(t, next.admittedOf(t, 5), "the credit is used up")
	j := next.server.journal.Load()
	next.server.newReplay(j).Drain(t.Context())
	require.Equal(t, len(admitted), j.Len(), "the store is still away")
	next.reservations.err = nil
	next.server.newReplay(j).Drain(t.Context())
	require.Zero(t, j.Len())
	require.Len(t, next.reservations.late, len(admitted))
	for i, d := range next.reservations.late {
		require.Equal(t, admitted[i].RequestID, d.RequestID)
		require.Equal(t, admitted[i].Holds, d.Holds, "with the limits of its rates")
	}
	require.NoError(t, next.server.closeJournal())
}

func TestOptimisticRefusesWithoutAJournal(t *testing.T) {
	t.Parallel()
	require.Empty(t, optimistic(t, "", 1000, 0).admittedOf(t, 3))
	full := optimistic(t, filepath.Join(t.TempDir(), "journal"), 1_000_000, 900)
	n := len(full.admittedOf(t, 20))
	require.Positive(t, n)
	require.Less(t, n, 20, "what does not fit is refused")
	require.LessOrEqual(t, full.server.journal.Load().Size(), int64(900))
}

// What the journal cannot take does not go out, and spends nothing of the credit.
func TestOptimisticSpendsNoCreditOnARefusal(t *testing.T) {
	t.Parallel()
	f := optimistic(t, filepath.Join(t.TempDir(), "journal"), 1000, 1)
	require.Empty(t, f.admittedOf(t, 30), "the journal is full")
	f.server.journalFile, f.server.journalBytes = filepath.Join(t.TempDir(), "another"), DefaultJournalBytes
	require.NoError(t, f.server.openJournal())
	admitted := f.admittedOf(t, 30)
	require.NotEmpty(t, admitted)
	require.Len(t, admitted, int(1000/admitted[0].Holds[1].Amount), "all of the credit")
}

// What the store never takes is out of the way of what it takes.
func TestAdmissionThatIsRefusedForGoodIsSetAside(t *testing.T) {
	t.Parallel()
	f := optimistic(t, filepath.Join(t.TempDir(), "journal"), 1000, DefaultJournalBytes)
	admitted := f.admittedOf(t, 2)
	j := f.server.journal.Load()
	f.reservations.err, f.reservations.poison = nil, admitted[0].RequestID
	f.server.newReplay(j).Drain(t.Context())
	require.Zero(t, j.Len())
	require.Len(t, f.reservations.late, 1)
	require.Equal(t, admitted[1].RequestID, f.reservations.late[0].RequestID)
	require.InDelta(t, 1, testutil.ToFloat64(f.server.metrics.refused), 0)
	require.InDelta(t, 1, testutil.ToFloat64(f.server.metrics.replayed), 0)
	require.NoError(t, f.server.closeJournal())
	aside, err := openJournal(j.RefusedPath(), DefaultJournalBytes)
	require.NoError(t, err)
	require.Equal(t, 1, aside.Len())
	require.Equal(t, admitted[0].RequestID, aside.Waiting()[0].RequestID)
	require.NoError(t, aside.Close())
}

func TestAdmissionsAreJournalledWhole(t *testing.T) {
	t.Parallel()
	_, err := decodeAdmission([]byte("\xff"))
	require.Error(t, err)
	raw, err := encodeAdmission(domain.Decision{RequestID: "a"})
	require.NoError(t, err)
	d, err := decodeAdmission(raw)
	require.NoError(t, err)
	require.Equal(t, "a", d.RequestID)
}
