package config_test

import (
	"context"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
)

const patience = 20 * time.Second

// fakePlane is a control plane that sends what the test tells it to, and
// reports every request it gets.
type fakePlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	send     chan *discoveryv3.DeltaDiscoveryResponse
	requests chan *discoveryv3.DeltaDiscoveryRequest
}

func (f *fakePlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case f.requests <- req:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case resp := <-f.send:
			if resp == nil {
				return nil // the test ends the stream
			}
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
	}
}

func (f *fakePlane) request(t *testing.T) *discoveryv3.DeltaDiscoveryRequest {
	t.Helper()
	select {
	case req := <-f.requests:
		return req
	case <-time.After(patience):
		require.FailNow(t, "no request came")
		return nil
	}
}

// listen serves f on address and returns the address; the stop function is idempotent.
func (f *fakePlane) listen(t *testing.T, address string) (bound string, stop func()) {
	t.Helper()
	lis, err := net.Listen("tcp", address)
	require.NoError(t, err)
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, f)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	t.Cleanup(server.Stop)
	return lis.Addr().String(), server.Stop
}

func newFakePlane() *fakePlane {
	return &fakePlane{
		send:     make(chan *discoveryv3.DeltaDiscoveryResponse),
		requests: make(chan *discoveryv3.DeltaDiscoveryRequest),
	}
}

// startSubscriber runs Subscribe until the test or the returned function ends it.
func startSubscriber(t *testing.T, o config.SubscribeOptions) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- config.Subscribe(ctx, o) }()
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			assert.NoError(t, err)
		case <-time.After(patience):
			assert.Fail(t, "Subscribe does not end")
		}
	}
	t.Cleanup(stop)
	return stop
}

func options(t *testing.T, target string) config.SubscribeOptions {
	t.Helper()
	return config.SubscribeOptions{
		Target: target, Node: "authz-1", Region: "eu-1", Holder: new(config.Holder),
		CacheFile: filepath.Join(t.TempDir(), "region.json"), Logger: slog.New(slog.DiscardHandler),
		RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond,
	}
}

func response(t *testing.T, nonce string, rc *keywayv1.RegionConfig) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	packed, err := anypb.New(rc)
	require.NoError(t, err)
	return &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: config.RegionConfigType, Nonce: nonce,
		Resources: []*discoveryv3.Resource{{Name: "RegionConfig/eu-1", Version: "v" + nonce, Resource: packed}},
	}
}

func await(t *testing.T, h *config.Holder) *config.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := h.Wait(ctx)
	require.NoError(t, err)
	return s
}

func TestSubscribeAcksGoodAndNacksBad(t *testing.T) {
	t.Parallel()
	plane := newFakePlane()
	target, _ := plane.listen(t, "127.0.0.1:0")
	o := options(t, target)
	startSubscriber(t, o)

	first := plane.request(t)
	assert.Equal(t, config.RegionConfigType, first.TypeUrl)
	assert.Equal(t, "type.googleapis.com/keyway.v1.RegionConfig", first.TypeUrl)
	assert.Equal(t, []string{"RegionConfig/eu-1"}, first.ResourceNamesSubscribe)
	assert.Equal(t, "authz-1", first.GetNode().GetId())
	assert.Empty(t, first.InitialResourceVersions)

	bad := regionConfig(t, 9)
	bad.Config.Channels[0].Provider = "gone"
	elsewhere := regionConfig(t, 9)
	elsewhere.Config.Region = "us-1"
	changed := regionConfig(t, 6)
	changed.Config.Models[0].MaxOutput = 77
	steps := []struct {
		name        string
		given       *keywayv1.RegionConfig
		wantNack    string
		wantVersion int64
	}{
		{name: "first", given: regionConfig(t, 5), wantVersion: 5},
		{name: "the same again", given: regionConfig(t, 5), wantVersion: 5},
		{name: "does not compile", given: bad, wantNack: `channels[0].provider: "gone" is not a provider`, wantVersion: 5},
		{name: "older", given: regionConfig(t, 4), wantNack: "version 4 is older than 5", wantVersion: 5},
		{name: "another region", given: elsewhere, wantNack: `it is for region "us-1", this is "eu-1"`, wantVersion: 5},
		{name: "newer", given: changed, wantVersion: 6},
	}
	var versions []int64
	o.Holder.OnChange(func(s *config.Snapshot) { versions = append(versions, s.Version) })
	for i, step := range steps {
		nonce := string(rune('a' + i))
		plane.send <- response(t, nonce, step.given)
		ack := plane.request(t)
		assert.Equal(t, nonce, ack.ResponseNonce, step.name)
		if step.wantNack == "" {
			assert.Nil(t, ack.ErrorDetail, step.name)
		} else {
			assert.Contains(t, ack.GetErrorDetail().GetMessage(), step.wantNack, step.name)
		}
		assert.Equal(t, step.wantVersion, o.Holder.Load().Version, step.name)
		cached, err := config.ReadRegionConfig(o.CacheFile)
		require.NoError(t, err, step.name)
		assert.Equal(t, step.wantVersion, cached.GetVersion(), "only what is in force is kept: %s", step.name)
	}
	assert.EqualValues(t, 77, o.Holder.Load().Models["team/model:latest"].MaxOutput)

	plane.send <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: config.RegionConfigType, Nonce: "z", RemovedResources: []string{"RegionConfig/eu-1"}}
	assert.Nil(t, plane.request(t).ErrorDetail)
	assert.EqualValues(t, 6, o.Holder.Load().Version, "a removal leaves the last good one in force")
}

