package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
	"keyway/lua"
)

// keepLevel is for how long the level of a cooldown outlives its end: trials
// that fail within it are failures in a row, and nobody goes there without a
// trial. After that the channel counts as one of which nothing is known.
const keepLevel = time.Hour

// keepStat is for how long averages stand without a new attempt.
const keepStat = 15 * time.Minute

// Cool notes evidence against a channel's class, or the whole channel. changed
// says that it is left alone for longer now than before. Repeating a call adds
// nothing.
func (s *Store) Cool(ctx context.Context, e domain.Evidence) (changed bool, err error) {
	out := 0
	if e.Reason.TakesOut() {
		out = 1
	}
	bounds := fmt.Sprintf("%d %d", e.Bounds.Least.Milliseconds(), e.Bounds.Most.Milliseconds())
	reply, err := s.run(ctx, []call{{
		script: lua.CooldownSet, keys: cooldownKeys(e.ChannelClass),
		args: []any{
			cooldownMember(e.ChannelClass), e.Account, string(e.Reason), out, e.Wait.Milliseconds(),
			e.Bounds.First.Milliseconds(), bounds, keepLevel.Milliseconds(), cooldownChannel,
		},
	}})[0].Int64Slice()
	switch {
	case err != nil:
		return false, fmt.Errorf("cool channel %s: %w", e.Channel, err)
	case len(reply) != 2:
		return false, fmt.Errorf("cool channel %s: the script answered %d numbers", e.Channel, len(reply))
	}
	return reply[0] == 1, nil
}

func cooldownKeys(c domain.ChannelClass) []string {
	return []string{cooldownKey(c), coolingKey(domain.ShardOf(c.Channel))}
}

// ClaimTrial reports whether a request may try a channel whose cooldown is
// over; see domain.Trial. It is also true when nothing is known against the
// channel any more.
func (s *Store) ClaimTrial(ctx context.Context, t domain.Trial) (bool, error) {
	granted, err := s.run(ctx, []call{{
		script: lua.CooldownClaim, keys: []string{cooldownKey(t.ChannelClass)},
		args: []any{t.RequestID, t.Lease.Milliseconds(), cooldownMember(t.ChannelClass), cooldownChannel},
	}})[0].Int64()
	if err != nil {
		return false, fmt.Errorf("claim trial of channel %s: %w", t.Channel, err)
	}
	return granted == 1, nil
}

// EndCooldown forgets a cooldown that is over, because a trial succeeded. One
// that began anew meanwhile stays.
func (s *Store) EndCooldown(ctx context.Context, c domain.ChannelClass) error {
	return firstError(s.run(ctx, []call{clearCall(c, clearOver)}))
}

// ResetChannel forgets all that is known against a channel, in whatever state
// it is, and returns for how many of its classes there was something.
func (s *Store) ResetChannel(ctx context.Context, channel string) (int, error) {
	members, err := s.cooling(ctx)
	if err != nil {
		return 0, err
	}
	var calls []call
	for _, c := range members {
		if c.Channel == channel {
			calls = append(calls, clearCall(c, clearAlways))
		}
	}
	if len(calls) == 0 {
		return 0, nil
	}
	cmds := s.run(ctx, calls)
	if err := firstError(cmds); err != nil {
		return 0, fmt.Errorf("reset channel %s: %w", channel, err)
	}
	n := 0
	for _, cmd := range cmds {
		cleared, _ := cmd.Int() // its error was looked at above
		n += cleared
	}
	return n, nil
}

// When the clear script forgets; any other word is a reason for being out.
const (
	clearAlways = "always"
	clearOver   = "over"
)

func clearCall(c domain.ChannelClass, when string) call {
	return call{script: lua.CooldownClear, keys: cooldownKeys(c), args: []any{cooldownMember(c), when, cooldownChannel}}
}

// EndOut brings a channel back that is out for a reason, because its provider
// has shown that the reason is gone; ended says that it was.
func (s *Store) EndOut(ctx context.Context, channel string, reason domain.CooldownReason) (ended bool, err error) {
	of := domain.ChannelClass{Channel: channel, Class: domain.EveryClass}
	n, err := s.run(ctx, []call{clearCall(of, string(reason))})[0].Int()
	if err != nil {
		return false, fmt.Errorf("bring channel %s back: %w", channel, err)
	}
	return n == 1, nil
}

// ClaimProbe reports whether the caller is the one in the region that may probe
// a channel now; nobody else may for the time of every.
func (s *Store) ClaimProbe(ctx context.Context, channel string, every time.Duration) (mine bool, err error) {
	err = s.do(ctx, "claim probe", func(ctx context.Context) error {
		mine, err = s.client.SetNX(ctx, probeClaimKey(channel), 1, every).Result()
		return err
	})
	return mine, err
}

