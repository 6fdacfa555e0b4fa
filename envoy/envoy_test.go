package envoy_test

import (
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
	"keyway/envoy"
	"keyway/envoy/envoytest"
)

const maxBody = 32 << 20

// testConfig is a region with every kind of upstream: TLS by name, TLS by
// address, clear HTTP/1 and clear HTTP/2.
func testConfig() *keywayv1.Config {
	provider := func(name, url, http string) *keywayv1.Provider {
		return &keywayv1.Provider{
			Name: name, Dialects: []string{"openai"}, BaseUrl: url, Http: http,
			FirstByteLimit: &durationpb.Duration{Seconds: 60}, ConnectTimeout: &durationpb.Duration{Seconds: 2},
		}
	}
	channel := func(name string) *keywayv1.Channel {
		return &keywayv1.Channel{Name: name, Provider: name, Secret: "env:SK", Weight: proto.Uint32(1), Models: []*keywayv1.ChannelModel{{Name: "m", Upstream: "m"}}}
	}
	native := channel("native")
	native.Egress, native.Organization = string(domain.EgressNative), "an \"org\""
	return &keywayv1.Config{
		Region:   "test",
		Listener: &keywayv1.Listener{Address: "127.0.0.1", Port: 18080},
		Limits:   &keywayv1.Limits{MaxRequestBytes: maxBody, Lease: &durationpb.Duration{Seconds: 30}},
		Providers: []*keywayv1.Provider{
			provider("tls-name", "https://api.example.com/v1", "auto"),
			provider("tls-address", "https://192.0.2.7:8443/v1", "auto"),
			provider("clear", "http://127.0.0.1:9/v1", "http1"),
			provider("clear-h2", "http://localhost:9/v1", "http2"),
			provider("native", "https://api.example.com/v1", "auto"),
		},
		Channels: []*keywayv1.Channel{channel("tls-name"), channel("tls-address"), channel("clear"), channel("clear-h2"), native},
	}
}

func build(t *testing.T) (*bootstrapv3.Bootstrap, envoy.Resources) {
	t.Helper()
	b, err := envoy.Bootstrap(envoy.BootstrapOptions{
		NodeID: "envoy-test", Region: "test", XDS: "127.0.0.1:18000", Authz: "unix:/tmp/a.sock", Extproc: "extproc:9000", Relay: "unix:/tmp/r.sock", Egress: "unix:/tmp/e.sock", Admin: "127.0.0.1:9901",
	})
	require.NoError(t, err)
	res, err := envoy.Build(testConfig())
	require.NoError(t, err)
	return b, res
}

func TestEnvoyAcceptsWhatIsBuilt(t *testing.T) {
	t.Parallel()
	b, res := build(t)
	inlined, err := envoy.Inline(b, res)
	require.NoError(t, err)
	envoytest.Validate(t, inlined)
}

func TestBuildIsDeterministic(t *testing.T) {
	t.Parallel()
	_, first := build(t)
	_, second := build(t)
	for name, c := range first.Clusters {
		require.Equal(t, c.String(), second.Clusters[name].String())
	}
}

