package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
)

// outboxGroup is the one consumer group of every outbox. Because there is only
// one, an acknowledged entry can be deleted at once and nothing is ever trimmed.
const outboxGroup = "ledger"

// ReadOutbox hands out entries that nobody has had yet, and then, when r.Max
// leaves room, those that have waited unacknowledged for r.ReclaimIdle. With
// r.Resume, those that the consumer itself holds come first and alone. It does
// not block; none is no error. An entry that cannot be decoded says so in its
// Err and harms no other.
func (s *Store) ReadOutbox(ctx context.Context, r domain.OutboxRead) ([]domain.OutboxEntry, error) {
	if r.Consumer == "" || r.Max < 1 {
		return nil, errors.New("read outbox: no consumer or no maximum given")
	}
	shards, err := s.filledShards(ctx)
	if err != nil || len(shards) == 0 {
		return nil, err
	}
	if r.Resume {
		if held, err := s.readAgain(ctx, r, shards); err != nil || len(held) > 0 {
			return held, err
		}
	}
	entries, err := s.readNew(ctx, r, shards)
	if err != nil || r.ReclaimIdle <= 0 || len(entries) >= r.Max {
		return entries, err
	}
	r.Max -= len(entries)
	// What was read above is held in this consumer's name by now, so it must be
	// returned whatever becomes of the second half.
	reclaimed, err := s.reclaim(ctx, r, shards)
	if err != nil && len(entries) == 0 {
		return nil, err
	}
	return append(entries, reclaimed...), nil
}

