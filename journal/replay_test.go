package journal

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var errFinal = errors.New("never")

// replaying lands entries into landed, but those for which verdict has an error.
type replaying struct {
	Replay[string]
	verdict       map[string]error
	landed        []string
	stayed, aside []string
}

func newReplaying(t *testing.T, limit int64, entries ...string) *replaying {
	t.Helper()
	j := journalAt(t, filepath.Join(t.TempDir(), "journal"), limit)
	for _, e := range entries {
		require.NoError(t, j.Append(e))
	}
	r := &replaying{verdict: map[string]error{}}
	r.Replay = Replay[string]{
		Journal: j, Timeout: time.Second, Final: errFinal,
		Land: func(_ context.Context, e string) error {
			if err := r.verdict[e]; err != nil {
				return err
			}
			r.landed = append(r.landed, e)
			return nil
		},
		Stays:    func(e string, err error) { r.stayed = append(r.stayed, e+": "+err.Error()) },
		SetAside: func(e string, err error) { r.aside = append(r.aside, e+": "+err.Error()) },
	}
	return r
}

func TestReplaySetsAsideWhatNeverLands(t *testing.T) {
	t.Parallel()
	r := newReplaying(t, 1<<20, "one", "poison", "two", "poison", "three")
	r.verdict["poison"] = errFinal
	r.Drain(t.Context())
	require.Equal(t, []string{"one", "two", "three"}, r.landed)
	require.Equal(t, []string{"poison: never", "poison: never"}, r.aside)
	require.Empty(t, r.stayed)
	require.Zero(t, fileSize(t, r.Journal.path), "emptied like any other")

	require.NoError(t, r.Journal.Close())
	aside := journalAt(t, r.Journal.RefusedPath(), 1<<20)
	require.Equal(t, []string{"poison", "poison"}, aside.Waiting(), "a journal that lands them once they can")
}

func TestReplayKeepsWhatMayLandLater(t *testing.T) {
	t.Parallel()
	r := newReplaying(t, 1<<20, "one", "two")
	r.verdict["one"] = errors.New("away")
	for range 3 {
		r.Drain(t.Context())
	}
	require.Empty(t, r.landed, "in their order")
	require.Equal(t, []string{"one: away"}, r.stayed, "once in a while, not at every try")
	delete(r.verdict, "one")
	r.Drain(t.Context())
	require.Equal(t, []string{"one", "two"}, r.landed)
	require.NoFileExists(t, r.Journal.RefusedPath())
}

// Where there is no room for what is refused, nothing is thrown away.
func TestReplayLosesNothingWhenTheRefusedAreTooMany(t *testing.T) {
	t.Parallel()
	size := int64(headerBytes + len("poison"))
	r := newReplaying(t, 2*size, "poison", "poison")
	r.verdict["poison"] = errFinal
	r.Drain(t.Context())
	require.Len(t, r.aside, 2, "exactly at the limit")
	require.NoError(t, r.Journal.Append("poison"))
	r.Drain(t.Context())
	require.Len(t, r.aside, 2)
	require.Equal(t, 1, r.Journal.Len())
	require.Len(t, r.stayed, 1)
	require.Contains(t, r.stayed[0], ErrFull.Error())
}

func TestReplayRunsUntilItsEnd(t *testing.T) {
	t.Parallel()
	r := newReplaying(t, 1<<20, "one")
	ctx, cancel := context.WithCancel(t.Context())
	r.SetAside = func(string, error) { cancel() }
	require.NoError(t, r.Journal.Append("poison"))
	r.verdict["poison"] = errFinal
	r.Run(ctx)
	require.Equal(t, []string{"one"}, r.landed)
}
