package extproc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
)

const (
	siteA = "https://a.example/v1"
	siteB = "https://b.example/v1"
)

// snapshotAt makes a snapshot of one channel "x"; an empty base URL makes an empty one.
func snapshotAt(baseURL, secret string) *config.Snapshot {
	snap := &config.Snapshot{Channels: map[string]domain.Channel{}}
	if baseURL != "" {
		snap.Channels["x"] = domain.Channel{Name: "x", SecretRef: secret, Provider: domain.Provider{BaseURL: baseURL}}
	}
	return snap
}

// A channel that leaves the configuration, or moves to another provider, still
// carries out what was admitted with it, and is forgotten in the end.
func TestChannelsOutliveTheirConfiguration(t *testing.T) {
	t.Parallel()
	now := start
	c := newChannels(func() time.Time { return now })
	requireUnknown(t, c, channelAt{"x", siteA})

	c.follow(snapshotAt(siteA, "env:A"))
	requireSecret(t, c, channelAt{"x", siteA}, "env:A")
	requireUnknown(t, c, channelAt{"x", siteB})

	c.follow(snapshotAt(siteA, "env:ROTATED"))
	requireSecret(t, c, channelAt{"x", siteA}, "env:ROTATED")

	c.follow(snapshotAt(siteB, "env:B"))
	requireSecret(t, c, channelAt{"x", siteA}, "env:ROTATED")
	requireSecret(t, c, channelAt{"x", siteB}, "env:B")

	now = now.Add(goneFor / 2)
	c.follow(snapshotAt("", ""))
	now = now.Add(goneFor/2 + time.Second)
	requireUnknown(t, c, channelAt{"x", siteA})
	requireSecret(t, c, channelAt{"x", siteB}, "env:B")

	c.follow(snapshotAt(siteB, "env:BACK"))
	requireSecret(t, c, channelAt{"x", siteB}, "env:BACK")
	require.Empty(t, c.gone, "forgotten with the next configuration")
}

// Envoy has a cluster a moment before the services have the configuration.
func TestChannelsWaitForAPush(t *testing.T) {
	t.Parallel()
	c := newChannels(time.Now)
	c.follow(snapshotAt(siteA, "env:A"))
	found := make(chan domain.Channel, 1)
	go func() {
		channel, _ := c.find(t.Context(), channelAt{"x", siteB})
		found <- channel
	}()
	c.follow(snapshotAt(siteA, "env:A"))
	c.follow(snapshotAt(siteB, "env:B"))
	require.Equal(t, "env:B", (<-found).SecretRef)
}

func requireSecret(t *testing.T, c *channels, at channelAt, want string) {
	t.Helper()
	channel, err := c.find(t.Context(), at)
	require.NoError(t, err)
	require.Equal(t, want, channel.SecretRef)
}

func requireUnknown(t *testing.T, c *channels, at channelAt) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.find(ctx, at)
	require.ErrorContains(t, err, at.baseURL)
}
