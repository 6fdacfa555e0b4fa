package telemetry

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func grpcStatus(t *testing.T, h *Health) healthpb.HealthCheckResponse_ServingStatus {
	t.Helper()
	resp, err := h.GRPC().Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	return resp.GetStatus()
}

func TestHealthStates(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	tests := []struct {
		name    string
		do      func(*Health)
		live    error
		ready   error
		message string
	}{
		{name: "no checks", do: func(*Health) {}},
		{name: "set to pass", do: func(h *Health) { h.Set("store", nil) }},
		{name: "set to fail", do: func(h *Health) { h.Set("store", broken) }, ready: broken, message: "store: broken"},
		{name: "recovered", do: func(h *Health) { h.Set("store", broken); h.Set("store", nil) }},
		{
			name: "one of two", do: func(h *Health) { h.Set("store", nil); h.Set("config", broken) },
			ready: broken, message: "config: broken",
		},
		{
			name: "two of two", do: func(h *Health) { h.Set("store", broken); h.Set("config", broken) },
			ready: broken, message: "config: broken\nstore: broken",
		},
		{
			name: "added, not evaluated", do: func(h *Health) { h.AddCheck("store", func(context.Context) error { return nil }) },
			ready: ErrNotChecked, message: "store: not checked yet",
		},
		{name: "draining", do: func(h *Health) { h.Drain() }, ready: ErrDraining, message: "draining"},
		{name: "draining for good", do: func(h *Health) { h.Drain(); h.Set("store", nil) }, ready: ErrDraining, message: "draining"},
		{name: "failed", do: func(h *Health) { h.Fail(broken) }, live: broken, ready: broken, message: "broken"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := NewHealth(HealthOptions{})
			tt.do(h)
			assert.Equal(t, tt.live, h.Live())
			if tt.ready == nil {
				require.NoError(t, h.Ready())
				assert.True(t, h.Report().Ready)
				assert.Equal(t, healthpb.HealthCheckResponse_SERVING, grpcStatus(t, h))
				return
			}
			require.ErrorIs(t, h.Ready(), tt.ready)
			require.EqualError(t, h.Ready(), tt.message)
			assert.False(t, h.Report().Ready)
			assert.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, grpcStatus(t, h))
		})
	}
}

func TestHealthRunEvaluates(t *testing.T) {
	t.Parallel()
	var fails atomic.Bool
	h := NewHealth(HealthOptions{Interval: time.Millisecond})
	h.AddCheck("store", func(context.Context) error {
		if fails.Load() {
			return errors.New("away")
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()

	const patience = 30 * time.Second
	require.Eventually(t, func() bool { return h.Ready() == nil }, patience, time.Millisecond)
	fails.Store(true)
	require.Eventually(t, func() bool { return h.Ready() != nil }, patience, time.Millisecond)
	fails.Store(false)
	require.Eventually(t, func() bool { return h.Ready() == nil }, patience, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	assert.NoError(t, h.Ready(), "the end of Run is no failed check")
}

func TestHealthHangingCheckTimesOut(t *testing.T) {
	t.Parallel()
	h := NewHealth(HealthOptions{Timeout: time.Millisecond})
	h.AddCheck("hangs", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	h.AddCheck("works", func(context.Context) error { return nil })
	h.evaluate(t.Context())
	assert.Equal(t, []CheckStatus{
		{Name: "hangs", Error: context.DeadlineExceeded.Error()},
		{Name: "works"},
	}, h.Report().Checks)
}
