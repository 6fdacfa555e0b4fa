package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
	"keyway/lua"
)

// followShare is the part of a request's lease for which its follower has it for
// itself: what is left is the time in which another one can take it over before
// the sweeper does.
const followShare = 2

// followCall is one call of the follow script. Without following it takes over.
func followCall(key openEntry, follower string, lease, open time.Duration, following []byte) call {
	return call{
		script: lua.Follow,
		keys:   []string{reservationKey(key.shard, key.request), openKey(key.shard), followedKey(key.shard)},
		args:   []any{key.request, follower, lease.Milliseconds(), open.Milliseconds(), keepClosed.Milliseconds(), following},
	}
}

// Follow notes that follower follows the responses that requests have made in
// the background, each for half of the lease of its decision, or goes on with
// that. Each of list is the settlement of its request as far as it is known: its
// record has all but the end, and Stored names the response. The answers are in
// the order of list; after an error some may have been noted.
func (s *Store) Follow(ctx context.Context, follower string, list []domain.Settlement) ([]domain.Following, error) {
	return s.noteFollower(ctx, follower, list, func(d domain.Decision) time.Duration { return d.Lease / followShare })
}

// HandOver leaves the responses of list, whose follower has to stop, to whoever
// takes over next, and forgets those whose requests have ended. Until then each
// is held still, and kept open for its lease.
func (s *Store) HandOver(ctx context.Context, follower string, list []domain.Settlement) ([]domain.Following, error) {
	return s.noteFollower(ctx, follower, list, func(domain.Decision) time.Duration { return 0 })
}

func (s *Store) noteFollower(ctx context.Context, follower string, list []domain.Settlement, lease func(domain.Decision) time.Duration) ([]domain.Following, error) {
	answers := make([]domain.Following, 0, len(list))
	for len(list) > 0 {
		batch := list[:min(len(list), renewBatch)]
		list = list[len(batch):]
		calls := make([]call, len(batch))
		for i, one := range batch {
			raw, err := keywayv1.MarshalSettlement(one)
			if err != nil {
				return nil, fmt.Errorf("follow response: %w", err)
			}
			d := one.Decision
			calls[i] = followCall(openEntry{domain.ShardOf(d.Identity), d.RequestID}, follower, lease(d), d.Lease, raw)
		}
		for _, cmd := range s.run(ctx, calls) {
			status, _, err := readFollow(cmd)
			if err != nil {
				return nil, fmt.Errorf("follow response: %w", err)
			}
			answers = append(answers, status)
		}
	}
	return answers, nil
}

// readFollow reads the answer of followCall.
func readFollow(cmd *redis.Cmd) (status domain.Following, following string, err error) {
	reply, err := cmd.Slice()
	if err != nil {
		return 0, "", err
	}
	if len(reply) != 2 {
		return 0, "", fmt.Errorf("the script answered %d values", len(reply))
	}
	number, ok := reply[0].(int64)
	following, text := reply[1].(string)
	if !ok || !text || number < 0 || number > int64(domain.FollowingElsewhere) {
		return 0, "", fmt.Errorf("the script answered %v", reply)
	}
	return domain.Following(number), following, nil
}

// TakeOver gives follower up to most responses whose follower has died or handed
// them over, the oldest of each shard first. lease is that of the region. What
// cannot be read stays with the sweeper.
func (s *Store) TakeOver(ctx context.Context, follower string, lease time.Duration, most int) ([]domain.Settlement, error) {
	calls := make([]call, domain.Shards)
	for shard := range calls {
		// No generation counts: what was lost with writes is only asked for once more.
		calls[shard] = call{script: lua.Expired, keys: []string{followedKey(shard), followedKey(shard)}, args: []any{most}}
	}
	cmds := s.run(ctx, calls)
	if err := firstError(cmds); err != nil {
		return nil, fmt.Errorf("list responses without a follower: %w", err)
	}
	calls = calls[:0]
	var asked []openEntry
	for shard, cmd := range cmds {
		requests, err := cmd.StringSlice()
		if err != nil {
			return nil, fmt.Errorf("list responses without a follower: %w", err)
		}
		for _, request := range requests[:min(len(requests), most-len(calls))] {
			asked = append(asked, openEntry{shard, request})
			calls = append(calls, followCall(openEntry{shard, request}, follower, lease/followShare, lease, nil))
		}
	}
	if len(calls) == 0 {
		return nil, nil
	}
	var (
		taken  []domain.Settlement
		broken []openEntry
		errs   []error
	)
	for i, cmd := range s.run(ctx, calls) {
		status, following, err := readFollow(cmd)
		if err == nil && status == domain.FollowingHeld {
			var one domain.Settlement
			if one, err = keywayv1.UnmarshalSettlement([]byte(following)); err == nil {
				taken = append(taken, one)
			} else {
				broken = append(broken, asked[i])
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("take over response: %w", err))
		}
	}
	return taken, errors.Join(append(errs, s.dropFollowed(ctx, broken))...)
}

// dropFollowed leaves to the sweeper what nobody can read.
func (s *Store) dropFollowed(ctx context.Context, entries []openEntry) error {
	if len(entries) == 0 {
		return nil
	}
	return s.do(ctx, "drop unreadable responses", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for _, e := range entries {
			pipe.ZRem(ctx, followedKey(e.shard), e.request)
		}
		_, err := pipe.Exec(ctx)
		return err
	})
}
