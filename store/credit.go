package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
	"keyway/lua"
)

// CreditMark is the entry of the ledger up to which every shard has been told
// what identities have paid in; 0 when one has not, or has lost it. Whatever came
// later has to be brought by SetCredits.
func (s *Store) CreditMark(ctx context.Context) (entry int64, err error) {
	err = s.do(ctx, "read the marks of credits", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		cmds := make([]*redis.StringCmd, domain.Shards)
		for shard := range cmds {
			cmds[shard] = pipe.Get(ctx, creditMarkKey(shard))
		}
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		for shard, cmd := range cmds {
			mark, err := cmd.Int64()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			if shard == 0 || mark < entry {
				entry = mark
			}
		}
		return nil
	})
	return entry, err
}

// SetCredits brings what identities have paid in, and then marks that every
// credit up to entry is here. A sum that is older than the store's changes
// nothing, so all of it can be repeated.
func (s *Store) SetCredits(ctx context.Context, credits []domain.Credit, entry int64) error {
	for chunk := range slices.Chunk(credits, readChunk) {
		calls := make([]call, len(chunk))
		for i, c := range chunk {
			calls[i] = call{
				script: lua.Credit,
				keys:   []string{creditKey(c.Identity)},
				args:   []any{min(max(c.Micros, -maxBudget), maxBudget), c.Entry},
			}
		}
		if err := firstError(s.run(ctx, calls)); err != nil {
			return fmt.Errorf("set credits: %w", err)
		}
	}
	return s.do(ctx, "mark credits", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for shard := range domain.Shards {
			pipe.Set(ctx, creditMarkKey(shard), entry, 0)
		}
		_, err := pipe.Exec(ctx)
		return err
	})
}

// readCredits adds what identities have paid in to the counters of a book.
func (s *Store) readCredits(ctx context.Context, book *domain.BudgetBook) error {
	return s.do(ctx, "read credits", func(ctx context.Context) error {
		keys, err := s.scan(ctx, "{s??}:"+domain.CreditPrefix+"*")
		if err != nil {
			return err
		}
		for chunk := range slices.Chunk(keys, readChunk) {
			pipe := s.client.Pipeline()
			cmds := make([]*redis.StringCmd, len(chunk))
			for i, key := range chunk {
				cmds[i] = pipe.HGet(ctx, key, "micros")
			}
			if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			for i, cmd := range cmds {
				micros, err := cmd.Int64()
				if err != nil && !errors.Is(err, redis.Nil) {
					return fmt.Errorf("read credit %s: %w", chunk[i], err)
				}
				_, name, _ := strings.Cut(chunk[i], "}:")
				book.Counters = append(book.Counters, domain.BudgetCounter{Name: name, Micros: micros})
			}
		}
		return nil
	})
}