// filledShards lists the shards whose outbox holds anything, beginning at
// another one each time, so that a full one starves no other. A shard that has
// lost writes is left as it is until it is rebuilt.
func (s *Store) filledShards(ctx context.Context) ([]int, error) {
	lengths, whole := make([]*redis.IntCmd, domain.Shards), make([]*redis.IntCmd, domain.Shards)
	err := s.do(ctx, "measure outbox", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for shard := range lengths {
			lengths[shard] = pipe.XLen(ctx, outboxKey(shard))
			whole[shard] = pipe.Exists(ctx, generationKey(shard))
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var filled []int
	first := int(s.turn.Add(1) % domain.Shards)
	for i := range domain.Shards {
		shard := (first + i) % domain.Shards
		if lengths[shard].Val() > 0 && whole[shard].Val() > 0 {
			filled = append(filled, shard)
		}
	}
	return filled, nil
}

// share splits most over shards: how many shards get a turn, and how many
// entries each of them.
func share(most, shards int) (turns, each int) {
	turns = min(most, shards)
	return turns, most / turns
}

func (s *Store) readNew(ctx context.Context, r domain.OutboxRead, shards []int) ([]domain.OutboxEntry, error) {
	turns, each := share(r.Max, len(shards))
	var entries []domain.OutboxEntry
	missing := shards[:turns]
	for range 2 { // the second round is for shards that had no group yet
		cmds := make([]*redis.XStreamSliceCmd, len(missing))
		err := s.do(ctx, "read outbox", func(ctx context.Context) error {
			pipe := s.client.Pipeline()
			for i, shard := range missing {
				cmds[i] = pipe.XReadGroup(ctx, &redis.XReadGroupArgs{
					Group: outboxGroup, Consumer: r.Consumer, Streams: []string{outboxKey(shard), ">"}, Count: int64(each), Block: -1,
				})
			}
			_, err := pipe.Exec(ctx)
			if redis.HasErrorPrefix(err, "NOGROUP") || errors.Is(err, redis.Nil) {
				return nil // looked at one by one below
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		var groupless []int
		for i, cmd := range cmds {
			switch err := cmd.Err(); {
			case err == nil:
				for _, stream := range cmd.Val() {
					entries = append(entries, readEntries(missing[i], stream.Messages)...)
				}
			case redis.HasErrorPrefix(err, "NOGROUP"):
				groupless = append(groupless, missing[i])
			case !errors.Is(err, redis.Nil) && len(entries) == 0:
				return nil, s.explain(ctx, "read outbox", err)
			}
		}
		if missing = groupless; len(missing) == 0 {
			break
		}
		if err := s.makeGroups(ctx, missing); err != nil {
			return entries, err
		}
	}
	return entries, nil
}

// readAgain lists what is held in the consumer's name: of each shard up to r.Max,
// because it was not more than that when it was read.
func (s *Store) readAgain(ctx context.Context, r domain.OutboxRead, shards []int) ([]domain.OutboxEntry, error) {
	var entries []domain.OutboxEntry
	err := s.do(ctx, "read outbox again", func(ctx context.Context) error {
		cmds := make([]*redis.XStreamSliceCmd, len(shards))
		pipe := s.client.Pipeline()
		for i, shard := range shards {
			cmds[i] = pipe.XReadGroup(ctx, &redis.XReadGroupArgs{
				Group: outboxGroup, Consumer: r.Consumer, Streams: []string{outboxKey(shard), "0"}, Count: int64(r.Max), Block: -1,
			})
		}
		_, _ = pipe.Exec(ctx) // looked at one by one
		for i, cmd := range cmds {
			switch err := cmd.Err(); {
			case err == nil:
				for _, stream := range cmd.Val() {
					entries = append(entries, readEntries(shards[i], stream.Messages)...)
				}
			case !redis.HasErrorPrefix(err, "NOGROUP") && !errors.Is(err, redis.Nil):
				return err
			}
		}
		return s.countDeliveries(ctx, entries)
	})
	return entries, err
}

func (s *Store) makeGroups(ctx context.Context, shards []int) error {
	return s.do(ctx, "make outbox groups", func(ctx context.Context) error {
		for _, shard := range shards {
			err := s.client.XGroupCreateMkStream(ctx, outboxKey(shard), outboxGroup, "0").Err()
			if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
				return err
			}
		}
		return nil
	})
}

// reclaim takes over entries that waited too long, and asks how often each was handed out.
func (s *Store) reclaim(ctx context.Context, r domain.OutboxRead, shards []int) ([]domain.OutboxEntry, error) {
	turns, each := share(r.Max, len(shards))
	var entries []domain.OutboxEntry
	err := s.do(ctx, "reclaim outbox", func(ctx context.Context) error {
		cmds := make([]*redis.XAutoClaimCmd, turns)
		pipe := s.client.Pipeline()
		for i, shard := range shards[:turns] {
			cmds[i] = pipe.XAutoClaim(ctx, &redis.XAutoClaimArgs{
				Stream: outboxKey(shard), Group: outboxGroup, Consumer: r.Consumer, MinIdle: r.ReclaimIdle, Start: "0-0", Count: int64(each),
			})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		for i, cmd := range cmds {
			messages, _ := cmd.Val()
			entries = append(entries, readEntries(shards[i], messages)...)
		}
		return s.countDeliveries(ctx, entries)
	})
	return entries, err
}

func (s *Store) countDeliveries(ctx context.Context, entries []domain.OutboxEntry) error {
	if len(entries) == 0 {
		return nil
	}
	cmds := make([]*redis.XPendingExtCmd, len(entries))
	pipe := s.client.Pipeline()
	for i, e := range entries {
		cmds[i] = pipe.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: outboxKey(e.Shard), Group: outboxGroup, Start: e.ID, End: e.ID, Count: 1})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	for i, cmd := range cmds {
		for _, pending := range cmd.Val() {
			entries[i].Deliveries = pending.RetryCount
		}
	}
	return nil
}

func readEntries(shard int, messages []redis.XMessage) []domain.OutboxEntry {
	entries := make([]domain.OutboxEntry, len(messages))
	for i, m := range messages {
		record, err := decodeRecord(m.Values)
		if err == nil {
			record.SettledAt = settledAt(m.ID)
		}
		entries[i] = domain.OutboxEntry{Shard: shard, ID: m.ID, Record: record, Deliveries: 1, Err: err}
	}
	return entries
}

// settledAt is the time in the id of an entry, which the store gave it.
func settledAt(id string) time.Time {
	ms, _, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(ms, 10, 64)
	if err != nil {
		return time.Time{} // no id of a stream
	}
	return time.UnixMilli(n).UTC()
}

// AckOutbox removes entries for good; it is called after their records were
// committed. Acknowledging twice is harmless.
func (s *Store) AckOutbox(ctx context.Context, entries []domain.OutboxEntry) error {
	ids := map[int][]string{}
	for _, e := range entries {
		ids[e.Shard] = append(ids[e.Shard], e.ID)
	}
	for shard, list := range ids {
		err := s.do(ctx, "acknowledge outbox", func(ctx context.Context) error {
			_, err := s.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
				tx.XAck(ctx, outboxKey(shard), outboxGroup, list...)
				tx.XDel(ctx, outboxKey(shard), list...)
				return nil
			})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DeadLetter moves an entry, as it came, to its shard's dead stream, where
// people look at it; reason says why.
func (s *Store) DeadLetter(ctx context.Context, entry domain.OutboxEntry, reason string) error {
	outbox := outboxKey(entry.Shard)
	return s.do(ctx, "move outbox entry to the dead letters", func(ctx context.Context) error {
		messages, err := s.client.XRange(ctx, outbox, entry.ID, entry.ID).Result()
		if err != nil {
			return err
		}
		if len(messages) == 0 {
			return s.client.XAck(ctx, outbox, outboxGroup, entry.ID).Err()
		}
		values := []any{"id", entry.ID, "reason", reason}
		for name, value := range messages[0].Values {
			values = append(values, name, value)
		}
		_, err = s.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			tx.XAdd(ctx, &redis.XAddArgs{Stream: deadKey(entry.Shard), Values: values})
			tx.XAck(ctx, outbox, outboxGroup, entry.ID)
			tx.XDel(ctx, outbox, entry.ID)
			return nil
		})
		if err != nil {
			return fmt.Errorf("write %s: %w", deadKey(entry.Shard), err)
		}
		return nil
	})
}
