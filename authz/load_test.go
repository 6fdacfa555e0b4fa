package authz

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
)

// fakeRegion is what the region knows of its channels.
type fakeRegion struct {
	cooldowns []domain.Cooldown
	stats     map[domain.ChannelClass]domain.ChannelStat
	inUse     map[string]int64
	reads     int
}

func (f *fakeRegion) Cooldowns(context.Context) ([]domain.Cooldown, error) { return f.cooldowns, nil }

func (f *fakeRegion) WatchCooldowns(context.Context, func()) error { return nil }

func (f *fakeRegion) ClaimTrial(context.Context, domain.Trial) (bool, error) { return true, nil }

func (f *fakeRegion) ChannelStats(context.Context, []string) (map[domain.ChannelClass]domain.ChannelStat, error) {
	f.reads++
	return f.stats, nil
}

func (f *fakeRegion) SlotsInUse(_ context.Context, channels []string) ([]int64, error) {
	used := make([]int64, len(channels))
	for i, name := range channels {
		used[i] = f.inUse[name]
	}
	return used, nil
}

// What the region knows of a channel is in its score.
func TestScoresFollowTheRegion(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.routed(func(s *config.Snapshot) {
		m := s.Models["m"]
		m.Fallbacks, m.Class = nil, "large"
		s.Models["m"] = m
	})
	score := func() map[string]float64 {
		got, err := f.server.check(t.Context(), f.request(hello))
		require.NoError(t, err)
		scores := map[string]float64{}
		for _, s := range got.Decision.Route {
			scores[s.Channel] = s.Score
		}
		return scores
	}
	require.Equal(t, map[string]float64{"a": 1, "b": 1}, score())

	region := &fakeRegion{
		stats: map[domain.ChannelClass]domain.ChannelStat{
			{Channel: "b", Class: "large"}: {ErrorRate: 0.5, QuotaLeft: 1, QuotaEnds: 30 * time.Second},
			{Channel: "b", Class: "other"}: {ErrorRate: 1},
		},
		inUse: map[string]int64{"a": 3, "b": 99}, // a has 3 slots, b none
	}
	h := f.server.channelHealth
	h.from, h.stats = region, region
	h.refresh(t.Context())
	require.Equal(t, map[string]float64{"a": 0.02, "b": 0.25 * 1.5}, score())
	h.refresh(t.Context())
	require.Equal(t, 1, region.reads, "averages are not read again at once")

	f.server.now = func() time.Time { return now.Add(15 * time.Second) }
	require.InDelta(t, 0.25*1.75, score()["b"], 1e-9, "the quota's end comes closer")
	region.inUse = nil
	h.refresh(t.Context())
	require.Equal(t, 2, region.reads)
	require.InDelta(t, 1, score()["a"], 1e-9)
}
