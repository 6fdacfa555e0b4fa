package extproc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

func settlementOf(id string) domain.Settlement {
	return domain.Settlement{
		Decision: domain.Decision{RequestID: id, Identity: "acme", API: domain.APIChat, Holds: []domain.Hold{{Kind: domain.LimitTPM, Scope: domain.ScopeKey, ID: "k", Amount: 7}}},
		Channel:  "a",
		Record:   domain.UsageRecord{RequestID: id, Outcome: domain.OutcomeSuccess, Source: domain.SourceUpstream, EndedAt: time.UnixMilli(1_700_000_000_000).UTC()},
	}
}

func TestSettlementsAreJournalledWhole(t *testing.T) {
	t.Parallel()
	s := settlementOf("one")
	s.Stored = domain.StoredID{Identity: "acme", ID: "resp_1", Channel: "a", Model: "m"}
	raw, err := keywayv1.MarshalSettlement(s)
	require.NoError(t, err)
	got, err := keywayv1.UnmarshalSettlement(raw)
	require.NoError(t, err)
	require.Equal(t, s.Record, got.Record)
	require.Equal(t, s.Decision.Holds, got.Decision.Holds)
	require.Equal(t, s.Channel, got.Channel)
	require.Equal(t, s.Stored, got.Stored)
	_, err = keywayv1.UnmarshalSettlement([]byte("\xff"))
	require.Error(t, err)

	s.Record.RequestID = "another"
	raw, err = keywayv1.MarshalSettlement(s)
	require.NoError(t, err)
	_, err = keywayv1.UnmarshalSettlement(raw)
	require.ErrorContains(t, err, "of another request", "it would never land, nor let others land")
}

func TestSettlementWaitsInTheJournalForTheStore(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	store.fail(domain.ErrStoreDown)
	s.settle(settlementOf("late"))
	require.Equal(t, 1, s.journal.Len())
	s.newReplay().Drain(t.Context())
	require.Equal(t, 1, s.journal.Len(), "the store is still away")
	store.fail(nil)
	s.newReplay().Drain(t.Context())
	require.Zero(t, s.journal.Len())
	require.Equal(t, "late", store.get(t, "late").Record.RequestID)
}

// What the store never takes is out of the way of what it takes, and its request
// is given to the sweeper.
func TestSettlementThatIsRefusedForGoodIsSetAside(t *testing.T) {
	t.Parallel()
	s, store := newServer(t)
	store.fail(domain.ErrStoreDown)
	s.settle(settlementOf("poison"))
	s.settle(settlementOf("after"))
	require.Equal(t, 2, s.leases.len(), "the sweeper keeps off while they wait")
	store.fail(nil)
	store.poison = "poison"
	s.newReplay().Drain(t.Context())
	require.Zero(t, s.journal.Len())
	require.Equal(t, "after", store.get(t, "after").Record.RequestID)
	require.Zero(t, s.leases.len())
	require.InDelta(t, 1, testutil.ToFloat64(s.metrics.refused), 0)
	aside, err := openJournal(copyOf(t, s.journal.RefusedPath()), s.journalSize)
	require.NoError(t, err)
	require.Equal(t, 1, aside.Len())
	require.Equal(t, "poison", aside.Waiting()[0].Decision.RequestID)
	require.NoError(t, aside.Close())
}

// copyOf is a file as a process would find it after the end of the one that has it open.
func copyOf(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.WriteFile(copied, raw, 0o600))
	return copied
}
