package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/authz"
	"keyway/config"
	"keyway/domain"
	"keyway/store"
	"keyway/store/storetest"
	"keyway/telemetry"
)

// leasedReplica is one authz on a store client of its own.
type leasedReplica struct {
	server *authz.Server
	stop   func()
}

func startLeased(t *testing.T, url string, snapshot *config.Snapshot) leasedReplica {
	t.Helper()
	regional, err := store.Open(store.Options{URL: url, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "authz.sock"))
	require.NoError(t, err)
	holder := new(config.Holder)
	holder.Set(snapshot)
	server, err := authz.New(authz.Options{
		Config: holder, Keys: regional, KeyChanges: regional, Reservations: regional, Calibrations: regional, Rates: regional,
		Cooldowns: regional, ChannelStats: regional,
		Listener: listener, Health: telemetry.NewHealth(telemetry.HealthOptions{}), Registerer: prometheus.NewRegistry(),
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	return leasedReplica{server: server, stop: sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done)
		assert.NoError(t, regional.Close())
	})}
}

// ask reports whether a request with secret is admitted.
func (r leasedReplica) ask(t *testing.T, secret, id string) bool {
	answer, err := r.server.Check(t.Context(), &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
			Method: "POST", Path: "/v1/chat/completions", RawBody: []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":1}`),
			Headers: map[string]string{"authorization": "Bearer " + secret, "x-request-id": id},
		}},
	}})
	if !assert.NoError(t, err) {
		return false
	}
	if denied := answer.GetDeniedResponse(); denied != nil {
		assert.EqualValues(t, 429, denied.GetStatus().GetCode(), denied.GetBody())
		assert.Equal(t, "0", header(denied.GetHeaders(), "x-ratelimit-remaining-requests"))
		return false
	}
	return true
}

func header(options []*corev3.HeaderValueOption, name string) string {
	for _, o := range options {
		if o.GetHeader().GetKey() == name {
			return o.GetHeader().GetValue()
		}
	}
	return ""
}

// Five replicas share one leased limit: together they never admit more than it
// gives and one lease each, within any stretch of time, and not less than it
// gives; what they hold at their stop goes back.
func TestLeasedReplicasShareOneLimit(t *testing.T) {
	t.Parallel()
	const (
		replicas, clients = 5, 4
		limit, burst      = 1200, 240 // 20 a second
		lease             = limit / 60
		lasting           = 3 * time.Second
	)
	url := storetest.Start(t).URL
	regional, err := store.Open(store.Options{URL: url})
	require.NoError(t, err)
	defer regional.Close()
	secret, err := domain.NewKeySecret()
	require.NoError(t, err)
	require.NoError(t, regional.PutKey(t.Context(), domain.VirtualKey{
		ID: "key_1", Hash: domain.HashKey(secret), Identity: "acme", Policy: "leased", State: domain.KeyActive,
	}))
	provider := domain.Provider{Name: "p", Dialects: []domain.Dialect{domain.DialectOpenAI}, FirstByteLimit: time.Second}
	snapshot := &config.Snapshot{
		MaxRequestBytes: 1 << 20, Lease: 30 * time.Second,
		Models:   map[string]domain.Model{"m": {Name: "m", MaxOutput: 1, Channels: []string{"c"}}},
		Channels: map[string]domain.Channel{"c": {Name: "c", Provider: provider, Weight: 1, Models: map[string]string{"m": "m"}}},
		Policies: map[string]domain.Policy{"leased": {RPM: limit, RPMBurst: burst, Leased: true}},
	}
	var (
		mu       sync.Mutex
		admitted []time.Time
		refused  atomic.Int64
		senders  sync.WaitGroup
		all      []leasedReplica
	)
	for range replicas {
		r := startLeased(t, url, snapshot)
		defer r.stop()
		all = append(all, r)
	}
	began := time.Now()
	for i, r := range all {
		for c := range clients {
			senders.Go(func() {
				for n := 0; time.Since(began) < lasting; n++ {
					if !r.ask(t, secret, fmt.Sprintf("%d-%d-%d", i, c, n)) {
						refused.Add(1)
						time.Sleep(5 * time.Millisecond) // far more often than the limit gives
						continue
					}
					mu.Lock()
					admitted = append(admitted, time.Now())
					mu.Unlock()
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
	}
	senders.Wait()
	gives := func(d time.Duration) int { return int(float64(limit) * d.Minutes()) }
	took := time.Since(began)
	t.Logf("%d admitted, %d refused in %s; the limit gives %d", len(admitted), refused.Load(), took, burst+gives(took))
	assert.LessOrEqual(t, len(admitted), burst+gives(took)+1, "nothing was leased at the beginning")
	assert.GreaterOrEqual(t, len(admitted), burst+gives(took)-replicas*lease-1, "and at most a lease each is left")
	assert.Greater(t, refused.Load(), int64(100))
	most := 0
	for i := range admitted {
		for j := i; j < len(admitted); j++ {
			most = max(most, j-i+1-gives(admitted[j].Sub(admitted[i])))
		}
	}
	assert.LessOrEqual(t, most, burst+replicas*lease+1, "in any stretch of time")

	for _, r := range all {
		r.stop()
	}
	counters, err := regional.Counters(t.Context(), "acme")
	require.NoError(t, err)
	var used int64
	for name, value := range counters {
		if strings.Contains(name, ":rpm:") {
			used = value
		}
	}
	drained := gives(time.Since(began)) + 1
	assert.LessOrEqual(t, used, int64(len(admitted)), "only what was admitted is gone")
	assert.GreaterOrEqual(t, used, int64(len(admitted)-drained))
}