// cooling lists what the indexes name; some of it may have expired.
func (s *Store) cooling(ctx context.Context) ([]domain.ChannelClass, error) {
	var indexes [domain.Shards]*redis.StringSliceCmd
	err := s.do(ctx, "list cooldowns", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		for shard := range domain.Shards {
			indexes[shard] = pipe.ZRange(ctx, coolingKey(shard), 0, -1)
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var members []domain.ChannelClass
	for _, index := range indexes {
		for _, member := range index.Val() {
			channel, class, _ := strings.Cut(member, ":")
			members = append(members, domain.ChannelClass{Channel: channel, Class: class})
		}
	}
	return members, nil
}

// Cooldowns reads all that is known against channels, by the store's own clock.
func (s *Store) Cooldowns(ctx context.Context) ([]domain.Cooldown, error) {
	members, err := s.cooling(ctx)
	if err != nil || len(members) == 0 {
		return nil, err
	}
	calls := make([]call, len(members))
	for i, c := range members {
		calls[i] = call{script: lua.CooldownRead, keys: []string{cooldownKey(c)}, args: []any{c.Class}}
	}
	known := make([]domain.Cooldown, 0, len(members))
	for i, cmd := range s.run(ctx, calls) {
		reply, err := cmd.Slice()
		if err != nil {
			return nil, fmt.Errorf("read cooldown of channel %s: %w", members[i].Channel, err)
		}
		if len(reply) == 0 {
			continue // it expired
		}
		c, err := readCooldown(members[i].Channel, reply)
		if err != nil {
			return nil, err
		}
		known = append(known, c)
	}
	return known, nil
}

// readCooldown turns the reply of the script into nouns.
func readCooldown(channel string, reply []any) (domain.Cooldown, error) {
	if len(reply) != 7 {
		return domain.Cooldown{}, fmt.Errorf("read cooldown of channel %s: the script answered %d values", channel, len(reply))
	}
	number := func(v any) int64 { n, _ := v.(int64); return n }
	word := func(v any) string { w, _ := v.(string); return w }
	return domain.Cooldown{
		ChannelClass: domain.ChannelClass{Channel: channel, Class: word(reply[6])},
		Account:      word(reply[0]),
		Reason:       domain.CooldownReason(word(reply[1])),
		Out:          number(reply[2]) == 1,
		Level:        int(number(reply[3])),
		Left:         time.Duration(number(reply[4])) * time.Millisecond,
		TrialLeft:    time.Duration(number(reply[5])) * time.Millisecond,
	}, nil
}

// WatchCooldowns calls fn whenever a cooldown has changed, or may have: after
// every subscription, the first included. Otherwise it is as WatchKeys.
func (s *Store) WatchCooldowns(ctx context.Context, fn func()) error {
	return s.watch(ctx, cooldownChannel, func(string) { fn() })
}

// ChannelNames lists the channels of which anything is known: those that were
// used lately, and those with a cooldown. It scans the store: for people, never
// for the path of a request.
func (s *Store) ChannelNames(ctx context.Context) ([]string, error) {
	members, err := s.cooling(ctx)
	if err != nil {
		return nil, err
	}
	var keys []string
	err = s.do(ctx, "list channels", func(ctx context.Context) error {
		keys, err = s.scan(ctx, "{c*}:stat:*")
		return err
	})
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(keys)+len(members))
	for _, key := range keys {
		names = append(names, key[strings.LastIndex(key, ":")+1:])
	}
	for _, c := range members {
		names = append(names, c.Channel)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// LearnChannels moves the averages of channels by what their attempts showed.
// Each sample must have attempts.
func (s *Store) LearnChannels(ctx context.Context, samples []domain.ChannelSample) error {
	byChannel := map[string][]any{}
	for _, sample := range samples {
		byChannel[sample.Channel] = append(byChannel[sample.Channel],
			sample.Class, sample.Attempts, sample.Failed, sample.Timed, sample.TTFT.Microseconds(),
			int64(sample.QuotaLeft*millionths), sample.QuotaEnds.Milliseconds())
	}
	calls := make([]call, 0, len(byChannel))
	for channel, args := range byChannel {
		calls = append(calls, call{
			script: lua.StatLearn, keys: []string{statKey(channel)},
			args: append([]any{keepStat.Milliseconds()}, args...),
		})
	}
	if len(calls) == 0 {
		return nil
	}
	if err := firstError(s.run(ctx, calls)); err != nil {
		return fmt.Errorf("learn of channels: %w", err)
	}
	return nil
}

// ChannelStats reads the averages of channels; one that was not used lately has none.
func (s *Store) ChannelStats(ctx context.Context, channels []string) (map[domain.ChannelClass]domain.ChannelStat, error) {
	known := make(map[domain.ChannelClass]domain.ChannelStat)
	if len(channels) == 0 {
		return known, nil
	}
	var now *redis.TimeCmd
	hashes := make([]*redis.MapStringStringCmd, len(channels))
	err := s.do(ctx, "read channel averages", func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		now = pipe.Time(ctx)
		for i, channel := range channels {
			hashes[i] = pipe.HGetAll(ctx, statKey(channel))
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, channel := range channels {
		for field, value := range hashes[i].Val() {
			kind, class, _ := strings.Cut(field, ":")
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				continue // what cannot be read says nothing
			}
			key := domain.ChannelClass{Channel: channel, Class: class}
			stat := known[key]
			switch kind {
			case "e":
				stat.ErrorRate = float64(n) / millionths
			case "t":
				stat.TTFT = time.Duration(n) * time.Microsecond
			case "q":
				stat.QuotaLeft = float64(n) / millionths
			case "r":
				stat.QuotaEnds = max(time.UnixMilli(n).Sub(now.Val()), 0)
			}
			known[key] = stat
		}
	}
	return known, nil
}
