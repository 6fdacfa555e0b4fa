package store

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
	"keyway/lua"
)

// Expired lists up to most open reservations whose lease has ended, by the
// store's own clock. An entry that cannot be read is dropped from the index. A
// shard that has lost writes names none until it is rebuilt.
// What half an admission left behind in the region's own buckets is given back
// on the way.
func (s *Store) Expired(ctx context.Context, most int) ([]domain.ExpiredReservation, error) {
	if err := s.sweepRegion(ctx, most); err != nil {
		return nil, fmt.Errorf("list expired reservations: %w", err)
	}
	calls := make([]call, domain.Shards)
	for shard := range calls {
		calls[shard] = call{script: lua.Expired, keys: []string{openKey(shard), generationKey(shard)}, args: []any{most}}
	}
	cmds := s.run(ctx, calls)
	if err := firstError(cmds); err != nil {
		return nil, fmt.Errorf("list expired reservations: %w", err)
	}
	var due []openEntry
	for shard, cmd := range cmds {
		requests, err := cmd.StringSlice()
		if err != nil {
			return nil, fmt.Errorf("list expired reservations: %w", err)
		}
		for _, request := range requests[:min(len(requests), most-len(due))] {
			due = append(due, openEntry{shard: shard, request: request})
		}
	}
	return s.readExpired(ctx, due)
}

// openEntry is one entry of a shard's index of open reservations.
type openEntry struct {
	shard   int
	request string
}

func (s *Store) readExpired(ctx context.Context, due []openEntry) ([]domain.ExpiredReservation, error) {
	if len(due) == 0 {
		return nil, nil
	}
	cmds := make([]*redis.SliceCmd, len(due))
	err := s.do(ctx, "read expired reservations", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for i, e := range due {
			cmds[i] = pipe.HMGet(ctx, reservationKey(e.shard, e.request), "decision", "renewed")
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var (
		expired []domain.ExpiredReservation
		broken  []openEntry
	)
	for i, cmd := range cmds {
		raw, _ := cmd.Val()[0].(string)
		d, err := decodeDecision(raw)
		if err != nil {
			broken = append(broken, due[i])
			continue
		}
		expired = append(expired, domain.ExpiredReservation{Decision: d, Renewed: cmd.Val()[1] != nil})
	}
	return expired, s.dropOpen(ctx, broken)
}

// dropOpen takes entries out of the index whose reservation is gone or
// unreadable: nobody could ever settle them. Each is noted for repair.
func (s *Store) dropOpen(ctx context.Context, entries []openEntry) error {
	if len(entries) == 0 {
		return nil
	}
	return s.do(ctx, "drop unreadable reservations", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for _, e := range entries {
			pipe.ZRem(ctx, openKey(e.shard), e.request)
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: repairKey(e.shard), Values: []any{"request", e.request, "why", "unreadable"}})
		}
		_, err := pipe.Exec(ctx)
		return err
	})
}
