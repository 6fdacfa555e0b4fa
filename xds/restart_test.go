package xds_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/envoy"
	"keyway/xds"
)

func TestVersionsNeverGoBack(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state.json")
	keep := func(o *xds.Options) { o.StateFile = state }
	r := start(t, file("a"), keep)
	s := r.service(t, "authz-1")
	s.next(t)
	r.write(t, file("a", "b"))
	assert.EqualValues(t, 2, s.next(t).region.GetVersion())
	require.NoError(t, r.stop())

	r = start(t, file("a", "b"), keep)
	assert.EqualValues(t, 2, r.service(t, "authz-1").next(t).region.GetVersion(), "the same content keeps its version")
	require.NoError(t, r.stop())

	r = start(t, file("a", "b", "c"), func(o *xds.Options) { o.StateFile, o.AckWait = state, 50*time.Millisecond })
	s = r.service(t, "authz-1")
	for version := int64(0); version != 3; {
		version = s.next(t).region.GetVersion()
		assert.GreaterOrEqual(t, version, int64(2))
	}
}

func TestChangeMadeWhileAwayIsRolledOutInOrder(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state.json")
	keep := func(o *xds.Options) { o.StateFile = state }
	r := start(t, file("a", "b"), keep)
	require.NoError(t, r.stop())

	r = start(t, file("a", "c"), keep)
	s := r.service(t, "authz-1")
	assert.Equal(t, []string{"a", "b"}, channelNames(s.next(t).region), "services hear of c after the Envoys")
	e := connect(t, nodeOptions{target: r.target, id: "envoy-1", types: envoyTypes})
	all := e.initial(t, envoyTypes)[resource.ClusterType]
	assert.Equal(t, []string{envoy.ClusterOf("a"), envoy.ClusterOf("b"), envoy.ClusterOf("c")}, all.names, "b serves its last streams")
	assert.Equal(t, []string{"a", "c"}, channelNames(s.next(t).region))
	st := r.until(t, "b is leaving", func(st xds.Status) bool { return len(st.Leaving) == 1 })
	assert.Equal(t, []string{envoy.ClusterOf("b")}, st.Leaving)
}

func TestUnusableStateCostsNothingButOrder(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state.json")
	r := start(t, file("a"), func(o *xds.Options) { o.StateFile = state })
	require.NoError(t, r.stop())
	require.NoError(t, os.WriteFile(state, []byte("{torn"), 0o600))
	r = start(t, file("a"), func(o *xds.Options) { o.StateFile = state })
	assert.EqualValues(t, 1, r.service(t, "authz-1").next(t).region.GetVersion())
}

// TestLostStateContinuesAboveTheServices: the control plane begins at 1 again,
// and a service that runs on 57 must not be stuck there.
func TestLostStateContinuesAboveTheServices(t *testing.T) {
	t.Parallel()
	r := start(t, file("a"), nil)
	cfg, err := config.Parse([]byte(file("old")))
	require.NoError(t, err)
	cache := filepath.Join(t.TempDir(), "region.json")
	require.NoError(t, config.SaveRegionConfig(cache, regionConfig(57, cfg)))
	holder := subscribe(t, r.target, cache)
	require.Eventually(t, func() bool { return holder.Load() != nil && holder.Load().Version == 58 }, patience, 5*time.Millisecond)
	assert.Contains(t, holder.Load().Channels, "a")
}

func TestReconnectingEnvoyIsNotSentWhatItHas(t *testing.T) {
	t.Parallel()
	r := start(t, file("a", "b"), nil)
	versions := clusterVersions(t, file("a", "b"))
	versions["ch_gone"] = "x"
	again := connect(t, nodeOptions{target: r.target, id: "envoy-1", types: []string{resource.ClusterType}, known: versions})
	p := again.next(t)
	assert.Empty(t, p.names)
	assert.Equal(t, []string{"ch_gone"}, p.removed)
}

// TestServicesSubscribeToRealServer joins the two halves: the client of
// package config and this server, with a restart of the server in between.
func TestServicesSubscribeToRealServer(t *testing.T) {
	t.Parallel()
	socket := "unix:" + filepath.Join(t.TempDir(), "xds.sock")
	state := filepath.Join(t.TempDir(), "state.json")
	opts := func(o *xds.Options) { o.ListenXDS, o.StateFile, o.AckWait = socket, state, 50*time.Millisecond }
	r := start(t, file("a"), opts)
	cache := filepath.Join(t.TempDir(), "region.json")
	holder := subscribe(t, socket, cache)
	at := func(version int64) {
		t.Helper()
		require.Eventually(t, func() bool { return holder.Load() != nil && holder.Load().Version == version }, patience, 5*time.Millisecond)
	}
	at(1)
	r.write(t, file("a", "b"))
	at(2)
	require.NoError(t, r.stop())
	assert.EqualValues(t, 2, holder.Load().Version, "the last good one stays in force")
	require.Eventually(t, func() bool { // it is kept a moment after it is in force
		rc, err := config.ReadRegionConfig(cache)
		return err == nil && rc.GetVersion() == 2
	}, patience, 5*time.Millisecond)
	offline := subscribe(t, socket, cache)
	require.Eventually(t, func() bool { return offline.Load() != nil }, patience, 5*time.Millisecond)
	assert.EqualValues(t, 2, offline.Load().Version, "a start needs no control plane")

	r = start(t, file("a", "b", "c"), opts)
	at(3)
	r.until(t, "both agree", func(st xds.Status) bool {
		return len(st.Nodes) == 2 && st.Nodes[0].Version == 3 && st.Nodes[1].Version == 3
	})
	assert.Contains(t, offline.Load().Channels, "c")
}

// subscribe runs a service's client until the test ends.
func subscribe(t *testing.T, target, cache string) *config.Holder {
	t.Helper()
	holder := new(config.Holder)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- config.Subscribe(ctx, config.SubscribeOptions{
			Target: target, Node: "authz-" + filepath.Base(t.TempDir()), Region: "local", CacheFile: cache, Holder: holder,
			Logger: slog.New(slog.DiscardHandler), RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond,
		})
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return holder
}