// Each break of the two rules must be seen, or the check protects nothing.
func TestCheckRules(t *testing.T) {
	t.Parallel()
	t.Run("what is built keeps them", func(t *testing.T) {
		t.Parallel()
		b, res := build(t)
		require.NoError(t, envoy.CheckRules(b, res, maxBody))
	})
	breakFilter := func(change func(*extprocv3.ExternalProcessor)) func(*testing.T, *bootstrapv3.Bootstrap, envoy.Resources) {
		return func(t *testing.T, _ *bootstrapv3.Bootstrap, res envoy.Resources) {
			editOptions(t, res.Clusters[envoy.ClusterOf("clear")], func(o *httpv3.HttpProtocolOptions) {
				proc := &extprocv3.ExternalProcessor{}
				require.NoError(t, o.HttpFilters[0].GetTypedConfig().UnmarshalTo(proc))
				change(proc)
				require.NoError(t, o.HttpFilters[0].GetTypedConfig().MarshalFrom(proc))
			})
		}
	}
	breakEgress := func(change func(*testing.T, *clusterv3.Cluster)) func(*testing.T, *bootstrapv3.Bootstrap, envoy.Resources) {
		return func(t *testing.T, b *bootstrapv3.Bootstrap, _ envoy.Resources) {
			for _, c := range b.GetStaticResources().GetClusters() {
				if c.GetName() == envoy.ClusterEgress {
					change(t, c)
				}
			}
		}
	}
	for _, tc := range []struct {
		name  string
		apply func(*testing.T, *bootstrapv3.Bootstrap, envoy.Resources)
		want  string
	}{
		{"response headers upstream", breakFilter(func(p *extprocv3.ExternalProcessor) {
			p.ProcessingMode.ResponseHeaderMode = extprocv3.ProcessingMode_SEND
		}), "takes part in the response"},
		{"response body upstream", breakFilter(func(p *extprocv3.ExternalProcessor) {
			p.ProcessingMode.ResponseBodyMode = extprocv3.ProcessingMode_STREAMED
		}), "takes part in the response"},
		{"another gRPC cluster", breakFilter(func(p *extprocv3.ExternalProcessor) {
			p.GrpcService.GetEnvoyGrpc().ClusterName = envoy.ClusterWatch
		}), "does not use"},
		{"small connection buffer", breakEgress(func(_ *testing.T, c *clusterv3.Cluster) {
			c.PerConnectionBufferLimitBytes = wrapperspb.UInt32(1 << 20)
		}), "connection buffer"},
		{"a listener of the bootstrap with the egress cluster", func(t *testing.T, b *bootstrapv3.Bootstrap, _ envoy.Resources) {
			l := b.GetStaticResources().GetListeners()[0]
			require.Equal(t, envoy.ListenerEgress, l.GetName())
			l.StatPrefix = envoy.ClusterEgress
		}, "shares the egress service's cluster"},
		{"small stream window", breakEgress(func(t *testing.T, c *clusterv3.Cluster) {
			editOptions(t, c, func(o *httpv3.HttpProtocolOptions) {
				o.GetExplicitHttpConfig().GetHttp2ProtocolOptions().InitialStreamWindowSize = wrapperspb.UInt32(maxBody)
			})
		}), "stream window"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b, res := build(t)
			tc.apply(t, b, res)
			require.ErrorContains(t, envoy.CheckRules(b, res, maxBody), tc.want)
		})
	}
}

func editOptions(t *testing.T, c *clusterv3.Cluster, edit func(*httpv3.HttpProtocolOptions)) {
	t.Helper()
	for key, packed := range c.GetTypedExtensionProtocolOptions() {
		o := &httpv3.HttpProtocolOptions{}
		require.NoError(t, packed.UnmarshalTo(o))
		edit(o)
		again, err := anypb.New(o)
		require.NoError(t, err)
		c.TypedExtensionProtocolOptions[key] = again
	}
}

func TestDecisionCrossesEnvoy(t *testing.T) {
	t.Parallel()
	want := domain.Decision{RequestID: "r", Identity: "acme", API: domain.APIChat, Path: "/chat/completions", Candidates: []domain.Candidate{
		{Channel: "a", UpstreamModel: "m", Patches: []domain.Patch{{Offset: 3, Delete: 1, Insert: `"é"`}}},
	}}
	encoded, err := envoy.EncodeDecision(want)
	require.NoError(t, err)
	got, err := envoy.DecodeDecision(encoded)
	require.NoError(t, err)
	require.Equal(t, want.Candidates, got.Candidates)
	require.Equal(t, want.Path, got.Path)
	_, err = envoy.DecodeDecision("-")
	require.ErrorIs(t, err, domain.ErrNotFound)
	_, err = envoy.DecodeDecision("not base64!")
	require.Error(t, err)
}
