package store

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func TestStoredIDsLeadToTheChannelThatMadeThem(t *testing.T) {
	t.Parallel()
	s := shared(t)
	o, other := newTenant(), newTenant()
	for _, id := range []string{"resp_1", "a b\x00c", strings.Repeat("x", 10_000)} {
		made := domain.StoredID{Identity: o.identity, ID: id, Channel: "east-1", Model: "team/model:latest"}
		_, err := s.Recall(t.Context(), o.identity, id)
		require.ErrorIs(t, err, domain.ErrNotFound)
		require.NoError(t, s.Remember(t.Context(), made, domain.MinKeepStoredIDs))
		require.NoError(t, s.Remember(t.Context(), made, domain.MinKeepStoredIDs))
		got, err := s.Recall(t.Context(), o.identity, id)
		require.NoError(t, err)
		assert.Equal(t, made, got)
		_, err = s.Recall(t.Context(), other.identity, id)
		require.ErrorIs(t, err, domain.ErrNotFound, "an id of another identity does not exist")
		require.NoError(t, s.Forget(t.Context(), o.identity, id))
		_, err = s.Recall(t.Context(), o.identity, id)
		require.ErrorIs(t, err, domain.ErrNotFound)
	}
}

func TestStoredIDsEnd(t *testing.T) {
	t.Parallel()
	s := shared(t)
	o := newTenant()
	made := domain.StoredID{Identity: o.identity, ID: "resp_1", Channel: "east-1", Model: "m"}
	require.NoError(t, s.Remember(t.Context(), made, 50*time.Millisecond))
	eventually(t, "the id is forgotten", func() bool {
		_, err := s.Recall(t.Context(), o.identity, made.ID)
		return err != nil
	})
	require.NoError(t, s.Remember(t.Context(), made, domain.DefaultKeepStoredIDs))
	left, err := s.client.PTTL(t.Context(), storedKey(o.identity, made.ID)).Result()
	require.NoError(t, err)
	assert.InDelta(t, domain.DefaultKeepStoredIDs, left, float64(time.Minute))
	for _, spoilt := range []domain.StoredID{
		{ID: "resp_1", Channel: "c"}, {Identity: "i", Channel: "c"}, {Identity: "i", ID: "resp_1"},
	} {
		require.Error(t, s.Remember(t.Context(), spoilt, time.Hour))
	}
	require.Error(t, s.Remember(t.Context(), made, 0))
}
