package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
)

const (
	// streamWorkers reuse goroutine stacks. With fewer, the calls of a burst grow
	// one of their own each, which cost extproc a twelfth of its time; long streams
	// keep some of them.
	streamWorkers = 64
	// streamWindow and connWindow, in bytes, are fixed: left to itself gRPC
	// measures the connection, with a ping to Envoy after nearly every message.
	// A stream's window bounds what is held for one stalled reader; a larger
	// message widens it while it is read. A connection's window is given back as
	// its bytes arrive, whoever reads them.
	streamWindow = 64 << 10
	connWindow   = 16 << 20
)

// NewGRPC makes a server for the calls of an Envoy; recvBytes is the longest
// message, and nil credentials are plain text.
func NewGRPC(recvBytes int, creds credentials.TransportCredentials) *grpc.Server {
	return grpc.NewServer(
		grpc.Creds(creds),
		grpc.MaxRecvMsgSize(recvBytes), grpc.NumStreamWorkers(streamWorkers),
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.ForceServerCodecV2(newCodec()),
	)
}

// ServeGRPCOptions say what ServeGRPC serves and how it ends.
type ServeGRPCOptions struct {
	// Server has its services registered, all but health.
	Server *grpc.Server
	// Listener is closed in every case.
	Listener net.Listener
	Health   *Health
	// StopLimit is how long running calls may go on once ctx has ended.
	StopLimit time.Duration
	// Background tasks run beside the server and end when it has stopped, by
	// their context. An error of one ends the service.
	Background []func(ctx context.Context) error
	// Stopping, when not nil, is called when the stop begins.
	Stopping func()
}

// ServeGRPC serves until ctx ends and then stops in order: unready first,
// running calls to their limit, background tasks last. It returns nil at such an end.
func ServeGRPC(ctx context.Context, o ServeGRPCOptions) error {
	grpc_health_v1.RegisterHealthServer(o.Server, o.Health.GRPC())
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, groupCtx := errgroup.WithContext(background)
	for _, task := range o.Background {
		group.Go(func() error { return task(groupCtx) })
	}
	group.Go(func() error {
		defer end()
		// A stop may come before the first accept; that is an end like any other.
		if err := o.Server.Serve(o.Listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve gRPC: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		select {
		case <-ctx.Done():
		case <-groupCtx.Done():
		}
		if o.Stopping != nil {
			o.Stopping()
		}
		o.Health.Drain()
		force := time.AfterFunc(o.StopLimit, o.Server.Stop)
		o.Server.GracefulStop()
		force.Stop()
		return nil
	})
	return group.Wait()
}
