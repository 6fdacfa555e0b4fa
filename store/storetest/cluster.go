package storetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is how many hash slots a cluster has.
const slots = 16384

// StartCluster runs a cluster of nodes primaries without replicas until the
// test ends, and returns its URL.
func StartCluster(t testing.TB, nodes int) string {
	t.Helper()
	return Kind{}.StartCluster(t, nodes)
}

// StartCluster is the same with servers of kind k.
func (k Kind) StartCluster(t testing.TB, nodes int) string {
	t.Helper()
	var addrs []string
	for range nodes {
		s := k.Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "15000")
		addrs = append(addrs, s.Addr)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := join(ctx, addrs); err != nil {
		t.Fatalf("form a cluster: %v", err)
	}
	return "redis://" + addrs[0] + "?addr=" + strings.Join(addrs[1:], "&addr=")
}

// join gives every node its share of the slots, introduces it to the first one
// and waits until all of them agree.
func join(ctx context.Context, addrs []string) error {
	host, port, err := net.SplitHostPort(addrs[0])
	if err != nil {
		return fmt.Errorf("read address: %w", err)
	}
	for i, addr := range addrs {
		client := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = client.Close() }()
		first, last := i*slots/len(addrs), (i+1)*slots/len(addrs)-1
		if err := client.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
			return fmt.Errorf("give slots to %s: %w", addr, err)
		}
		if i > 0 {
			if err := client.ClusterMeet(ctx, host, port).Err(); err != nil {
				return fmt.Errorf("introduce %s: %w", addr, err)
			}
		}
	}
	for _, addr := range addrs {
		if err := agree(ctx, addr); err != nil {
			return err
		}
	}
	return nil
}

func agree(ctx context.Context, addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	for {
		info, err := client.ClusterInfo(ctx).Result()
		if err == nil && strings.Contains(info, "cluster_state:ok") {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for %s: %w", addr, errors.Join(ctx.Err(), err))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
