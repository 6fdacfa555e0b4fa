package xds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"keyway/config"
)

// Server is the control plane of one region.
type Server struct {
	opts    Options
	metrics *metrics
	nodes   *nodes
	// status is replaced by the loop and read by anyone.
	status atomic.Pointer[Status]
}

// New makes a control plane; it does no I/O. The error is about the options.
func New(opts Options) (*Server, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	m := newMetrics(opts.Registerer)
	s := &Server{opts: opts, metrics: m, nodes: newNodes(opts.Logger, m)}
	s.status.Store(new(Status))
	return s, nil
}

var errNotServing = errors.New("no configuration is served yet")

// Ready is a health check: nil once a configuration is served.
func (s *Server) Ready(context.Context) error {
	if s.status.Load().Version == 0 {
		return errNotServing
	}
	return nil
}

// Run serves until ctx ends and then returns nil. A configuration that is bad
// at the start is an error that lists every problem: there is nothing to fall
// back to but what the nodes have already.
func (s *Server) Run(ctx context.Context) error {
	watch := &fileWatch{path: s.opts.ConfigFile, poll: s.opts.PollInterval, logger: s.opts.Logger}
	first, _ := watch.read()
	plane := newPlane(s)
	if err := plane.start(first); err != nil {
		return fmt.Errorf("start with %s: %w", s.opts.ConfigFile, err)
	}
	listener, err := listen(s.opts.ListenXDS)
	if err != nil {
		return err
	}
	if s.opts.OnListen != nil {
		s.opts.OnListen(listener.Addr())
	}
	group, ctx := errgroup.WithContext(ctx)
	server := s.grpcServer(ctx, plane.mux())
	files := make(chan reading)
	group.Go(func() error { return watch.run(ctx, files) })
	group.Go(func() error { return plane.run(ctx, files) })
	group.Go(func() error {
		// An end that comes before the first accept is an end like any other.
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve xds: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		// A hard stop: the streams of Envoys and services never end, and
		// nodes lose nothing when they break.
		s.opts.Logger.Info("control plane is stopping")
		server.Stop()
		return nil
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("run control plane: %w", err)
	}
	s.opts.Logger.Info("control plane stopped")
	return nil
}

// minClientPing is what clients may ping at most; half of what ours do leaves
// room for a clock that runs fast.
const minClientPing = config.KeepaliveTime / 2

// grpcServer registers delta ADS alone: the state-of-the-world variant would
// resend all clusters for one.
func (s *Server) grpcServer(ctx context.Context, mux *cache.MuxCache) *grpc.Server {
	server := grpc.NewServer(
		grpc.Creds(s.opts.Credentials),
		grpc.MaxRecvMsgSize(config.MaxMessageBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: config.KeepaliveTime, Timeout: minClientPing}),
	)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, &deltaADS{
		handler: delta.NewServer(ctx, mux, s.nodes),
	})
	return server
}

// deltaADS is the gRPC door to go-control-plane's delta protocol.
type deltaADS struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	handler delta.Server
}

// DeltaAggregatedResources implements the discovery service.
func (d *deltaADS) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return d.handler.DeltaStreamHandler(stream, resource.AnyType)
}

const (
	unixScheme = "unix:"
	// socketMode lets the services of the same group in: they run under
	// their own users.
	socketMode = 0o660
)

// listen opens "host:port" or "unix:/path". A socket is made beside its place
// and moved there, so that a successor takes over without a gap and the end of
// the predecessor does not delete it.
func listen(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, unixScheme)
	if !isUnix {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("listen for xds: %w", err)
		}
		return listener, nil
	}
	temp := fmt.Sprintf("%s.%d.%d", path, os.Getpid(), time.Now().UnixNano())
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for xds: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	err = os.Chmod(temp, socketMode)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("place xds socket: %w", err), os.Remove(temp), listener.Close())
	}
	return listener, nil
}
