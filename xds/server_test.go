package xds_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
	"keyway/envoy"
	"keyway/telemetry/telemetrytest"
	"keyway/xds"
)

// file makes a configuration that has the given channels, each "name" or
// "name=base url", all serving the model m.
func file(channels ...string) string {
	var providers, list strings.Builder
	for _, ch := range channels {
		name, url, ok := strings.Cut(ch, "=")
		if !ok {
			url = "http://127.0.0.1:9/v1"
		}
		providers.WriteString("  - {name: " + name + ", dialects: [openai], base_url: \"" + url + "\"}\n")
		list.WriteString("  - {name: " + name + ", provider: " + name + ", secret: \"env:KEY\", models: [{name: m}]}\n")
	}
	return "region: local\nproviders:\n" + providers.String() + "channels:\n" + list.String() +
		"models:\n  - {name: m, prices: [{version: \"1\", input: 1, output: 2}]}\n"
}

// running is a control plane under test.
type running struct {
	*xds.Server
	target   string
	opts     xds.Options
	registry *prometheus.Registry
	stop     func() error
}

// start runs a control plane over content; edit changes the options first.
func start(t *testing.T, content string, edit func(*xds.Options)) *running {
	t.Helper()
	r := &running{registry: prometheus.NewRegistry()}
	bound := make(chan string, 1)
	r.opts = xds.Options{
		ConfigFile: filepath.Join(t.TempDir(), "keyway.yaml"), ListenXDS: "127.0.0.1:0",
		Logger: slog.New(slog.DiscardHandler), Registerer: r.registry,
		OnListen: func(a net.Addr) { bound <- a.String() },
		// What is not under test must not end a wait in a slow run.
		AckWait: time.Hour, RemovalGrace: time.Hour, PollInterval: 50 * time.Millisecond,
	}
	if edit != nil {
		edit(&r.opts)
	}
	r.write(t, content)
	var err error
	r.Server, err = xds.New(r.opts)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("control plane does not stop")
		}
	}
	t.Cleanup(func() { assert.NoError(t, r.stop()) })
	select {
	case r.target = <-bound:
	case err := <-done:
		stopped = true
		require.NoError(t, err)
	case <-time.After(patience):
		require.FailNow(t, "control plane does not listen")
	}
	if strings.HasPrefix(r.opts.ListenXDS, "unix:") {
		r.target = r.opts.ListenXDS
	}
	return r
}

// write replaces the file the way editors do.
func (r *running) write(t *testing.T, content string) {
	t.Helper()
	temp := r.opts.ConfigFile + ".new"
	require.NoError(t, os.WriteFile(temp, []byte(content), 0o600))
	require.NoError(t, os.Rename(temp, r.opts.ConfigFile))
}

func (r *running) envoy(t *testing.T, id string) *fakeNode {
	t.Helper()
	n := connect(t, nodeOptions{target: r.target, id: id, types: envoyTypes})
	n.initial(t, envoyTypes)
	return n
}

func (r *running) service(t *testing.T, id string) *fakeNode {
	t.Helper()
	return connect(t, nodeOptions{target: r.target, id: id, types: []string{config.RegionConfigType}})
}

// until waits for a state of the status.
func (r *running) until(t *testing.T, what string, holds func(xds.Status) bool) xds.Status {
	t.Helper()
	require.Eventually(t, func() bool { return holds(r.Status()) }, patience, 5*time.Millisecond, what)
	return r.Status()
}

