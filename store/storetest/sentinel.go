package storetest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentinelName is what the sentinel calls the primary.
const sentinelName = "main"

// StartSentinel runs a primary, a replica and one sentinel until the test ends.
// It returns the primary, to be killed, and the URL that leads to whichever
// server is primary.
func StartSentinel(t testing.TB) (primary *Server, url string) {
	t.Helper()
	return Kind{}.StartSentinel(t)
}

// StartSentinel is the same with servers of kind k.
func (k Kind) StartSentinel(t testing.TB) (primary *Server, url string) {
	t.Helper()
	primary = k.Start(t)
	host, port, err := net.SplitHostPort(primary.Addr)
	if err != nil {
		t.Fatalf("read address: %v", err)
	}
	replica := k.Start(t, "--replicaof", host+" "+port)
	if err := caughtUp(replica.Addr); err != nil {
		t.Fatalf("start replica: %v", err)
	}
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 1\nsentinel down-after-milliseconds %[1]s 500\nsentinel failover-timeout %[1]s 2000\n",
		sentinelName, host, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatalf("write sentinel's configuration: %v", err)
	}
	sentinel, err := k.launch(conf, "--sentinel")
	if err != nil {
		t.Fatalf("start sentinel: %v", err)
	}
	t.Cleanup(sentinel.Stop)
	if err := knowsReplica(sentinel.Addr); err != nil {
		t.Fatalf("start sentinel: %v", err)
	}
	return primary, sentinel.URL + "?master_name=" + sentinelName
}

// Promoted waits until the sentinel behind url names another primary than addr.
func Promoted(ctx context.Context, url, addr string) error {
	options, err := redis.ParseFailoverURL(url)
	if err != nil {
		return fmt.Errorf("read the URL of sentinels: %w", err)
	}
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: options.SentinelAddrs[0]})
	defer func() { _ = sentinel.Close() }()
	for ctx.Err() == nil {
		at, err := sentinel.GetMasterAddrByName(ctx, sentinelName).Result()
		if err == nil && net.JoinHostPort(at[0], at[1]) != addr {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("wait for another primary: %w", ctx.Err())
}

func caughtUp(addr string) error {
	return await(addr, func(ctx context.Context, client *redis.Client) bool {
		info, err := client.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
}

func knowsReplica(addr string) error {
	return await(addr, func(ctx context.Context, client *redis.Client) bool {
		info, err := client.Info(ctx, "sentinel").Result()
		return err == nil && strings.Contains(info, "status=ok") && strings.Contains(info, "slaves=1")
	})
}

func await(addr string, ok func(context.Context, *redis.Client) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	for !ok(ctx, client) {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for %s: %w", addr, ctx.Err())
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}
