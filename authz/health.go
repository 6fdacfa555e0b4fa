package authz

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"keyway/domain"
)

// Cooldowns is the region's book of channels that must be left alone.
type Cooldowns interface {
	// Cooldowns reads the whole book.
	Cooldowns(ctx context.Context) ([]domain.Cooldown, error)
	// WatchCooldowns calls fn whenever the book may have changed, until ctx ends.
	WatchCooldowns(ctx context.Context, fn func()) error
	// ClaimTrial reports whether the request is the one that may try a channel
	// whose cooldown is over. A claim without a lease gives an earlier one back.
	ClaimTrial(ctx context.Context, t domain.Trial) (bool, error)
}

// ChannelStats are the moving averages that the region has learned of channels,
// and how busy they are.
type ChannelStats interface {
	ChannelStats(ctx context.Context, channels []string) (map[domain.ChannelClass]domain.ChannelStat, error)
	// SlotsInUse counts the slots that are taken, by the order of channels.
	SlotsInUse(ctx context.Context, channels []string) ([]int64, error)
}

const (
	// healthPeriod is how often the book is read without being told to: where
	// no message of a change arrives, it is the most by which a cooldown is late.
	healthPeriod = time.Second
	// healthTimeout bounds one read.
	healthTimeout = time.Second
	// statsPeriod is how often the averages are read; they move over many requests.
	statsPeriod = 2 * time.Second
)

// health is this replica's copy of what the region knows of its channels. The
// path of a request reads it and never the store.
type health struct {
	from  Cooldowns
	stats ChannelStats
	// channels are those of the configuration.
	channels func() map[string]domain.Channel
	now      func() time.Time
	metrics  *metrics
	// changed has room for one: a change that comes before the read is part of it.
	changed chan struct{}

	last atomic.Pointer[healthTable]
}

// healthTable is one reading. It is not changed once made.
type healthTable struct {
	at        time.Time
	cooldowns map[domain.ChannelClass]domain.Cooldown
	stats     map[domain.ChannelClass]domain.ChannelStat
	statsAt   time.Time
	// inUse counts the slots that are taken, of channels that have any.
	inUse map[string]int64
}

var unknownHealth = &healthTable{}

func (h *health) table() *healthTable {
	if t := h.last.Load(); t != nil {
		return t
	}
	return unknownHealth
}

// of is the health of channel for a class: the worse of what is known against
// the class and against the whole channel. What was held against another
// account under the same name does not count.
func (t *healthTable) of(channel domain.Channel, class string, now time.Time) domain.ChannelHealth {
	var worst domain.ChannelHealth
	for _, key := range [...]domain.ChannelClass{{Channel: channel.Name, Class: domain.EveryClass}, {Channel: channel.Name, Class: class}} {
		c, known := t.cooldowns[key]
		if !known || c.Account != channel.Account || channel.ObserveOnly {
			continue
		}
		h := c.Health(t.at, now)
		if h.State > worst.State || h.State == worst.State && h.Until.After(worst.Until) {
			worst = h
		}
	}
	if s, known := t.stats[domain.ChannelClass{Channel: channel.Name, Class: class}]; known {
		worst.ErrorRate, worst.TTFT = s.ErrorRate, s.TTFT
		worst.QuotaLeft, worst.QuotaEnds = s.QuotaLeft, max(s.QuotaEnds-now.Sub(t.statsAt), 0)
	}
	worst.InUse = t.inUse[channel.Name]
	return worst
}

// run keeps the copy until ctx ends: it reads at once, at every change and
// every period. A store that is away leaves it as it is.
func (h *health) run(ctx context.Context) {
	ticker := time.NewTicker(healthPeriod)
	defer ticker.Stop()
	for {
		h.refresh(ctx)
		h.metrics.observeChannels(h.table().states(h.channels(), h.now()))
		select {
		case <-ctx.Done():
			return
		case <-h.changed:
		case <-ticker.C:
		}
	}
}

// follow has the book read whenever it changes, until ctx ends.
func (h *health) follow(ctx context.Context) error {
	err := h.from.WatchCooldowns(ctx, func() {
		select {
		case h.changed <- struct{}{}:
		default: // a read is due already, and it will see this change too
		}
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("watch cooldowns: %w", err)
	}
	return nil
}

// refresh reads the book, and the averages when they are due.
func (h *health) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	old := h.table()
	all, err := h.from.Cooldowns(ctx)
	if err != nil {
		return
	}
	// What is left was reckoned while the read ran, so counting from its end
	// never sends a request too early.
	next := &healthTable{
		at: h.now(), cooldowns: make(map[domain.ChannelClass]domain.Cooldown, len(all)),
		stats: old.stats, statsAt: old.statsAt, inUse: old.inUse,
	}
	for _, c := range all {
		next.cooldowns[c.ChannelClass] = c
	}
	if next.at.Sub(old.statsAt) >= statsPeriod {
		if stats, err := h.stats.ChannelStats(ctx, slices.Collect(maps.Keys(h.channels()))); err == nil {
			next.stats, next.statsAt, next.inUse = stats, next.at, h.slotsInUse(ctx)
		}
	}
	h.last.Store(next)
}