func (r *running) counter(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.registry.Gather()
	require.NoError(t, err)
	var sum float64
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func channelNames(rc *keywayv1.RegionConfig) []string {
	var names []string
	for _, ch := range rc.GetConfig().GetChannels() {
		names = append(names, ch.GetName())
	}
	return names
}

func TestFirstConfiguration(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "xds.sock")} {
		r := start(t, file("a", "b"), func(o *xds.Options) { o.ListenXDS = listen })
		require.NoError(t, r.Ready(t.Context()))
		e := connect(t, nodeOptions{target: r.target, id: "envoy-1", types: envoyTypes})
		got := e.initial(t, envoyTypes)
		assert.Equal(t, []string{envoy.ClusterOf("a"), envoy.ClusterOf("b")}, got[resource.ClusterType].names)
		assert.Equal(t, []string{"keyway_ingress"}, got[resource.ListenerType].names)
		assert.Equal(t, []string{"keyway_ingress"}, got[resource.RouteType].names)
		s := r.service(t, "authz-1")
		first := s.next(t)
		assert.EqualValues(t, 1, first.region.GetVersion())
		assert.Equal(t, []string{"a", "b"}, channelNames(first.region))
		_, err := config.Compile(first.region)
		require.NoError(t, err)

		status := r.until(t, "both nodes have acknowledged", func(st xds.Status) bool {
			return len(st.Nodes) == 2 && st.Nodes[0].Version == 1 && st.Nodes[1].Version == 1
		})
		assert.Equal(t, xds.Status{
			Region: "local", Version: 1, ConfigErrors: []string{}, Withheld: []string{}, Leaving: []string{},
			Nodes: []xds.NodeStatus{{Node: "authz-1", Kind: "service", Version: 1}, {Node: "envoy-1", Kind: "envoy", Version: 1}},
		}, status)
	}
}

func TestOneChannelChangesOneCluster(t *testing.T) {
	t.Parallel()
	r := start(t, file("a", "b", "c"), nil)
	e, s := r.envoy(t, "envoy-1"), r.service(t, "authz-1")
	s.next(t)
	r.write(t, file("a", "b=http://127.0.0.1:10/v1", "c"))
	changed := e.next(t)
	assert.Equal(t, resource.ClusterType, changed.typeURL)
	assert.Equal(t, []string{envoy.ClusterOf("b")}, changed.names)
	assert.Empty(t, changed.removed)
	assert.EqualValues(t, 2, s.next(t).region.GetVersion())
	r.until(t, "all agree", func(st xds.Status) bool { return st.Nodes[0].Version == 2 && st.Nodes[1].Version == 2 })
	e.quiet(t)
	s.quiet(t)

	// A change that Envoy does not see goes to the services alone.
	dearer := func(content string) string { return strings.Replace(content, "output: 2", "output: 3", 1) }
	r.write(t, dearer(file("a", "b=http://127.0.0.1:10/v1", "c")))
	assert.Equal(t, "3", s.next(t).region.GetConfig().GetModels()[0].GetPrices()[0].GetOutput())
	r.until(t, "all agree", func(st xds.Status) bool { return st.Nodes[0].Version == 3 && st.Nodes[1].Version == 3 })
	e.quiet(t)
	// A comment is no change at all: it spends no version.
	r.write(t, "# hello\n"+dearer(file("a", "b=http://127.0.0.1:10/v1", "c")))
	time.Sleep(4 * r.opts.PollInterval)
	r.write(t, dearer(file("a", "b=http://127.0.0.1:10/v1", "c", "d")))
	assert.EqualValues(t, 4, s.next(t).region.GetVersion())
}

