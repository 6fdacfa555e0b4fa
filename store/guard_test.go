package store

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/store/storetest"
)

// lines collects a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

type guarded struct {
	*Store
	server  *storetest.Server
	log     *lines
	changes *atomic.Int64
}

func guardedStore(t *testing.T) guarded {
	t.Helper()
	g := guarded{server: storetest.Start(t), log: &lines{}, changes: &atomic.Int64{}}
	g.Store = open(t, Options{URL: g.server.URL, Log: slog.New(slog.NewTextHandler(g.log, nil)), OnChange: func() { g.changes.Add(1) }})
	require.NoError(t, rebuild(g.Store))
	g.Start(context.Background())
	g.Start(context.Background()) // once is enough, twice is harmless
	return g
}

func TestAFrozenStoreFailsCallsAtOnceAndComesBack(t *testing.T) {
	t.Parallel()
	s := guardedStore(t)
	ctx := context.Background()
	require.NoError(t, s.Probe(ctx))
	require.True(t, s.Alive())

	s.server.Pause(t)
	began := time.Now()
	const waiters = 300 // more than there are connections
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			o := newTenant()
			_, err := s.Admit(ctx, o.decide(o.hold(domain.LimitBudgetDay, 10, 1)))
			assert.ErrorIs(t, err, domain.ErrStoreDown)
		})
	}
	wg.Wait()
	waited := time.Since(began)
	assert.Less(t, waited, callTimeout, "calls end before any of their own timeouts")
	assert.False(t, s.Alive())
	t.Logf("%d waiting calls failed within %v", waiters, waited)

	began = time.Now()
	for range 1000 {
		_, err := s.Key(ctx, "any")
		require.ErrorIs(t, err, domain.ErrStoreDown)
	}
	assert.Less(t, time.Since(began), time.Second, "new calls do not touch the network")
	eventually(t, "the change is told", func() bool { return s.changes.Load() == 1 })
	assert.Equal(t, 1, s.log.count("does not answer"), "one line for each change")

	s.server.Resume(t)
	eventually(t, "it comes back by itself", s.Alive)
	require.NoError(t, s.Probe(ctx))
	eventually(t, "the change is told", func() bool { return s.changes.Load() == 2 })
	assert.Equal(t, 1, s.log.count("answers again"))
	o := newTenant()
	admit(t, s.Store, o.decide(o.hold(domain.LimitBudgetDay, 10, 1)))
}

func TestAStoreBehindASocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "store") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	server := storetest.Start(t, "--unixsocket", path, "--unixsocketperm", "700")
	s := open(t, Options{URL: "unix://" + path + "?db=1"})
	require.NoError(t, rebuild(s))
	s.Start(context.Background())
	ctx := context.Background()
	require.NoError(t, s.Probe(ctx))
	client := redis.NewClient(&redis.Options{Addr: server.Addr, DB: 1})
	t.Cleanup(func() { _ = client.Close() })
	keys, err := client.DBSize(ctx).Result()
	require.NoError(t, err)
	assert.Positive(t, keys, "it is the server and the database that the URL names")

	server.Pause(t)
	require.ErrorIs(t, s.Ping(ctx), domain.ErrStoreDown)
	assert.False(t, s.Alive())
	server.Resume(t)
	eventually(t, "it comes back by itself", s.Alive)
	require.NoError(t, s.Probe(ctx))
}

func TestACrashedStoreComesBack(t *testing.T) {
	t.Parallel()
	s := guardedStore(t)
	ctx := context.Background()
	o := newTenant()
	d := o.decide(o.hold(domain.LimitBudgetDay, 10, 4))
	admit(t, s.Store, d)
	s.server.Kill()
	_, err := s.Admit(ctx, o.decide(o.hold(domain.LimitBudgetDay, 10, 1)))
	require.ErrorIs(t, err, domain.ErrStoreDown)
	eventually(t, "the crash is seen", func() bool { return !s.Alive() })
	require.ErrorIs(t, s.Ping(ctx), domain.ErrStoreDown)
	s.server.Restart(t)
	eventually(t, "it comes back", s.Alive)
	got, err := s.Settle(ctx, ends(d, 1, 3))
	require.NoError(t, err)
	assert.Contains(t, []domain.SettleResult{domain.SettleDone, domain.SettleUnknown}, got, "a crash may cost the last second")
	assert.Equal(t, map[string]int64{"budget_day:key": 3}, counters(t, s.Store, o))
}

func TestAStoreThatWasNeverThere(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	s := open(t, Options{URL: "redis://" + addr})
	require.ErrorIs(t, s.Ping(context.Background()), domain.ErrStoreDown)
	s.Start(context.Background())
	eventually(t, "it is found down", func() bool { return !s.Alive() })
}

