package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
	"keyway/lua"
)

// A store can lose what it had acknowledged: it is emptied, it fails over to a
// node that lags, it is restored from an old snapshot. Its windows then count
// too little, and budgets would be sold twice. Each shard therefore has a
// generation, a number that a worker moves on every second. Where it is missing,
// or lower than somebody has seen it, writes were lost: nothing that is limited
// by a window is admitted there, nothing is drained or swept, until the windows
// are rebuilt from the ledger. A loss of less than a second may go unseen.

const (
	// lookLife is how long one attempt of a rebuild may take.
	lookLife = 10 * time.Minute
	// rebuildChunk bounds the windows of one script.
	rebuildChunk = 500
	// ledgerSlack is how much newer than a shard's generation an entry of the
	// ledger may be: both times are the store's, but those of two of its nodes, and
	// a generation is moved on every second.
	ledgerSlack = 10 * time.Second
)

// seen is the highest generation of shard that this process knows of.
func (s *Store) seen(shard int) int64 { return s.generations[shard].Load() }

func (s *Store) see(shard int, generation int64) {
	for known := s.seen(shard); generation > known; known = s.seen(shard) {
		if s.generations[shard].CompareAndSwap(known, generation) {
			return
		}
	}
}

// Advance moves the generation of every shard on and lists the shards that have
// lost writes. written is when the newest entry of the ledger was settled, by the
// store's clock: a shard that was not advanced since is older than what it has
// given away already. It is for a start, at which nothing has been seen yet; later a zero time will do.
func (s *Store) Advance(ctx context.Context, written time.Time) (lost []int, err error) {
	var least int64
	if !written.IsZero() {
		least = written.Add(-ledgerSlack).UnixMilli()
	}
	calls := make([]call, domain.Shards)
	for shard := range calls {
		calls[shard] = call{script: lua.Advance, keys: []string{generationKey(shard)}, args: []any{max(least, s.seen(shard))}}
	}
	for shard, cmd := range s.run(ctx, calls) {
		generation, callErr := cmd.Int64()
		switch {
		case callErr != nil:
			err = callErr // a cluster may have lost one node only
		case generation == 0:
			lost = append(lost, shard)
		default:
			s.see(shard, generation)
		}
	}
	if err != nil {
		return lost, fmt.Errorf("advance generations: %w", err)
	}
	return lost, nil
}

// ErrOvertaken says that somebody else rebuilds a shard, or that it changed
// meanwhile; look again.
var ErrOvertaken = errors.New("somebody else has rebuilt the shard, or begun to")

// shardLook is what one attempt of a rebuild found in a shard.
type shardLook struct {
	shard int
	name  string
	// pending are the settlements in the outbox, by request.
	pending map[string]domain.UsageRecord
	// open are the reservations of the shard.
	open []domain.Decision
	// windows are the names of the shard's counters.
	windows []string
}

// Rebuild brings the windows of shards that have lost writes to what they ought
// to count: what the ledger says, plus what lies in the outbox, plus what open
// reservations hold. Then it sets their generations, and what windows limit is
// admitted again. sums reads the ledger: see domain.BudgetSums; it must begin at
// domain.RebuildBegin.
//
// Why it is exact: nobody drains the shard, so what is in the ledger stays the
// same, and nobody reserves windows there. What does happen, settlements and
// refunds of requests that still run, adds to a window. The outbox, the holds and
// the counters are read in one transaction after the ledger; what the counters
// lack is the difference, and adding it commutes with all that happens after.
// A shard can be rebuilt by several at once and any number of times: only the
// one that looked last may write, until there is a generation.
//
// Two things it cannot know. What lay in the outbox when a store was emptied is
// lost, unless a worker had read it; that worker's batch is missing from the
// windows when it reaches the ledger after the sums were read. And a correction
// that somebody makes in the same second may count twice. The comparison of
// budgets with the ledger shows both.
func (s *Store) Rebuild(ctx context.Context, shards []int, sums func(context.Context, []string) (domain.BudgetSums, error)) error {
	looks := make([]*shardLook, len(shards))
	var requests []string
	for i, shard := range shards {
		look, err := s.look(ctx, shard)
		if err != nil {
			return fmt.Errorf("look at shard %d: %w", shard, err)
		}
		for request := range look.pending {
			requests = append(requests, request)
		}
		for _, d := range look.open {
			requests = append(requests, d.RequestID)
		}
		looks[i] = look
	}
	if err := s.findWindows(ctx, looks); err != nil {
		return fmt.Errorf("find windows: %w", err)
	}
	told, err := sums(ctx, requests)
	if err != nil {
		return fmt.Errorf("sum windows: %w", err)
	}
	for _, look := range looks {
		if err := s.rebuildShard(ctx, look, told); err != nil {
			return fmt.Errorf("rebuild shard %d: %w", look.shard, err)
		}
	}
	return nil
}