func TestBadFileIsRefusedAndGoodOneFollows(t *testing.T) {
	t.Parallel()
	r := start(t, file("a"), nil)
	e, s := r.envoy(t, "envoy-1"), r.service(t, "authz-1")
	s.next(t)
	bad := strings.Replace(file("a", "b"), "provider: b", "provider: x", 1)
	r.write(t, bad)
	status := r.until(t, "the refusal shows", func(st xds.Status) bool { return len(st.ConfigErrors) > 0 })
	assert.Equal(t, []string{`channels[1].provider: "x" is not a provider; known: a, b`}, status.ConfigErrors)
	assert.EqualValues(t, 1, status.Version)
	assert.InDelta(t, 1, r.counter(t, "keyway_xds_config_rejected_total"), 0)

	require.NoError(t, os.Remove(r.opts.ConfigFile))
	r.until(t, "a missing file shows", func(st xds.Status) bool {
		return len(st.ConfigErrors) == 1 && strings.Contains(st.ConfigErrors[0], "no such file")
	})
	e.quiet(t)
	s.quiet(t)
	late := r.service(t, "authz-2")
	assert.EqualValues(t, 1, late.next(t).region.GetVersion(), "the last good one is served to newcomers")

	r.write(t, file("a", "b"))
	assert.Equal(t, []string{envoy.ClusterOf("b")}, e.next(t).names)
	assert.Equal(t, []string{"a", "b"}, channelNames(s.next(t).region))
	r.until(t, "the error is gone", func(st xds.Status) bool { return len(st.ConfigErrors) == 0 && st.Version == 2 })
}

func TestBuildErrorIsRefused(t *testing.T) {
	t.Parallel()
	r := start(t, file("a"), func(o *xds.Options) {
		o.Build = func(cfg *keywayv1.Config) (envoy.Resources, error) {
			if len(cfg.GetChannels()) > 1 {
				return envoy.Resources{}, errors.New("two are too many")
			}
			return envoy.Build(cfg)
		}
	})
	r.write(t, file("a", "b"))
	st := r.until(t, "the refusal shows", func(st xds.Status) bool { return len(st.ConfigErrors) > 0 })
	assert.Contains(t, st.ConfigErrors[0], "two are too many")
	r.write(t, strings.Replace(file("a"), "region: local", "region: other", 1))
	r.until(t, "another region is refused", func(st xds.Status) bool {
		return len(st.ConfigErrors) == 1 && strings.Contains(st.ConfigErrors[0], "needs a restart")
	})
}

func TestServicesWaitForEveryEnvoy(t *testing.T) {
	t.Parallel()
	r := start(t, file("a"), nil)
	hold := make(chan push, 1)
	quick := r.envoy(t, "envoy-quick")
	slow := connect(t, nodeOptions{target: r.target, id: "envoy-slow", types: envoyTypes, verdict: func(p push) string {
		if p.typeURL == resource.ClusterType && len(p.names) == 1 && p.names[0] == envoy.ClusterOf("b") {
			hold <- p
			return "-"
		}
		return ""
	}})
	slow.initial(t, envoyTypes)
	s := r.service(t, "authz-1")
	s.next(t)
	r.until(t, "all agree", func(st xds.Status) bool {
		return len(st.Nodes) == 3 && st.Nodes[0].Version == 1 && st.Nodes[1].Version == 1 && st.Nodes[2].Version == 1
	})

	r.write(t, file("a", "b"))
	quick.next(t)
	held := <-hold
	st := r.until(t, "the rollout waits", func(st xds.Status) bool { return st.Waiting })
	assert.EqualValues(t, 1, st.Version)
	s.quiet(t)
	slow.answer(held, "")
	assert.Equal(t, []string{"a", "b"}, channelNames(s.next(t).region))
	assert.InDelta(t, 0, r.counter(t, "keyway_xds_ack_timeouts_total"), 0)
}

func TestSilentEnvoyHoldsOthersOnlyForTheWait(t *testing.T) {
	t.Parallel()
	r := start(t, file("a"), func(o *xds.Options) { o.AckWait = 50 * time.Millisecond })
	frozen := connect(t, nodeOptions{target: r.target, id: "envoy-frozen", types: envoyTypes, verdict: func(push) string { return "-" }})
	frozen.initial(t, envoyTypes)
	s := r.service(t, "authz-1")
	s.next(t)
	r.write(t, file("a", "b"))
	assert.Equal(t, []string{"a", "b"}, channelNames(s.next(t).region))
	assert.InDelta(t, 1, r.counter(t, "keyway_xds_ack_timeouts_total"), 0)
}