// It runs alone: beside other tests the machine's silence would be judged.
func TestABurstIsNoFreeze(t *testing.T) {
	s := guardedStore(t)
	var wg sync.WaitGroup
	for range 1100 {
		wg.Go(func() {
			o := newTenant()
			d := o.decide(o.hold(domain.LimitTPM, 1000, 10), o.hold(domain.LimitInFlight, 1, 1))
			a, err := s.Admit(context.Background(), d)
			assert.NoError(t, err)
			assert.Nil(t, a.Refusal)
		})
	}
	wg.Wait()
	assert.Zero(t, s.changes.Load())
}

func TestTheCallersOwnLimitsCount(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	s := open(t, Options{URL: server.URL}) // no guard
	require.NoError(t, s.Ping(context.Background()))
	server.Pause(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Ping(ctx), domain.ErrStoreDown)
	cancelled, stop := context.WithCancel(context.Background())
	stop()
	err := s.Ping(cancelled)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, domain.ErrStoreDown)
	server.Resume(t)
}

func TestALateReserveOfAFrozenStoreIsRefused(t *testing.T) {
	t.Parallel()
	s := guardedStore(t)
	ctx := context.Background()
	o := newTenant()
	d := o.decide(o.hold(domain.LimitBudgetDay, 10, 1), o.hold(domain.LimitInFlight, 1, 1))
	require.NoError(t, s.Ping(ctx))
	s.server.Pause(t)
	_, err := s.Admit(ctx, d) // its bytes lie in the socket of the stopped server
	require.ErrorIs(t, err, domain.ErrStoreDown)
	s.server.Resume(t)
	eventually(t, "it can be refunded", func() bool { return s.Refund(ctx, d) == nil })
	time.Sleep(50 * time.Millisecond)
	assert.Empty(t, counters(t, s.Store, o))
}

func TestPatienceGrowsWithTheCrowd(t *testing.T) {
	t.Parallel()
	assert.GreaterOrEqual(t, crowd(), 1.0)
	for crowded, want := range map[float64]int{1: 5, 2: 5, 3: 7, 4: 10, 8: 20, 100: 30} {
		assert.Equal(t, want, patience(crowded), "%v threads for each CPU", crowded)
	}
}

// fakeServer answers every ping as it is told and returns its URL.
func fakeServer(t *testing.T, answer func(n int) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return "redis://" + serveFake(t, l, answer)
}

func serveFake(t *testing.T, l net.Listener, answer func(n int) string) (addr string) {
	t.Helper()
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				buf := make([]byte, len(pingCommand))
				for n := 0; ; n++ {
					if _, err := conn.Read(buf); err != nil {
						return
					}
					if _, err := conn.Write([]byte(answer(n))); err != nil {
						return
					}
				}
			})
		}
	})
	return l.Addr().String()
}

func TestTLSIsWatchedToo(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	cfg := &tls.Config{Certificates: web.TLS.Certificates}
	web.Close()
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	require.NoError(t, err)
	var n atomic.Int64
	addr := serveFake(t, l, func(int) string { n.Add(1); return "+PONG\r\n" })
	trusting := open(t, Options{URL: "rediss://" + addr + "?skip_verify=true"})
	trusting.Start(context.Background())
	eventually(t, "twenty answers", func() bool { return n.Load() > 20 })
	assert.True(t, trusting.Alive())
	wary := open(t, Options{URL: "rediss://" + addr})
	require.ErrorIs(t, wary.Ping(context.Background()), domain.ErrStoreDown, "the certificate is nobody's")
}

func TestWhichAnswersAreSignsOfLife(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		answer string
		alive  bool
	}{
		{"pong", "+PONG\r\n", true},
		{"a password is wanted", "-NOAUTH Authentication required.\r\n", true},
		{"still reading its data", "-LOADING Redis is loading the dataset in memory\r\n", false},
		{"a replica without its primary", "-MASTERDOWN Link with MASTER is down\r\n", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			s := open(t, Options{URL: fakeServer(t, func(int) string { n.Add(1); return row.answer })})
			s.Start(context.Background())
			if row.alive {
				eventually(t, "twenty answers", func() bool { return n.Load() > 20 })
				assert.True(t, s.Alive())
				return
			}
			eventually(t, "it is found down", func() bool { return !s.Alive() })
		})
	}
}

func TestASlowStoreDoesNotFlap(t *testing.T) {
	t.Parallel()
	log := &lines{}
	url := fakeServer(t, func(int) string {
		time.Sleep(4 * promptReply)
		return "+PONG\r\n"
	})
	s := open(t, Options{URL: url, Log: slog.New(slog.NewTextHandler(log, nil))})
	s.Start(context.Background())
	eventually(t, "it is found down", func() bool { return !s.Alive() })
	time.Sleep(20 * promptReply)
	assert.False(t, s.Alive())
	eventually(t, "one line for each change", func() bool { return log.count("level=") == 1 })
}
