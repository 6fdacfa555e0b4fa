package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
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
	server   *authz.Server
	registry *prometheus.Registry
	stop     func()
}

func startLeased(t *testing.T, url string, snapshot *config.Snapshot) leasedReplica {
	t.Helper()
	regional, err := store.Open(store.Options{URL: url, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "authz.sock"))
	require.NoError(t, err)
	holder := new(config.Holder)
	holder.Set(snapshot)
	server, err := authz.New(authz.Options{
		Config: holder, Keys: regional, KeyChanges: regional, Reservations: regional, Calibrations: regional, Rates: regional,
		Cooldowns: regional, ChannelStats: regional,
		Listener: listener, Health: telemetry.NewHealth(telemetry.HealthOptions{}), Registerer: registry,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	return leasedReplica{server: server, registry: registry, stop: sync.OnceFunc(func() {
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

// leasedSwarm is what several replicas admitted, and when.
type leasedSwarm struct {
	all    []leasedReplica
	secret string

	mu       sync.Mutex
	admitted []time.Time
	refused  int
}

// ask lets clients ask each replica for a while, each after a pause.
func (s *leasedSwarm) ask(t *testing.T, clients int, lasting, pause time.Duration) {
	var senders sync.WaitGroup
	end := time.Now().Add(lasting)
	for _, r := range s.all {
		for range clients {
			senders.Go(func() {
				for time.Now().Before(end) {
					admitted := r.ask(t, s.secret, rand.Text())
					s.mu.Lock()
					if admitted {
						s.admitted = append(s.admitted, time.Now())
					} else {
						s.refused++
					}
					s.mu.Unlock()
					time.Sleep(pause)
				}
			})
		}
	}
	senders.Wait()
}

// onLease is how many requests went out on leases alone.
func (s *leasedSwarm) onLease(t *testing.T) (n int) {
	t.Helper()
	for _, r := range s.all {
		families, err := r.registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "keyway_authz_leased_admissions_total" {
				n += int(f.GetMetric()[0].GetCounter().GetValue())
			}
		}
	}
	return n
}

func (s *leasedSwarm) stop() {
	for _, r := range s.all {
		r.stop()
	}
}

// Five replicas share one leased limit: what they hold at their stop goes back,
// and together they never admit more than it gives and one lease each, within any
// stretch of time, and not less than it gives.
func TestLeasedReplicasShareOneLimit(t *testing.T) {
	t.Parallel()
	const (
		replicas     = 5
		limit, burst = 600, 700 // 10 a second
		lease        = limit / 60
	)
	gives := func(d time.Duration) int { return int(float64(limit) * d.Minutes()) }
	url := storetest.Start(t).URL
	regional, err := store.Open(store.Options{URL: url})
	require.NoError(t, err)
	defer regional.Close()
	provider := domain.Provider{Name: "p", Dialects: []domain.Dialect{domain.DialectOpenAI}, FirstByteLimit: time.Second}
	snapshot := &config.Snapshot{
		MaxRequestBytes: 1 << 20, Lease: 30 * time.Second,
		Models:   map[string]domain.Model{"m": {Name: "m", MaxOutput: 1, Channels: []string{"c"}}},
		Channels: map[string]domain.Channel{"c": {Name: "c", Provider: provider, Weight: 1, Models: map[string]string{"m": "m"}}},
		Policies: map[string]domain.Policy{"leased": {RPM: limit, RPMBurst: burst, Leased: true}},
	}
	start := func(name string) *leasedSwarm {
		secret, err := domain.NewKeySecret()
		require.NoError(t, err)
		require.NoError(t, regional.PutKey(t.Context(), domain.VirtualKey{
			ID: name, Hash: domain.HashKey(secret), Identity: "acme", Policy: "leased", State: domain.KeyActive,
		}))
		s := &leasedSwarm{secret: secret}
		t.Cleanup(s.stop)
		for range replicas {
			s.all = append(s.all, startLeased(t, url, snapshot))
		}
		return s
	}

	// Some 200 requests, far below the burst: every one counts once.
	s := start("calm")
	began := time.Now()
	s.ask(t, 1, time.Second, 20*time.Millisecond)
	assert.Greater(t, s.onLease(t), len(s.admitted)/4, "many go out on leases")
	assert.Zero(t, s.refused)
	s.stop()
	counters, err := regional.Counters(t.Context(), "acme")
	require.NoError(t, err)
	var used int
	for name, value := range counters {
		if strings.HasSuffix(name, ":rpm:key:calm") {
			used = int(value)
		}
	}
	assert.LessOrEqual(t, used, len(s.admitted), "what was leased and not used is back")
	assert.GreaterOrEqual(t, used, len(s.admitted)-gives(time.Since(began))-1, "what was used is gone")

	// The same, and then many times what the limit gives.
	s = start("flood")
	began = time.Now()
	s.ask(t, 1, time.Second/2, 20*time.Millisecond)
	s.ask(t, 4, 3*time.Second/2, 2*time.Millisecond)
	took := time.Since(began)
	t.Logf("%d admitted, %d of them on leases, %d refused in %s; the limit gives %d", len(s.admitted), s.onLease(t), s.refused, took, burst+gives(took))
	assert.LessOrEqual(t, len(s.admitted), burst+gives(took)+1, "nothing was leased at the beginning")
	assert.GreaterOrEqual(t, len(s.admitted), burst-replicas*lease, "at most a lease each is left")
	assert.Greater(t, s.refused, 100)
	assert.Greater(t, s.onLease(t), replicas*lease)
	most := 0
	for i := range s.admitted {
		for j := i; j < len(s.admitted); j++ {
			most = max(most, j-i+1-gives(s.admitted[j].Sub(s.admitted[i])))
		}
	}
	assert.LessOrEqual(t, most, burst+replicas*lease+1, "in any stretch of time")
}
