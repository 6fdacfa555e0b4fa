package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

const (
	// keepExplained is for how long a request can be explained.
	keepExplained = 24 * time.Hour
	// mostExplained bounds how many are kept in each shard, at 1 to 2 KiB each.
	mostExplained = 5000
	// longestUsage is the largest raw usage, in bytes, that is kept with them.
	longestUsage = 512
)

// toldOf is what explains the end of a request, of whose record the outbox has
// the encoding; empty where that does as well.
func toldOf(record domain.UsageRecord) ([]byte, error) {
	if len(record.RawUsage) <= longestUsage {
		return nil, nil
	}
	record.RawUsage = nil // it is in the ledger
	return encodeRecord(record)
}

// Explain tells how a request was routed and, once it has ended, how; from 24
// hours after its end on, or when too many have ended since, it is
// domain.ErrNotFound. Whose request it was is not known beforehand, so every
// shard is asked: for people, never for the path of a request.
func (s *Store) Explain(ctx context.Context, requestID string) (domain.Explanation, error) {
	var ended, open [domain.Shards]*redis.StringCmd
	err := s.do(ctx, "explain request", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for shard := range domain.Shards {
			ended[shard] = pipe.HGet(ctx, explainedKey(shard), requestID)
			open[shard] = pipe.HGet(ctx, reservationKey(shard, requestID), "decision")
		}
		_, err := pipe.Exec(ctx)
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	if err != nil {
		return domain.Explanation{}, err
	}
	for shard := range domain.Shards {
		if raw := ended[shard].Val(); raw != "" {
			return s.readExplained(ctx, raw)
		}
		if raw := open[shard].Val(); raw != "" {
			d, err := decodeDecision(raw)
			return domain.Explanation{Decision: d}, err
		}
	}
	return domain.Explanation{}, fmt.Errorf("explain request: %w", domain.ErrNotFound)
}

// readExplained reads what the script kept: the length of the decision, a
// colon, the decision, the record.
func (s *Store) readExplained(ctx context.Context, raw string) (domain.Explanation, error) {
	length, rest, _ := strings.Cut(raw, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) {
		return domain.Explanation{}, errors.New("explain request: what was kept cannot be read")
	}
	e := domain.Explanation{Ended: true}
	if n > 0 {
		if e.Decision, err = decodeDecision(rest[:n]); err != nil {
			return domain.Explanation{}, fmt.Errorf("explain request: %w", err)
		}
	}
	var message keywayv1.UsageRecord
	if err := proto.Unmarshal([]byte(rest[n:]), &message); err != nil {
		return domain.Explanation{}, fmt.Errorf("explain request: %w", err)
	}
	e.Record = keywayv1.RecordFromProto(&message)
	now, err := s.now(ctx)
	if err != nil {
		return domain.Explanation{}, err
	}
	if now.Sub(e.Record.EndedAt) > keepExplained {
		return domain.Explanation{}, fmt.Errorf("explain request: %w", domain.ErrNotFound)
	}
	return e, nil
}

// now is the store's own clock.
func (s *Store) now(ctx context.Context) (now time.Time, err error) {
	err = s.do(ctx, "read the store's clock", func(ctx context.Context) (err error) {
		now, err = s.client.Time(ctx).Result()
		return err
	})
	return now, err
}
