package extproc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func settlementOf(id string) domain.Settlement {
	return domain.Settlement{
		Decision: domain.Decision{RequestID: id, Identity: "acme", API: domain.APIChat, Holds: []domain.Hold{{Kind: domain.LimitTPM, Scope: domain.ScopeKey, ID: "k", Amount: 7}}},
		Channel:  "a",
		Record:   domain.UsageRecord{RequestID: id, Outcome: domain.OutcomeSuccess, Source: domain.SourceUpstream, EndedAt: time.UnixMilli(1_700_000_000_000).UTC()},
	}
}

func journalAt(t *testing.T, path string, limit int64) *journal {
	t.Helper()
	j, err := openJournal(path, limit)
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func TestJournalSurvivesARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sub", "journal")
	j := journalAt(t, path, 1<<20)
	for _, id := range []string{"one", "two"} {
		require.NoError(t, j.Append(settlementOf(id)))
	}
	require.NoError(t, j.Close())

	again := journalAt(t, path, 1<<20)
	require.Equal(t, 2, again.Len())
	got, ok := again.Oldest()
	require.True(t, ok)
	require.Equal(t, settlementOf("one").Record, got.Record)
	require.Equal(t, settlementOf("one").Decision.Holds, got.Decision.Holds)
	require.Equal(t, "a", got.Channel)
}

func TestJournalIsEmptiedOnlyWhenAllHasLanded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, path, 1<<20)
	require.NoError(t, j.Append(settlementOf("one")))
	require.NoError(t, j.Append(settlementOf("two")))
	require.NoError(t, j.Landed())
	size := fileSize(t, path)
	require.Positive(t, size, "the second one must still be on disk")
	require.NoError(t, j.Landed())
	require.Zero(t, fileSize(t, path))
	require.NoError(t, j.Append(settlementOf("three")))
	require.NoError(t, j.Close())
	require.Equal(t, 1, journalAt(t, path, 1<<20).Len())
}

func TestJournalDropsATornEntry(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func([]byte) []byte{
		"cut short":  func(b []byte) []byte { return b[:len(b)-3] },
		"bit turned": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "journal")
			j := journalAt(t, path, 1<<20)
			require.NoError(t, j.Append(settlementOf("whole")))
			require.NoError(t, j.Append(settlementOf("torn")))
			require.NoError(t, j.Close())
			raw, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, damage(raw), 0o600))

			again := journalAt(t, path, 1<<20)
			require.Equal(t, 1, again.Len())
			require.NoError(t, again.Append(settlementOf("after")))
			require.NoError(t, again.Close())
			require.Equal(t, 2, journalAt(t, path, 1<<20).Len(), "what follows the tear is readable")
		})
	}
}

func TestJournalIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	probe := journalAt(t, path, 1<<20)
	require.NoError(t, probe.Append(settlementOf("one")))
	one := fileSize(t, path)
	j := journalAt(t, filepath.Join(t.TempDir(), "journal"), one)
	require.NoError(t, j.Append(settlementOf("one")), "exactly at the limit")
	require.ErrorIs(t, j.Append(settlementOf("two")), ErrJournalFull)
	require.Equal(t, 1, j.Len())
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Size()
}
