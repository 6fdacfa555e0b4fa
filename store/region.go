package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
	"keyway/lua"
)

// The region's own buckets are shared by every identity, so they cannot lie in
// the shard of one. What a request holds of them is a reservation of its own,
// under the region's tag, and follows that of the identity.

// regionOnly is what of d is kept beside its reservation of the region: enough
// to give it back.
func regionOnly(d domain.Decision) domain.Decision {
	_, region := split(d.Identity, d.Holds)
	return domain.Decision{RequestID: d.RequestID, Identity: d.Identity, Holds: region.holds}
}

// sweepRegion gives back what requests hold of the region although their own
// reservation has ended, or never was: half an admission or half a settlement
// whose process died. Up to most are looked at. Others with an expired lease are
// left to those who end them whole.
func (s *Store) sweepRegion(ctx context.Context, most int) error {
	index := part{tag: regionTag}
	requests, err := s.run(ctx, []call{{script: lua.Expired, keys: []string{index.open(), index.open()}, args: []any{most}}})[0].StringSlice()
	if err != nil || len(requests) == 0 {
		return err
	}
	held, err := s.readRegion(ctx, requests)
	if err != nil {
		return err
	}
	states := make([]*redis.StringCmd, len(held))
	err = s.do(ctx, "read the reservations of the region's", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for i, d := range held {
			states[i] = pipe.HGet(ctx, reservationKey(domain.ShardOf(d.Identity), d.RequestID), "state")
		}
		if _, err := pipe.Exec(ctx); !errors.Is(err, redis.Nil) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	var calls []call
	for i, d := range held {
		if states[i].Val() != "reserved" {
			_, region := split(d.Identity, d.Holds)
			calls = append(calls, closeCall(region, d, closing{used: nothingUsed}))
		}
	}
	if len(calls) == 0 {
		return nil
	}
	if err := firstError(s.run(ctx, calls)); err != nil {
		return fmt.Errorf("give back what is held of the region: %w", err)
	}
	return nil
}

// readRegion reads what requests hold of the region. One that is gone, because
// it was not renewed for keepRegion, is dropped from the index; it holds nothing.
func (s *Store) readRegion(ctx context.Context, requests []string) ([]domain.Decision, error) {
	index := part{tag: regionTag}
	var held []domain.Decision
	err := s.do(ctx, "read what is held of the region", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		cmds := make([]*redis.StringCmd, len(requests))
		for i, request := range requests {
			cmds[i] = pipe.HGet(ctx, index.reservation(request), "decision")
		}
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		for i, cmd := range cmds {
			d, err := decodeDecision(cmd.Val())
			if err == nil {
				held = append(held, d)
				continue
			}
			if err := s.client.ZRem(ctx, index.open(), requests[i]).Err(); err != nil {
				return err
			}
		}
		return nil
	})
	return held, err
}
