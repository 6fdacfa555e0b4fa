package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
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
		values, err := s.values(ctx, keys...)
		if err != nil {
			return err
		}
		for i, value := range values {
			if value > 0 {
				counters[keys[i]] = value
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

// values reads buckets, in the order of keys; 0 for a key that is none.
func (s *Store) values(ctx context.Context, keys ...string) ([]int64, error) {
	now, err := s.client.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	values := make([]int64, 0, len(keys))
	for chunk := range slices.Chunk(keys, readChunk) {
		pipe := s.client.Pipeline()
		cmds := make([]redis.Cmder, len(chunk))
		for i, key := range chunk {
			cmds[i] = readValue(ctx, pipe, key, now)
		}
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		for i, cmd := range cmds {
			value, err := valueOf(cmd, chunk[i], now)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", chunk[i], err)
			}
			values = append(values, value)
		}
	}
	return values, nil
}

// kindOf is the kind of bucket, slots included, that key names; others have some other word there.
func kindOf(key string) string {
	_, name, _ := strings.Cut(key, "}:")
	kind, _, _ := strings.Cut(name, ":")
	return kind
}

// readValue asks for one bucket; nil for a key that is none.
func readValue(ctx context.Context, pipe redis.Pipeliner, key string, now time.Time) redis.Cmder {
	switch kindOf(key) {
	case "rpm", "tpm", "budget", "images":
		return pipe.Get(ctx, key)
	case "inflight", "slot":
		return pipe.ZCount(ctx, key, "("+strconv.FormatInt(now.UnixMilli(), 10), "+inf")
	}
	return nil
}

// valueOf reads the answer. A rate bucket is drained to now, as the scripts do.
func valueOf(cmd redis.Cmder, key string, now time.Time) (int64, error) {
	switch cmd := cmd.(type) {
	case *redis.IntCmd:
		return cmd.Result()
	case *redis.StringCmd:
		if errors.Is(cmd.Err(), redis.Nil) {
			return 0, nil
		}
		if kind := kindOf(key); kind != "rpm" && kind != "tpm" {
			return cmd.Int64()
		}
		var used, at, limit int64
		if _, err := fmt.Sscanf(cmd.Val(), "%d %d %d", &used, &at, &limit); err != nil {
			return 0, err
		}
		left := used - max(0, now.UnixMilli()-at)*limit
		return (max(0, left) + rateUnits - 1) / rateUnits, nil
	}
	return 0, nil
}