// look begins an attempt.
func (s *Store) look(ctx context.Context, shard int) (*shardLook, error) {
	look := &shardLook{shard: shard, name: rand.Text(), pending: map[string]domain.UsageRecord{}}
	err := s.do(ctx, "look at a shard", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		pipe.Set(ctx, lookKey(shard), look.name, lookLife)
		outbox := pipe.XRange(ctx, outboxKey(shard), "-", "+")
		open := pipe.ZRange(ctx, openKey(shard), 0, -1)
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		look.addPending(outbox.Val())
		for requests := open.Val(); len(requests) > 0; {
			chunk := requests[:min(len(requests), readChunk)]
			requests = requests[len(chunk):]
			some, err := s.readOpen(ctx, openEntries(shard, chunk))
			if err != nil {
				return err
			}
			look.open = append(look.open, some...)
		}
		return nil
	})
	return look, err
}

func (l *shardLook) addPending(messages []redis.XMessage) {
	for _, e := range readEntries(l.shard, messages) {
		if e.Err == nil {
			l.pending[e.Record.RequestID] = e.Record
		}
	}
}

// findWindows finds the counters that there are; the scan is one for all shards.
func (s *Store) findWindows(ctx context.Context, looks []*shardLook) error {
	byTag := make(map[string]*shardLook, len(looks))
	for _, look := range looks {
		byTag[shardTag(look.shard)] = look
	}
	return s.do(ctx, "scan windows", func(ctx context.Context) error {
		for _, pattern := range []string{"{s??}:budget:*", "{s??}:images:*"} {
			keys, err := s.scan(ctx, pattern)
			if err != nil {
				return err
			}
			for _, key := range keys {
				tag, name, _ := strings.Cut(key, ":")
				if look := byTag[tag]; look != nil {
					look.windows = append(look.windows, name)
				}
			}
		}
		return nil
	})
}

// rebuildShard looks again, now that the ledger has been read, and adds what is missing.
func (s *Store) rebuildShard(ctx context.Context, look *shardLook, told domain.BudgetSums) error {
	for _, d := range look.open {
		if !told.Settled[d.RequestID] {
			continue
		}
		// A snapshot brought it back, but its end is in the ledger.
		if err := s.Refund(ctx, d); err != nil {
			return err
		}
	}
	changes, err := s.reckon(ctx, look, told)
	if err != nil {
		return err
	}
	return s.add(ctx, look, changes, s.seen(look.shard))
}

