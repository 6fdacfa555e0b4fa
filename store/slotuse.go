package store

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// SlotsInUse counts the slots that are taken of each channel, by the order of
// channels. A slot whose lease has ended may still be among them, until the next
// request takes one.
func (s *Store) SlotsInUse(ctx context.Context, channels []string) ([]int64, error) {
	if len(channels) == 0 {
		return nil, nil
	}
	cmds := make([]*redis.IntCmd, len(channels))
	err := s.do(ctx, "count slots in use", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for i, channel := range channels {
			cmds[i] = pipe.ZCard(ctx, slotKey(channel))
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	used := make([]int64, len(channels))
	for i, cmd := range cmds {
		used[i] = cmd.Val()
	}
	return used, nil
}
