package xds

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"keyway/config"
)

var _ delta.Callbacks = (*nodes)(nil)

// nodes knows who is connected and what each has acknowledged. The streams
// write it through the callbacks, the loop and Status read it.
type nodes struct {
	logger  *slog.Logger
	metrics *metrics
	// changed holds one token while the loop has something to look at.
	changed chan struct{}

	// mu guards everything below.
	mu      sync.Mutex
	streams map[int64]*nodeStream
	// reported is the highest configuration version that a service said it runs on.
	reported int64
}

// nodeStream is one ADS stream. A node that returns before its old stream is
// noticed to be dead has two for a while.
type nodeStream struct {
	node  string
	types map[string]*subscribed
	// version is the last published configuration that the node had fully acknowledged.
	version  int64
	lastNack *Nack
}

// kind tells Envoys, which ask for clusters, from services.
func (n *nodeStream) kind() string {
	if _, ok := n.types[resource.ClusterType]; ok {
		return kindEnvoy
	}
	return kindService
}

// subscribed is what one stream was sent of one type, and what it said to that.
type subscribed struct {
	// open are the responses without an answer, by nonce.
	open map[string]*discoveryv3.DeltaDiscoveryResponse
	// acked and refused hold resource versions by name; refused only until a
	// later version of the resource is acknowledged or it is removed.
	acked   map[string]string
	refused map[string]string
}

func newNodes(logger *slog.Logger, m *metrics) *nodes {
	return &nodes{logger: logger, metrics: m, changed: make(chan struct{}, 1), streams: make(map[int64]*nodeStream)}
}

func (n *nodes) wake() {
	select {
	case n.changed <- struct{}{}:
	default: // the loop has not looked yet and will see this too
	}
}

// OnDeltaStreamOpen implements delta.Callbacks.
func (n *nodes) OnDeltaStreamOpen(_ context.Context, id int64, _ string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.streams[id] = &nodeStream{types: make(map[string]*subscribed)}
	return nil
}

// OnDeltaStreamClosed implements delta.Callbacks.
func (n *nodes) OnDeltaStreamClosed(id int64, _ *corev3.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.streams[id]; s != nil && s.node != "" {
		n.logger.Info("node left", "node", s.node, "kind", s.kind())
	}
	delete(n.streams, id)
	n.wake()
}

// OnStreamDeltaResponse implements delta.Callbacks.
func (n *nodes) OnStreamDeltaResponse(id int64, _ *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if sub := n.streams[id].types[resp.GetTypeUrl()]; sub != nil {
		sub.open[resp.GetNonce()] = resp
	}
}

// OnStreamDeltaRequest implements delta.Callbacks: a request opens a
// subscription, answers a response, or both.
func (n *nodes) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.wake()
	s := n.streams[id]
	if s.node == "" {
		if req.GetNode().GetId() == "" {
			return status.Error(codes.InvalidArgument, "node.id is needed")
		}
		s.node = req.GetNode().GetId()
		n.greet(s, req)
	}
	sub := s.types[req.GetTypeUrl()]
	if sub == nil {
		sub = &subscribed{
			open:    make(map[string]*discoveryv3.DeltaDiscoveryResponse),
			acked:   make(map[string]string),
			refused: make(map[string]string),
		}
		for name, version := range req.GetInitialResourceVersions() {
			sub.acked[name] = version
		}
		s.types[req.GetTypeUrl()] = sub
	}
	resp, answered := sub.open[req.GetResponseNonce()]
	if !answered {
		return nil
	}
	delete(sub.open, req.GetResponseNonce())
	var bad []string
	if detail := req.GetErrorDetail(); detail != nil {
		n.nacked(s, req)
		bad = faulty(resp, detail.GetMessage())
	}
	sub.settle(resp, bad)
	return nil
}

func (n *nodes) greet(s *nodeStream, req *discoveryv3.DeltaDiscoveryRequest) {
	n.logger.Info("node joined", "node", s.node, "type", typeLabel(req.GetTypeUrl()))
	if v := req.GetNode().GetMetadata().GetFields()[config.NodeVersion]; v != nil {
		n.reported = max(n.reported, int64(v.GetNumberValue()))
	}
}

func (n *nodes) nacked(s *nodeStream, req *discoveryv3.DeltaDiscoveryRequest) {
	label := typeLabel(req.GetTypeUrl())
	s.lastNack = &Nack{Type: label, Detail: req.GetErrorDetail().GetMessage(), Time: time.Now().UTC()}
	n.metrics.nacks.WithLabelValues(label).Inc()
	n.logger.Error("node refused resources", "node", s.node, "type", label, "detail", s.lastNack.Detail)
}