func TestRefusedClusterIsWithheldAndOthersServed(t *testing.T) {
	t.Parallel()
	r := start(t, file("a"), nil)
	good := r.envoy(t, "envoy-good")
	picky := connect(t, nodeOptions{target: r.target, id: "envoy-picky", types: envoyTypes, verdict: func(p push) string {
		for _, name := range p.names {
			if name == envoy.ClusterOf("b") {
				return "Error adding/updating cluster(s) " + envoy.ClusterOf("b") + ": no such file ca.pem"
			}
		}
		return ""
	}})
	picky.initial(t, envoyTypes)
	s := r.service(t, "authz-1")
	s.next(t)

	r.write(t, file("a", "b", "c"))
	assert.Equal(t, []string{envoy.ClusterOf("b"), envoy.ClusterOf("c")}, good.next(t).names, "the push goes on to the others")
	got := s.next(t).region
	assert.Equal(t, []string{"a", "c"}, channelNames(got), "no service hands out what an Envoy lacks")
	assert.EqualValues(t, 2, got.GetVersion())
	st := r.until(t, "the refusal shows", func(st xds.Status) bool { return len(st.Withheld) == 1 })
	assert.Equal(t, []string{"b"}, st.Withheld)
	for _, n := range st.Nodes {
		if n.Node == "envoy-picky" {
			require.NotNil(t, n.LastNack)
			assert.Equal(t, "cluster", n.LastNack.Type)
			assert.Contains(t, n.LastNack.Detail, "no such file ca.pem")
			assert.EqualValues(t, 1, n.Version)
		} else {
			assert.Nil(t, n.LastNack)
		}
	}
	assert.InDelta(t, 1, r.counter(t, "keyway_xds_nacks_total"), 0)
	assert.InDelta(t, 1, r.counter(t, "keyway_xds_withheld_channels"), 0)

	picky.close()
	got = s.next(t).region
	assert.Equal(t, []string{"a", "b", "c"}, channelNames(got), "nobody is left who lacks it")
	assert.EqualValues(t, 3, got.GetVersion())
}

func TestRefusedChangeOfKnownClusterIsNotWithheld(t *testing.T) {
	t.Parallel()
	r := start(t, file("a", "b"), nil)
	var refuse atomic.Bool
	e := connect(t, nodeOptions{target: r.target, id: "envoy-1", types: envoyTypes, verdict: func(p push) string {
		if refuse.Load() && p.typeURL == resource.ClusterType {
			return "something is wrong" // names nothing
		}
		return ""
	}})
	e.initial(t, envoyTypes)
	s := r.service(t, "authz-1")
	s.next(t)
	r.until(t, "all agree", func(st xds.Status) bool {
		return len(st.Nodes) == 2 && st.Nodes[0].Version == 1 && st.Nodes[1].Version == 1
	})
	refuse.Store(true)
	r.write(t, file("a", "b=http://127.0.0.1:10/v1"))
	assert.Equal(t, []string{"a", "b"}, channelNames(s.next(t).region), "the Envoy still has the former version")
}

func TestRemovalOrder(t *testing.T) {
	t.Parallel()
	r := start(t, file("a", "b"), func(o *xds.Options) { o.RemovalGrace = time.Millisecond })
	e := r.envoy(t, "envoy-1")
	hold := make(chan push, 1)
	s := connect(t, nodeOptions{target: r.target, id: "authz-1", types: []string{config.RegionConfigType}, verdict: func(p push) string {
		if p.region.GetVersion() == 2 {
			hold <- p
			return "-"
		}
		return ""
	}})
	s.next(t)
	r.write(t, file("a"))
	told := s.next(t)
	assert.Equal(t, []string{"a"}, channelNames(told.region))
	st := r.until(t, "the cluster is leaving", func(st xds.Status) bool { return len(st.Leaving) == 1 })
	assert.Equal(t, []string{envoy.ClusterOf("b")}, st.Leaving)
	// Far beyond the grace, it stays while a service may still name it.
	time.Sleep(100 * time.Millisecond)
	e.quiet(t)
	s.answer(<-hold, "")
	gone := e.next(t)
	assert.Equal(t, resource.ClusterType, gone.typeURL)
	assert.Equal(t, []string{envoy.ClusterOf("b")}, gone.removed)
	assert.Empty(t, gone.names)
}

