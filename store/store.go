package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"keyway/domain"
)

// keepClosed is how long a reservation is remembered after its last sign of
// life: longer than the longest stream and the longest wait in a journal.
const keepClosed = 24 * time.Hour

// keepRegion is the same for what a request holds of the region's own buckets,
// where only rates and leases are counted: after minutes they have drained and
// ended by themselves.
const keepRegion = 10 * time.Minute

const (
	// callTimeout bounds each wait of a call, to write and to read. It is long,
	// because a reader on a busy machine may come late to bytes that lie there;
	// the guard ends the waits for a silent server.
	callTimeout = 10 * time.Second
	// dialTimeout is long, because a busy machine is slow to accept: a server
	// that is gone refuses at once, and one that is frozen the guard finds.
	dialTimeout = 5 * time.Second
	// poolTimeout bounds the wait for a connection where the caller's own
	// context does not.
	poolTimeout = 30 * time.Second
)

// Pauses before a call follows its keys to another node of a cluster. They are
// there already when the first node says so, or are about to be.
const (
	minRedirect = time.Millisecond
	maxRedirect = 32 * time.Millisecond
)

// DefaultPoolSize is the number of connections to each server.
const DefaultPoolSize = 64

// Options says where the store is. URL is required.
type Options struct {
	// URL is redis:// or rediss:// (TLS) with user, password, host, port and
	// database. More than one addr parameter, or cluster=true, makes it a
	// cluster: redis://a:6379?addr=b:6379&addr=c:6379. A master_name parameter
	// makes the hosts sentinels. unix:///path is a server on this machine.
	URL string
	// Log takes one line for each change of health; default slog.Default().
	Log *slog.Logger
	// PoolSize is the number of connections to each server; default DefaultPoolSize.
	PoolSize int
	// OnChange is called after Alive changed, from the goroutine that saw it:
	// it must not block. Nil is none.
	OnChange func()
}

// Store is the regional store. It is safe for concurrent use.
//
// Every method fails with domain.ErrStoreDown when the store cannot be reached
// or cannot serve; the outcome of a write is then unknown, and repeating it is
// right, because every act is idempotent.
type Store struct {
	client redis.UniversalClient
	guard  *guard
	log    *slog.Logger
	// turn makes probes and outbox reads begin at another shard each time.
	turn atomic.Uint64
	// generations are the highest that this process has seen, by shard.
	generations [domain.Shards]atomic.Int64
}

// quietClient keeps the client library from writing to standard error on its
// own: what it has to say comes back as an error, and the guard logs changes.
var quietClient = sync.OnceFunc(func() { logging.Disable() })

// Open makes a Store. It does no I/O; the only errors are those of the URL.
func Open(o Options) (*Store, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.PoolSize <= 0 {
		o.PoolSize = DefaultPoolSize
	}
	quietClient()
	g := newGuard(o)
	options, err := parse(o.URL)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	g.tls = options.TLSConfig
	options.Dialer = g.dial
	options.TLSConfig = nil // the guard's dialer does it, below the pool
	options.Protocol = 2
	options.DisableIdentity = true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	// No retries below us: after a lost connection the first command may still
	// lie in a stopped server's socket, and only the caller knows what to undo.
	options.MaxRetries = -1
	options.DialerRetries = 1
	options.MaxRedirects = 8
	options.MinRetryBackoff = minRedirect
	options.MaxRetryBackoff = maxRedirect
	options.ContextTimeoutEnabled = true
	options.DialTimeout = dialTimeout
	options.ReadTimeout = callTimeout
	options.WriteTimeout = callTimeout
	// The wait for a connection ends with the caller's context or by the guard's
	// verdict: a queue behind a store that answers is load, not an outage.
	options.PoolTimeout = poolTimeout
	options.PoolSize = o.PoolSize
	options.PipelinePoolSize = -1 // nearly every act is a pipeline: one pool, one bound
	if options.MasterName == "" {
		for _, addr := range options.Addrs {
			g.node(networkOf(addr), addr)
		}
	}
	client := redis.NewUniversalClient(options)
	if _, ok := client.(*redis.ClusterClient); ok {
		client.AddHook(onceEach{})
	}
	return &Store{client: client, guard: g, log: o.Log}, nil
}

// networkOf tells the path of a Unix socket from host and port, as the client
// library does.
func networkOf(addr string) string {
	if strings.HasPrefix(addr, "/") {
		return "unix"
	}
	return "tcp"
}

// parse reads the URL of a single server, of sentinels or of a cluster.
func parse(raw string) (*redis.UniversalOptions, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("the URL cannot be read") // its text may hold a password
	}
	query := u.Query()
	cluster, _ := strconv.ParseBool(query.Get("cluster"))
	query.Del("cluster")
	u.RawQuery = query.Encode()
	switch {
	case query.Has("master_name"):
		o, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, fmt.Errorf("read the URL of sentinels: %w", err)
		}
		return &redis.UniversalOptions{
			Addrs: o.SentinelAddrs, MasterName: o.MasterName, DB: o.DB, TLSConfig: o.TLSConfig,
			Username: o.Username, Password: o.Password,
			SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
		}, nil
	case cluster || query.Has("addr"):
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, fmt.Errorf("read the URL of a cluster: %w", err)
		}
		return &redis.UniversalOptions{
			Addrs: o.Addrs, IsClusterMode: true, TLSConfig: o.TLSConfig,
			Username: o.Username, Password: o.Password,
		}, nil
	}
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, fmt.Errorf("read the URL: %w", err)
	}
	return &redis.UniversalOptions{
		Addrs: []string{o.Addr}, DB: o.DB, TLSConfig: o.TLSConfig, Username: o.Username, Password: o.Password,
	}, nil
}

// Start begins to watch over the store until ctx ends or Close is called.
// Without it calls to a frozen server wait for their own deadlines.
func (s *Store) Start(ctx context.Context) { s.guard.start(ctx) }

// Alive reports whether calls are let through to the store. It costs nothing
// and is true until the guard knows better.
func (s *Store) Alive() bool { return s.guard.alive() }

// Close stops the guard and closes every connection. Calls that wait fail.
func (s *Store) Close() error {
	s.guard.close()
	if err := s.client.Close(); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// Ping asks the store for a sign of life.
func (s *Store) Ping(ctx context.Context) error {
	return s.do(ctx, "ping store", func(ctx context.Context) error {
		return s.client.Ping(ctx).Err()
	})
}

// Probe writes a value and reads it back, at another shard each time. A full
// or read-only store fails it.
func (s *Store) Probe(ctx context.Context) error {
	turn := s.turn.Add(1)
	key, want := probeKey(int(turn%domain.Shards)), strconv.FormatUint(turn, 10)
	return s.do(ctx, "probe store", func(ctx context.Context) error {
		if err := s.client.Set(ctx, key, want, time.Minute).Err(); err != nil {
			return err
		}
		// Another instance may have written since: that one could be read is enough.
		return s.client.Get(ctx, key).Err()
	})
}
