package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
)

// rateUnits is how many units a rate bucket counts for one request or token.
const rateUnits = 60_000

// Stats counts what the store holds, all shards together. The clock is the store's.
func (s *Store) Stats(ctx context.Context) (domain.StoreStats, error) {
	var (
		now     *redis.TimeCmd
		open    [domain.Shards]*redis.IntCmd
		length  [domain.Shards]*redis.IntCmd
		oldest  [domain.Shards]*redis.XMessageSliceCmd
		stats   domain.StoreStats
		earlier = int64(math.MaxInt64)
	)
	err := s.do(ctx, "count what the store holds", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for shard := range domain.Shards {
			open[shard] = pipe.ZCard(ctx, openKey(shard))
			length[shard] = pipe.XLen(ctx, outboxKey(shard))
			oldest[shard] = pipe.XRangeN(ctx, outboxKey(shard), "-", "+", 1)
		}
		now = pipe.Time(ctx)
		_, err := pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return domain.StoreStats{}, err
	}
	for shard := range domain.Shards {
		stats.OpenReservations += open[shard].Val()
		stats.OutboxLen += length[shard].Val()
		for _, m := range oldest[shard].Val() {
			ms, _, _ := strings.Cut(m.ID, "-")
			if at, err := strconv.ParseInt(ms, 10, 64); err == nil {
				earlier = min(earlier, at)
			}
		}
	}
	if stats.OutboxLen > 0 && earlier != math.MaxInt64 {
		stats.OutboxOldest = max(0, now.Val().Sub(time.UnixMilli(earlier)))
	}
	return stats, nil
}

// Counters returns, by their keys, the values above zero of every bucket in
// the shard of identity, of the region's own, and of the slots of channels: what
// rate buckets have in use now, in whole requests or tokens rounded up; how many
// leases live; how many micro-units or images are held or spent. It scans the store: for people and tests,
// never for the path of a request. Another identity may share the shard.
func (s *Store) Counters(ctx context.Context, identity string, channels ...string) (map[string]int64, error) {
	var keys []string
	counters := map[string]int64{}
	err := s.do(ctx, "read counters", func(ctx context.Context) error {
		for _, tag := range []string{identityTag(identity), regionTag} {
			some, err := s.scan(ctx, tag+":*")
			if err != nil {
				return err
			}
			keys = append(keys, some...)
		}
		for _, channel := range channels {
			keys = append(keys, slotKey(channel))
		}
		for _, key := range keys {
			value, err := s.counter(ctx, key)
			if err != nil {
				return err
			}
			if value > 0 {
				counters[key] = value
			}
		}
		return nil
	})
	return counters, err
}

// scan lists the keys that match pattern on every node that holds any.
func (s *Store) scan(ctx context.Context, pattern string) ([]string, error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return scanNode(ctx, s.client, pattern)
	}
	var (
		mu   sync.Mutex
		keys []string
	)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		some, err := scanNode(ctx, node, pattern)
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, some...)
		return err
	})
	return keys, err
}

func scanNode(ctx context.Context, node redis.Cmdable, pattern string) ([]string, error) {
	var keys []string
	iter := node.Scan(ctx, 0, pattern, 1000).Iterator()
	for iter.Next(ctx) {
		keys = append(keys, iter.Val())
	}
	return keys, iter.Err()
}

// counter reads one bucket; 0 for a key that is none.
func (s *Store) counter(ctx context.Context, key string) (int64, error) {
	_, name, _ := strings.Cut(key, "}:")
	kind, _, _ := strings.Cut(name, ":")
	switch kind {
	case "rpm", "tpm":
		return s.rateCounter(ctx, key)
	case "inflight", "slot":
		now, err := s.client.Time(ctx).Result()
		if err != nil {
			return 0, err
		}
		return s.client.ZCount(ctx, key, "("+strconv.FormatInt(now.UnixMilli(), 10), "+inf").Result()
	case "budget", "images":
		value, err := s.client.Get(ctx, key).Int64()
		if errors.Is(err, redis.Nil) {
			return 0, nil
		}
		return value, err
	}
	return 0, nil
}

// rateCounter drains a bucket to now, as the scripts do.
func (s *Store) rateCounter(ctx context.Context, key string) (int64, error) {
	now, err := s.client.Time(ctx).Result()
	if err != nil {
		return 0, err
	}
	value, err := s.client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var used, at, limit int64
	if _, err := fmt.Sscanf(value, "%d %d %d", &used, &at, &limit); err != nil {
		return 0, fmt.Errorf("read %s: %w", key, err)
	}
	left := used - max(0, now.UnixMilli()-at)*limit
	return (max(0, left) + rateUnits - 1) / rateUnits, nil
}