// states are those of all channels: that of the worst of their classes, also
// where it is only observed.
func (t *healthTable) states(channels map[string]domain.Channel, now time.Time) map[string]domain.HealthState {
	states := make(map[string]domain.HealthState, len(channels))
	for name := range channels {
		states[name] = domain.HealthUsable
	}
	for of, c := range t.cooldowns {
		if channel, ok := channels[of.Channel]; ok && c.Account == channel.Account {
			states[of.Channel] = max(states[of.Channel], c.Health(t.at, now).State)
		}
	}
	return states
}

// slotsInUse counts the slots of the channels that have any; nil where nobody knows.
func (h *health) slotsInUse(ctx context.Context) map[string]int64 {
	var limited []string
	for name, c := range h.channels() {
		if c.Slots > 0 {
			limited = append(limited, name)
		}
	}
	used, err := h.stats.SlotsInUse(ctx, limited)
	if err != nil || len(used) != len(limited) {
		return nil
	}
	counts := make(map[string]int64, len(limited))
	for i, name := range limited {
		counts[name] = used[i]
	}
	return counts
}

// trialMargin is added to the first-byte limit: the answer's first output may
// come a little after its head.
const trialMargin = 5 * time.Second

// errOnTrial: every candidate is being tried by another request.
var errOnTrial = errors.New("every candidate is on trial")

// reserveFirst reserves for the first candidate that has a slot free, and that no other
// request is trying. Those whose cooldown is over and that stand behind a usable
// one get their trial where all of those are full: by a claim, as any other.
func (s *Server) reserveFirst(ctx context.Context, d *domain.Decision, t terms) (domain.Admission, error) {
	refusal := errOnTrial
	for {
		trial := s.claimTrial(ctx, d)
		if len(d.Candidates) == 0 {
			return domain.Admission{}, refusal
		}
		admission, err := s.reserve(ctx, d, t)
		if first := d.Candidates[0]; trial != nil && (err != nil || domain.ChannelClass{Channel: first.Channel, Class: first.Class} != trial.ChannelClass) {
			s.giveBack(ctx, *trial)
		}
		next := slices.IndexFunc(d.Candidates[1:], func(c domain.Candidate) bool { return c.Trial })
		if !errors.Is(err, errBusy) || next < 0 {
			return admission, err
		}
		refusal, d.Candidates = err, d.Candidates[1+next:]
	}
}

// claimTrial has the request stand for the trial of its first candidate, where
// the cooldown of that is over. Where another request does, the candidate is
// passed over. A candidate further back needs no claim: it is only tried after
// a failure, and then in place of an error. It returns the claim, if any.
func (s *Server) claimTrial(ctx context.Context, d *domain.Decision) *domain.Trial {
	for len(d.Candidates) > 0 && d.Candidates[0].Trial {
		first := d.Candidates[0]
		trial := domain.Trial{
			ChannelClass: domain.ChannelClass{Channel: first.Channel, Class: first.Class},
			RequestID:    d.RequestID, Lease: d.FirstByteLimit + trialMargin,
		}
		if ok, err := s.channelHealth.from.ClaimTrial(ctx, trial); err == nil && ok {
			return &trial
		}
		d.Candidates = d.Candidates[1:]
	}
	return nil
}

// giveBack ends a claim whose request goes elsewhere, or nowhere.
func (s *Server) giveBack(ctx context.Context, t domain.Trial) {
	t.Lease = 0
	// Should it fail, the claim ends with its lease.
	_, _ = s.channelHealth.from.ClaimTrial(context.WithoutCancel(ctx), t)
}

// trialWait is what a client is told to wait for somebody else's trial.
const trialWait = time.Second

// resting is the refusal of a request whose every channel is left alone.
// Nothing of it is reserved. soonest is when the first cooldown ends, zero for
// never; onTrial is how many channels other requests are trying just now.
func resting(soonest, now time.Time, onTrial int) *domain.Error {
	e := &domain.Error{
		Code: domain.CodeNoChannel, RetryAfter: min(soonest.Sub(now), maxRetryAfter),
		Message: "The providers of this model refuse or fail at the moment, and are left alone for a while. Try again later.",
	}
	switch {
	case onTrial > 0:
		e.RetryAfter = trialWait
	case soonest.IsZero():
		e.RetryAfter, e.NoRetry = 0, true
		e.Message = "No provider of this model can be used until its operator acts. Give your operator the request id."
	}
	return e
}
