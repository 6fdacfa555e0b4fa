package xds_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
)

// patience is how long a test waits for what must come. It is reached only by
// a failure.
const patience = 20 * time.Second

// push is one response as a node saw it.
type push struct {
	typeURL string
	nonce   string
	names   []string
	removed []string
	region  *keywayv1.RegionConfig
}

// fakeNode is an Envoy or a service as far as ADS can see.
type fakeNode struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	pushes chan push
	// ended gets the error with which the server ended the stream.
	ended chan error
	close func()

	mu sync.Mutex // guards send
	// verdict decides on a push: "" is ACK, "-" is silence, all else the NACK's detail.
	verdict func(push) string
}

func ackAll(push) string { return "" }

// nodeOptions describe a fake node.
type nodeOptions struct {
	target  string
	id      string
	types   []string
	known   map[string]string
	version float64
	verdict func(push) string
}

var envoyTypes = []string{resource.ClusterType, resource.ListenerType, resource.RouteType}

func connect(t *testing.T, o nodeOptions) *fakeNode {
	t.Helper()
	conn, err := grpc.NewClient(o.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	require.NoError(t, err)
	n := &fakeNode{stream: stream, pushes: make(chan push, 100), ended: make(chan error, 1), verdict: o.verdict}
	if n.verdict == nil {
		n.verdict = ackAll
	}
	for i, typeURL := range o.types {
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL}
		if i == 0 {
			req.Node = &corev3.Node{Id: o.id}
			if o.version > 0 {
				req.Node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{config.NodeVersion: structpb.NewNumberValue(o.version)}}
			}
		}
		switch typeURL {
		case config.RegionConfigType:
			req.ResourceNamesSubscribe = []string{config.RegionConfigName("local")}
		case resource.RouteType:
			req.ResourceNamesSubscribe = []string{"keyway_ingress"}
		case resource.ClusterType:
			req.InitialResourceVersions = o.known
		}
		n.request(t, req)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.receive()
	}()
	var once sync.Once
	n.close = func() {
		once.Do(func() {
			cancel()
			<-done
			_ = conn.Close()
		})
	}
	t.Cleanup(n.close)
	return n
}

func (n *fakeNode) request(t *testing.T, req *discoveryv3.DeltaDiscoveryRequest) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	require.NoError(t, n.stream.Send(req))
}

func (n *fakeNode) receive() {
	for {
		resp, err := n.stream.Recv()
		if err != nil {
			n.ended <- err
			return
		}
		p := push{typeURL: resp.GetTypeUrl(), nonce: resp.GetNonce(), removed: resp.GetRemovedResources()}
		for _, res := range resp.GetResources() {
			p.names = append(p.names, res.GetName())
			if p.typeURL == config.RegionConfigType {
				p.region = new(keywayv1.RegionConfig)
				if err := res.GetResource().UnmarshalTo(p.region); err != nil {
					return
				}
			}
		}
		slices.Sort(p.names)
		detail := n.verdict(p)
		n.pushes <- p
		if detail != "-" {
			n.answer(p, detail)
		}
	}
}

// answer sends the ACK (detail "") or NACK for p.
func (n *fakeNode) answer(p push, detail string) {
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: p.typeURL, ResponseNonce: p.nonce}
	if detail != "" {
		req.ErrorDetail = &rpcstatus.Status{Code: 13, Message: detail}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.stream.Send(req) // a broken stream shows as missing pushes
}

// next returns the next push of the node.
func (n *fakeNode) next(t *testing.T) push {
	t.Helper()
	select {
	case p := <-n.pushes:
		return p
	case <-time.After(patience):
		require.FailNow(t, "no push came")
		return push{}
	}
}

// initial takes the first push of each of the node's types.
func (n *fakeNode) initial(t *testing.T, types []string) map[string]push {
	t.Helper()
	got := make(map[string]push)
	for range types {
		p := n.next(t)
		got[p.typeURL] = p
	}
	require.Len(t, got, len(types))
	return got
}

// quiet fails when there is a push nobody has taken.
func (n *fakeNode) quiet(t *testing.T) {
	t.Helper()
	select {
	case p := <-n.pushes:
		require.Failf(t, "unexpected push", "%+v", p)
	default:
	}
}