func TestSubscribeReturnsAfterTheStreamBreaks(t *testing.T) {
	t.Parallel()
	plane := newFakePlane()
	target, stopServer := plane.listen(t, "127.0.0.1:0")
	o := options(t, target)
	startSubscriber(t, o)
	plane.request(t)
	plane.send <- response(t, "a", regionConfig(t, 3))
	plane.request(t)

	plane.send <- nil
	again := plane.request(t)
	assert.Equal(t, map[string]string{"RegionConfig/eu-1": "va"}, again.InitialResourceVersions, "an unchanged configuration need not be sent")
	assert.InDelta(t, 3, again.GetNode().GetMetadata().GetFields()[config.NodeVersion].GetNumberValue(), 0)

	stopServer()
	other := newFakePlane()
	other.listen(t, target)
	other.request(t)
	other.send <- response(t, "b", regionConfig(t, 4))
	assert.Nil(t, other.request(t).ErrorDetail)
	assert.EqualValues(t, 4, o.Holder.Load().Version)
}

func TestSubscribeStartsFromCacheWithoutControlPlane(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	target := lis.Addr().String()
	require.NoError(t, lis.Close()) // nobody is there
	o := options(t, target)
	require.NoError(t, config.SaveRegionConfig(o.CacheFile, regionConfig(t, 12)))
	info, err := os.Stat(o.CacheFile)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	startSubscriber(t, o)
	assert.EqualValues(t, 12, await(t, o.Holder).Version)
}

func TestSubscribeSurvivesBrokenCache(t *testing.T) {
	t.Parallel()
	foreign := regionConfig(t, 50)
	foreign.Config.Region = "us-1"
	tests := []struct {
		name  string
		write func(t *testing.T, path string)
	}{
		{"torn", func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, []byte(`{"version": "5", "conf`), 0o600))
		}},
		{"of another region", func(t *testing.T, path string) { require.NoError(t, config.SaveRegionConfig(path, foreign)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plane := newFakePlane()
			target, _ := plane.listen(t, "127.0.0.1:0")
			o := options(t, target)
			tt.write(t, o.CacheFile)
			startSubscriber(t, o)
			assert.Nil(t, plane.request(t).GetNode().GetMetadata())
			plane.send <- response(t, "a", regionConfig(t, 1))
			assert.Nil(t, plane.request(t).ErrorDetail)
			assert.EqualValues(t, 1, await(t, o.Holder).Version)
			cached, err := config.ReadRegionConfig(o.CacheFile)
			require.NoError(t, err)
			assert.EqualValues(t, 1, cached.GetVersion())
		})
	}
}

func TestSubscribeServesWhenTheCacheCannotBeWritten(t *testing.T) {
	t.Parallel()
	plane := newFakePlane()
	target, _ := plane.listen(t, "127.0.0.1:0")
	o := options(t, target)
	o.CacheFile = filepath.Join(t.TempDir(), "no-such-folder", "region.json")
	startSubscriber(t, o)
	plane.request(t)
	plane.send <- response(t, "a", regionConfig(t, 1))
	assert.Nil(t, plane.request(t).ErrorDetail)
	assert.EqualValues(t, 1, o.Holder.Load().Version)
}

func TestSubscribeRefusesIncompleteOptions(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, config.Subscribe(t.Context(), config.SubscribeOptions{Target: "127.0.0.1:1", Node: "a", Region: "eu-1"}), "holder are needed")
}

func TestSaveRegionConfigReplacesInOneStep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "region.json")
	for version := range int64(3) {
		require.NoError(t, config.SaveRegionConfig(path, &keywayv1.RegionConfig{Version: version}))
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
	rc, err := config.ReadRegionConfig(path)
	require.NoError(t, err)
	assert.EqualValues(t, 2, rc.GetVersion())
}
