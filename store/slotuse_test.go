package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func TestSlotsInUse(t *testing.T) {
	t.Parallel()
	s := shared(t)
	busy, idle := unique("channel"), unique("channel")
	for range 3 {
		d := newTenant().decide()
		d.Candidates = []domain.Candidate{{Channel: busy, Slots: 5}}
		admit(t, s, d)
	}
	used, err := s.SlotsInUse(t.Context(), []string{idle, busy})
	require.NoError(t, err)
	assert.Equal(t, []int64{0, 3}, used)
	used, err = s.SlotsInUse(t.Context(), nil)
	require.NoError(t, err)
	assert.Empty(t, used)
}

func TestQuotasAreKeptUntilTheyAreWhole(t *testing.T) {
	t.Parallel()
	s := shared(t)
	of := domain.ChannelClass{Channel: unique("channel"), Class: "m:large"}
	learn := func(sample domain.ChannelSample) domain.ChannelStat {
		sample.ChannelClass, sample.Attempts = of, 1
		require.NoError(t, s.LearnChannels(t.Context(), []domain.ChannelSample{sample}))
		stats, err := s.ChannelStats(t.Context(), []string{of.Channel})
		require.NoError(t, err)
		return stats[of]
	}
	assert.Zero(t, learn(domain.ChannelSample{}).QuotaEnds)
	got := learn(domain.ChannelSample{QuotaLeft: 0.75, QuotaEnds: time.Minute})
	assert.InDelta(t, 0.75, got.QuotaLeft, 1e-5)
	assert.InDelta(t, time.Minute, got.QuotaEnds, float64(30*time.Second))
	assert.LessOrEqual(t, got.QuotaEnds, time.Minute)
	got = learn(domain.ChannelSample{})
	assert.InDelta(t, 0.75, got.QuotaLeft, 1e-5, "an answer that says nothing changes nothing")
	learn(domain.ChannelSample{QuotaLeft: 0.5, QuotaEnds: time.Millisecond})
	eventually(t, "it is whole again", func() bool { return learn(domain.ChannelSample{}).QuotaEnds == 0 })
}
