package telemetry_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"keyway/telemetry"
)

func serveGRPC(ctx context.Context, t *testing.T, change func(*telemetry.ServeGRPCOptions)) (string, chan error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o := telemetry.ServeGRPCOptions{
		Server: grpc.NewServer(), Listener: ln, StopLimit: time.Second,
		Health: telemetry.NewHealth(telemetry.HealthOptions{}),
	}
	if change != nil {
		change(&o)
	}
	done := make(chan error, 1)
	go func() { done <- telemetry.ServeGRPC(ctx, o) }()
	return ln.Addr().String(), done
}

func TestServeGRPCEndsInOrder(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var order []string
	addr, done := serveGRPC(ctx, t, func(o *telemetry.ServeGRPCOptions) {
		o.Stopping = func() { order = append(order, "stopping") }
		o.Background = []func(context.Context) error{func(ctx context.Context) error {
			<-ctx.Done()
			order = append(order, "background")
			return nil
		}}
	})
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, []string{"stopping", "background"}, order)
}

// A stop that comes before the first accept is no failure.
func TestServeGRPCStoppedBeforeItBegan(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, done := serveGRPC(ctx, t, nil)
	require.NoError(t, <-done)
}

func TestServeGRPCEndsWithItsBackground(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	_, done := serveGRPC(t.Context(), t, func(o *telemetry.ServeGRPCOptions) {
		o.Background = []func(context.Context) error{func(context.Context) error { return broken }}
	})
	require.ErrorIs(t, <-done, broken)
}
