package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
	"keyway/domain"
)

// compiled is the snapshot of a file with one channel and two models.
func compiled(t *testing.T, extra, channel string) *config.Snapshot {
	t.Helper()
	cfg, err := config.Parse([]byte(`
region: local
` + extra + `
providers:
  - {name: openai, dialects: [openai], base_url: "https://api.openai.com/v1"}
channels:
  - {name: c, provider: openai, models: [{name: m0}, {name: m1}], ` + channel + `}
models:
  - {name: m0, class: large, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m1, prices: [{version: v1, input: "1", output: "1"}]}
`))
	require.NoError(t, err)
	snap, err := config.Compile(&keywayv1.RegionConfig{Version: 1, Config: cfg})
	require.NoError(t, err)
	return snap
}

func TestCooldownDefaults(t *testing.T) {
	t.Parallel()
	snap := compiled(t, "", "secret: env:A")
	assert.Equal(t, domain.CooldownBounds{First: 2 * time.Second, Least: time.Second, Most: 5 * time.Minute}, snap.Cooldown)
	assert.False(t, snap.Channels["c"].ObserveOnly)
	assert.Equal(t, "large", snap.Models["m0"].Class)
	assert.Equal(t, "m1", snap.Models["m1"].Class)
}

func TestCooldownMode(t *testing.T) {
	t.Parallel()
	snap := compiled(t, "cooldown: {mode: observe, first: 50ms, min: 50ms, max: 24h}", "secret: env:A")
	assert.Equal(t, domain.CooldownBounds{First: 50 * time.Millisecond, Least: 50 * time.Millisecond, Most: 24 * time.Hour}, snap.Cooldown)
	assert.True(t, snap.Channels["c"].ObserveOnly)
	assert.False(t, compiled(t, "cooldown: {mode: observe}", "secret: env:A, cooldown: obey").Channels["c"].ObserveOnly)
	assert.True(t, compiled(t, "", "secret: env:A, cooldown: observe").Channels["c"].ObserveOnly)
}

func TestProbe(t *testing.T) {
	t.Parallel()
	assert.Zero(t, compiled(t, "", "secret: env:A").Channels["c"].Probe)
	assert.Equal(t, domain.Probe{Path: "/models", Every: time.Minute}, compiled(t, "", "secret: env:A, probe: {}").Channels["c"].Probe)
	assert.Equal(t, domain.Probe{Path: "/health/v1.2", Every: time.Second},
		compiled(t, "", "secret: env:A, probe: {path: /health/v1.2, every: 1s}").Channels["c"].Probe)
}

// What lifts a cooldown is a change of what the provider counts by, and no other.
func TestAccountOfChannel(t *testing.T) {
	t.Parallel()
	account := func(channel string) string { return compiled(t, "", channel).Channels["c"].Account }
	was := account("secret: env:A")
	assert.Len(t, was, 8)
	assert.Equal(t, was, account("secret: env:A, weight: 7, priority: 3, slots: 9, cooldown: observe"))
	for _, changed := range []string{"secret: env:B", "secret: env:A, organization: o", "secret: env:A, project: o"} {
		assert.NotEqual(t, was, account(changed), changed)
	}
	assert.NotEqual(t, account("secret: env:A, organization: o"), account("secret: env:A, project: o"))
}
