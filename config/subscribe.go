package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/structpb"

	keywayv1 "keyway/api/keyway/v1"
)

const typeURLPrefix = "type.googleapis.com/"

// RegionConfigType is the type URL under which the services ask for their configuration.
var RegionConfigType = typeURLPrefix + string((*keywayv1.RegionConfig)(nil).ProtoReflect().Descriptor().FullName())

// RegionConfigName is the resource name of a region's configuration.
func RegionConfigName(region string) string { return "RegionConfig/" + region }

// NodeVersion is the field of a node's metadata in which a service says which
// configuration version it runs on, so that a control plane that lost its
// state continues above it.
const NodeVersion = "keyway_config_version"

// MaxMessageBytes bounds one discovery message; a region of thousands of
// channels fits many times.
const MaxMessageBytes = 64 << 20

// SubscribeOptions say from whom, for what and whereto. Target, Node, Region
// and Holder are needed.
type SubscribeOptions struct {
	// Target is the control plane in gRPC's form: "host:port" or "unix:/path".
	Target string
	// Node is the unique id of this process, such as "authz-0".
	Node   string
	Region string
	// CacheFile keeps the last good configuration; "" keeps none.
	CacheFile string
	Holder    *Holder
	// Logger is slog.Default when nil.
	Logger *slog.Logger
	// Credentials are those of the connection; nil is plain text.
	Credentials credentials.TransportCredentials
	// RetryMin and RetryMax bound the pause before a broken stream is opened
	// again, before jitter; defaults 100 ms and 2 s.
	RetryMin, RetryMax time.Duration
}

const (
	defaultRetryMin = 100 * time.Millisecond
	// defaultRetryMax keeps "all nodes agree within seconds" true after a
	// control plane came back from a long absence.
	defaultRetryMax = 2 * time.Second

	// A peer that vanished without a word is noticed within 15 s. KeepaliveTime
	// is exported because the server must allow it.
	KeepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
)

// Subscribe keeps o.Holder on the newest configuration until ctx ends, and
// then returns nil; an error means that the options cannot work. It begins
// with the cache file, so that a restart needs no control plane, and from then
// on a configuration that does not compile, or an older version, is refused
// (NACK) while the last good one stays in force.
func Subscribe(ctx context.Context, o SubscribeOptions) error {
	s, err := newSubscriber(o)
	if err != nil {
		return err
	}
	s.loadCache()
	conn, err := grpc.NewClient(
		o.Target,
		grpc.WithTransportCredentials(s.Credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: KeepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: s.RetryMin, Multiplier: 2, Jitter: 0.2, MaxDelay: s.RetryMax},
			MinConnectTimeout: keepaliveTimeout,
		}),
	)
	if err != nil {
		return fmt.Errorf("prepare control plane client: %w", err)
	}
	s.run(ctx, discoveryv3.NewAggregatedDiscoveryServiceClient(conn))
	if err := conn.Close(); err != nil {
		return fmt.Errorf("close control plane client: %w", err)
	}
	return nil
}

// subscriber is confined to the goroutine of Subscribe.
type subscriber struct {
	SubscribeOptions
	name string
	// last is the configuration in force; nil before the first.
	last *keywayv1.RegionConfig
	// resourceVersion is the control plane's own mark for last; "" when it
	// came from the cache file.
	resourceVersion string
}

var errIncomplete = errors.New("subscribe to control plane: target, node, region and holder are needed")

func newSubscriber(o SubscribeOptions) (*subscriber, error) {
	if o.Target == "" || o.Node == "" || o.Region == "" || o.Holder == nil {
		return nil, errIncomplete
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	orDefault(&o.RetryMin, defaultRetryMin)
	orDefault(&o.RetryMax, defaultRetryMax)
	return &subscriber{SubscribeOptions: o, name: RegionConfigName(o.Region)}, nil
}

// loadCache puts the last good configuration in force. A cache that cannot be
// used is only logged: the control plane will send another one.
func (s *subscriber) loadCache() {
	if s.CacheFile == "" {
		return
	}
	rc, err := ReadRegionConfig(s.CacheFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		_, err = s.accept(rc)
	}
	if err != nil {
		s.Logger.Warn("cached configuration is not usable", "file", s.CacheFile, "error", err)
		return
	}
	s.Logger.Info("cached configuration is in force", "version", rc.GetVersion())
}

// run opens one stream after another until ctx ends.
func (s *subscriber) run(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) {
	pause := s.RetryMin
	for {
		answered, err := s.stream(ctx, client)
		if ctx.Err() != nil {
			return
		}
		if answered {
			pause = s.RetryMin
		}
		s.Logger.Warn("control plane stream ended; the last good configuration stays in force", "error", err)
		// Half to the whole pause, so that a region's services do not return in step.
		wait := pause/2 + rand.N(pause/2+1)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		pause = min(2*pause, s.RetryMax)
	}
}

// stream runs one stream to its end; answered says that the control plane sent something.
func (s *subscriber) stream(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // frees the stream when a send fails
	// WaitForReady leaves the waiting for an absent server to gRPC's own back-off.
	stream, err := client.DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		return false, fmt.Errorf("open stream: %w", err)
	}
	if err := stream.Send(s.subscription()); err != nil {
		return false, fmt.Errorf("send subscription: %w", err)
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return answered, fmt.Errorf("receive configuration: %w", err)
		}
		if !answered {
			answered = true
			s.Logger.Info("control plane stream is open")
		}
		if err := stream.Send(s.answer(resp)); err != nil {
			return answered, fmt.Errorf("acknowledge configuration: %w", err)
		}
	}
}

// subscription is the first request of a stream. It says what is known, so
// that an unchanged configuration is not sent again.
func (s *subscriber) subscription() *discoveryv3.DeltaDiscoveryRequest {
	node := &corev3.Node{Id: s.Node}
	if s.last != nil {
		node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{
			NodeVersion: structpb.NewNumberValue(float64(s.last.GetVersion())),
		}}
	}
	req := &discoveryv3.DeltaDiscoveryRequest{
		Node:                   node,
		TypeUrl:                RegionConfigType,
		ResourceNamesSubscribe: []string{s.name},
	}
	if s.resourceVersion != "" {
		req.InitialResourceVersions = map[string]string{s.name: s.resourceVersion}
	}
	return req
}
