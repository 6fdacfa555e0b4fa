package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHandler(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name           string
		do             func(*Health)
		healthz, ready int
		report         Report
	}{
		{
			name: "ready", do: func(h *Health) { h.Set("store", nil) }, healthz: 200, ready: 200,
			report: Report{Live: true, Ready: true, Checks: []CheckStatus{{Name: "store"}}},
		},
		{
			name: "unready", do: func(h *Health) { h.Set("store", errors.New("away")) }, healthz: 200, ready: 503,
			report: Report{Live: true, Checks: []CheckStatus{{Name: "store", Error: "away"}}},
		},
		{
			name: "draining", do: func(h *Health) { h.Drain() }, healthz: 200, ready: 503,
			report: Report{Live: true, Draining: true, Checks: []CheckStatus{}},
		},
		{
			name: "failed", do: func(h *Health) { h.Fail(errors.New("stuck")) }, healthz: 503, ready: 503,
			report: Report{Checks: []CheckStatus{}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := NewHealth(HealthOptions{})
			tt.do(h)
			handler := NewHandler(ServeOptions{Health: h, Gatherer: prometheus.NewRegistry()})
			get := func(path string) *httptest.ResponseRecorder {
				rec := httptest.NewRecorder()
				handler.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
				return rec
			}
			assert.Equal(t, tt.healthz, get("/healthz").Code)
			rec := get("/readyz")
			assert.Equal(t, tt.ready, rec.Code)
			assert.Equal(t, "application/json", rec.Header().Get("Content-Type"))
			var got Report
			require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &got))
			assert.Equal(t, tt.report, got)
			assert.Equal(t, http.StatusNotFound, get("/").Code)
		})
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	addr := make(chan net.Addr, 1)
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ServeOptions{
			Addr: "127.0.0.1:0", Health: NewHealth(HealthOptions{}), Gatherer: NewRegistry(),
			Listening: func(a net.Addr) { addr <- a },
		})
	}()
	base := "http://" + (<-addr).String()
	client := &http.Client{Transport: &http.Transport{}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/metrics", nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Contains(t, string(body), "go_goroutines")
	client.CloseIdleConnections()

	cancel()
	require.NoError(t, <-done)
	_, err = client.Do(req)
	require.Error(t, err, "the listener is closed")
}

func TestServeRefusesBadAddress(t *testing.T) {
	t.Parallel()
	err := Serve(t.Context(), ServeOptions{Addr: "127.0.0.1:no-port", Health: NewHealth(HealthOptions{}), Gatherer: NewRegistry()})
	require.ErrorContains(t, err, "listen for observability")
}
