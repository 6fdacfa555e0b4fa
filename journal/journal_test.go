package journal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var texts = Codec[string]{
	Encode: func(s string) ([]byte, error) {
		if s == "" {
			return nil, errors.New("nothing to write")
		}
		return []byte(s), nil
	},
	Decode: func(b []byte) (string, error) { return string(b), nil },
}

func journalAt(t *testing.T, path string, limit int64) *Journal[string] {
	t.Helper()
	j, err := Open(path, limit, texts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func TestJournalSurvivesARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sub", "journal")
	j := journalAt(t, path, 1<<20)
	for _, id := range []string{"one", "two"} {
		require.NoError(t, j.Append(id))
	}
	require.NoError(t, j.Close())

	again := journalAt(t, path, 1<<20)
	require.Equal(t, 2, again.Len())
	got, ok := again.Oldest()
	require.True(t, ok)
	require.Equal(t, "one", got)
	require.Equal(t, []string{"one", "two"}, again.Waiting())
	require.Equal(t, fileSize(t, path), again.Size())
}

func TestJournalIsEmptiedOnlyWhenAllHasLanded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, path, 1<<20)
	require.NoError(t, j.Append("one"))
	require.NoError(t, j.Append("two"))
	require.NoError(t, j.Landed())
	size := fileSize(t, path)
	require.Positive(t, size, "the second one must still be on disk")
	require.NoError(t, j.Landed())
	require.Zero(t, fileSize(t, path))
	require.NoError(t, j.Append("three"))
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
			require.NoError(t, j.Append("whole"))
			require.NoError(t, j.Append("torn"))
			require.NoError(t, j.Close())
			raw, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, damage(raw), 0o600))

			again := journalAt(t, path, 1<<20)
			require.Equal(t, 1, again.Len())
			require.NoError(t, again.Append("after"))
			require.NoError(t, again.Close())
			require.Equal(t, 2, journalAt(t, path, 1<<20).Len(), "what follows the tear is readable")
		})
	}
}

func TestJournalIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	probe := journalAt(t, path, 1<<20)
	require.NoError(t, probe.Append("one"))
	one := fileSize(t, path)
	j := journalAt(t, filepath.Join(t.TempDir(), "journal"), one)
	require.NoError(t, j.Append("one"), "exactly at the limit")
	require.ErrorIs(t, j.Append("two"), ErrFull)
	require.Equal(t, 1, j.Len())
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Size()
}

func TestJournalRefusesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, path, 1<<30)
	require.ErrorContains(t, j.Append(""), "nothing to write")
	require.ErrorContains(t, j.Append(string(make([]byte, maxEntryBytes+1))), "too many")
	require.Zero(t, fileSize(t, path))
	require.NoError(t, j.Close())
	require.NoError(t, os.WriteFile(path, []byte("\xff\xff\xff\xff and what follows"), 0o600))
	require.Zero(t, journalAt(t, path, 1<<20).Len())
}

// A file that belongs to another program is left as it is: its entries are money.
func TestJournalKeepsWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := journalAt(t, path, 1<<20)
	require.NoError(t, j.Append("one"))
	require.NoError(t, j.Close())
	size := fileSize(t, path)
	other := texts
	other.Decode = func([]byte) (string, error) { return "", errors.New("what is this") }
	_, err := Open(path, 1<<20, other)
	require.ErrorContains(t, err, "entry 1 is not one of this program's: what is this")
	require.Equal(t, size, fileSize(t, path))
}

// Two that write to one file would destroy each other's entries.
func TestJournalHasOneOwner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	first := journalAt(t, path, 1<<20)
	require.NoError(t, first.Append("one"))
	_, err := Open(path, 1<<20, texts)
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, path)
	require.NoError(t, first.Append("two"), "the owner goes on")
	require.NoError(t, first.Close())
	require.Equal(t, []string{"one", "two"}, journalAt(t, path, 1<<20).Waiting())
}
