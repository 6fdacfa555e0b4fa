package extproc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
)

// A channel that leaves the configuration still carries out what was admitted
// with it, and is forgotten in the end.
func TestChannelsOutliveTheirConfiguration(t *testing.T) {
	t.Parallel()
	now := start
	c := &channels{now: func() time.Time { return now }, gone: map[string]goneChannel{}}
	_, ok := c.find("a")
	require.False(t, ok, "before the first configuration")

	with := func(secrets map[string]string) *config.Snapshot {
		snap := &config.Snapshot{Channels: map[string]domain.Channel{}}
		for name, ref := range secrets {
			snap.Channels[name] = domain.Channel{Name: name, SecretRef: ref}
		}
		return snap
	}
	secret := func(name string) string {
		found, ok := c.find(name)
		require.True(t, ok, name)
		return found.SecretRef
	}
	c.follow(with(map[string]string{"a": "env:A", "b": "env:B"}))
	require.Equal(t, "env:A", secret("a"))

	c.follow(with(map[string]string{"b": "env:NEW"}))
	require.Equal(t, "env:A", secret("a"), "gone, and still known")
	require.Equal(t, "env:NEW", secret("b"), "changed: the new one counts")

	now = now.Add(goneFor / 2)
	c.follow(with(nil))
	now = now.Add(goneFor/2 + time.Second)
	_, ok = c.find("a")
	require.False(t, ok, "its time is over")
	require.Equal(t, "env:NEW", secret("b"), "it left later")

	c.follow(with(map[string]string{"a": "env:BACK"}))
	require.Equal(t, "env:BACK", secret("a"))
	require.NotContains(t, c.gone, "a")
	now = now.Add(goneFor)
	c.follow(with(nil))
	require.NotContains(t, c.gone, "b", "forgotten with the next configuration")
}