// reckon finds what the windows of a shard lack.
func (s *Store) reckon(ctx context.Context, look *shardLook, told domain.BudgetSums) ([]windowChange, error) {
	want, count := map[string]int64{}, map[string]int64{}
	for name, spent := range told.Spent {
		counts := domain.IsBudgetName(name) || domain.IsImagesName(name)
		if counts && domain.ShardOf(told.OwnerOf(name)) == look.shard {
			want[name] = spent
		}
	}
	for _, name := range look.windows {
		want[name] += 0
	}
	for _, r := range look.pending {
		for _, name := range r.Budgets {
			want[name] += 0
		}
	}
	// The end of a request whose hold is gone counts whole, and not as a difference.
	// So every window first gets what is held of it; what that is too much is in
	// the counters when they are read.
	var holds []windowChange
	for _, d := range look.open {
		for name, amount := range windowsOf(d) {
			want[name] += 0
			holds = append(holds, windowChange{name, amount})
		}
	}
	if err := s.add(ctx, look, holds, unfinished); err != nil {
		return nil, err
	}
	if err := s.lookAgain(ctx, look, told, want, count); err != nil {
		return nil, err
	}
	changes := make([]windowChange, 0, len(want))
	for name, wanted := range want {
		if change := wanted - count[name]; change != 0 && told.Covers(name) {
			changes = append(changes, windowChange{name, change})
		}
	}
	return changes, nil
}

// lookAgain reads outbox, holds and counters in one transaction, adds to want
// what is pending and held, and fills count.
func (s *Store) lookAgain(ctx context.Context, look *shardLook, told domain.BudgetSums, want, count map[string]int64) error {
	var outbox *redis.XMessageSliceCmd
	states := make([]*redis.StringCmd, len(look.open))
	counters := make(map[string]*redis.StringCmd, len(want))
	err := s.do(ctx, "look at a shard again", func(ctx context.Context) error {
		_, err := s.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			outbox = tx.XRange(ctx, outboxKey(look.shard), "-", "+")
			for i, d := range look.open {
				states[i] = tx.HGet(ctx, reservationKey(look.shard, d.RequestID), "state")
			}
			for name := range want {
				counters[name] = tx.Get(ctx, shardTag(look.shard)+":"+name)
			}
			return nil
		})
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	before := look.pending
	look.pending = map[string]domain.UsageRecord{}
	look.addPending(outbox.Val())
	for request := range before {
		if _, still := look.pending[request]; !still && !told.Settled[request] {
			return ErrOvertaken // a worker drained it that had read it before
		}
	}
	for request, r := range look.pending {
		if told.Settled[request] {
			continue
		}
		for _, name := range r.Budgets {
			// A window that nobody knew a moment ago has nothing but this in it.
			if _, known := want[name]; known {
				want[name] += chargeOf(name, r)
			}
		}
	}
	for i, d := range look.open {
		if states[i].Val() == "reserved" {
			for name, amount := range windowsOf(d) {
				want[name] += amount
			}
		}
	}
	for name, cmd := range counters {
		value, err := cmd.Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("read window %s: %w", name, err)
		}
		count[name] = value
	}
	return nil
}

// windowChange is what a window lacks, or has too much below 0.
type windowChange struct {
	name string
	add  int64
}

// unfinished is in the place of a generation while more is to be added.
const unfinished int64 = -1

// add changes windows, in chunks. The last one sets a generation that is higher
// than seen, unless that is unfinished.
func (s *Store) add(ctx context.Context, look *shardLook, changes []windowChange, seen int64) error {
	for last := false; !last; {
		chunk := changes[:min(len(changes), rebuildChunk)]
		changes = changes[len(chunk):]
		last = len(changes) == 0
		act := call{
			script: lua.Rebuild,
			keys:   []string{generationKey(look.shard), lookKey(look.shard)},
			args:   []any{look.name, ""},
		}
		if last && seen != unfinished {
			act.args[1] = seen
		}
		for _, c := range chunk {
			act.keys = append(act.keys, shardTag(look.shard)+":"+c.name)
			act.args = append(act.args, min(max(c.add, -maxBudget), maxBudget), windowTTL(c.name))
		}
		generation, err := s.run(ctx, []call{act})[0].Int64()
		switch {
		case err != nil:
			return err
		case generation < 0:
			return ErrOvertaken
		}
		s.see(look.shard, generation)
	}
	return nil
}