func TestReturningChannelKeepsItsCluster(t *testing.T) {
	t.Parallel()
	r := start(t, file("a", "b"), nil)
	e, s := r.envoy(t, "envoy-1"), r.service(t, "authz-1")
	s.next(t)
	r.write(t, file("a"))
	s.next(t)
	r.write(t, file("a", "b"))
	assert.Equal(t, []string{"a", "b"}, channelNames(s.next(t).region))
	st := r.until(t, "nothing is leaving", func(st xds.Status) bool { return st.Version == 3 })
	assert.Empty(t, st.Leaving)
	e.quiet(t)
}

func TestBadFileAtStartListsAllProblems(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "keyway.yaml")
	require.NoError(t, os.WriteFile(name, []byte(strings.ReplaceAll(file("a", "b"), "dialects: [openai]", "dialects: [x]")), 0o600))
	s, err := xds.New(xds.Options{ConfigFile: name, ListenXDS: "127.0.0.1:0", Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.Error(t, s.Ready(t.Context()))
	err = s.Run(t.Context())
	require.ErrorContains(t, err, "providers[0].dialects[0]")
	require.ErrorContains(t, err, "providers[1].dialects[0]")
	var invalid *config.ValidationError
	require.ErrorAs(t, err, &invalid)
	assert.Len(t, invalid.Problems, 2)
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := xds.New(xds.Options{ConfigFile: "x", ListenXDS: "127.0.0.1:0"})
	require.ErrorContains(t, err, "registerer")
}

func TestStatusHandler(t *testing.T) {
	t.Parallel()
	r := start(t, file("a"), nil)
	r.service(t, "authz-1").next(t)
	r.until(t, "the node shows", func(st xds.Status) bool { return len(st.Nodes) == 1 && st.Nodes[0].Version == 1 })
	rec := httptest.NewRecorder()
	r.StatusHandler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/status", nil))
	assert.Equal(t, http.StatusOK, rec.Code)
	assert.Equal(t, "application/json", rec.Header().Get("Content-Type"))
	var got map[string]any
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &got))
	assert.InDelta(t, 1, got["version"], 0)
	assert.Equal(t, []any{map[string]any{"node": "authz-1", "kind": "service", "version": 1.0, "last_nack": nil}}, got["nodes"])
	assert.Equal(t, []any{}, got["config_errors"])
}

func TestMetricsAreWellFormed(t *testing.T) {
	t.Parallel()
	r := start(t, file("a"), nil)
	r.envoy(t, "envoy-1")
	r.until(t, "the node shows", func(st xds.Status) bool { return len(st.Nodes) == 1 })
	telemetrytest.Lint(t, r.registry)
	assert.InDelta(t, 1, r.counter(t, "keyway_xds_config_version"), 0)
	count, err := testutil.GatherAndCount(r.registry, "keyway_xds_nacks_total")
	require.NoError(t, err)
	assert.Equal(t, 4, count, "every type has its series from the start")
}

func TestNodeWithoutIDIsTurnedAway(t *testing.T) {
	t.Parallel()
	r := start(t, file("a"), nil)
	n := connect(t, nodeOptions{target: r.target, types: []string{resource.ClusterType}})
	select {
	case err := <-n.ended:
		assert.Equal(t, codes.InvalidArgument, grpcstatus.Code(err))
	case <-time.After(patience):
		assert.Fail(t, "the stream goes on")
	}
	assert.Empty(t, r.Status().Nodes)
}
