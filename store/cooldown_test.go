package store

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// tired is a failure of a channel that no other test uses.
func tired(reason domain.CooldownReason, wait time.Duration) domain.Evidence {
	return domain.Evidence{
		ChannelClass: domain.ChannelClass{Channel: unique("channel"), Class: "family:of/models"},
		Account:      "a1", Reason: reason, Wait: wait,
		Bounds: domain.CooldownBounds{First: 200 * time.Millisecond, Least: 100 * time.Millisecond, Most: 10 * time.Second},
	}
}

func cool(t testing.TB, s *Store, e domain.Evidence) (changed bool) {
	t.Helper()
	changed, err := s.Cool(t.Context(), e)
	require.NoError(t, err)
	return changed
}

// knownOf is what the store knows against a channel's class; ok is false for nothing.
func knownOf(t testing.TB, s *Store, of domain.ChannelClass) (c domain.Cooldown, ok bool) {
	t.Helper()
	all, err := s.Cooldowns(t.Context())
	require.NoError(t, err)
	for _, c := range all {
		if c.ChannelClass == of {
			return c, true
		}
	}
	return domain.Cooldown{}, false
}

// over waits until the cooldown of a class is over.
func over(t testing.TB, s *Store, of domain.ChannelClass) {
	t.Helper()
	eventually(t, "the cooldown ends", func() bool {
		c, ok := knownOf(t, s, of)
		return ok && c.Left <= 0
	})
}

func claim(t testing.TB, s *Store, of domain.ChannelClass, request string, lease time.Duration) bool {
	t.Helper()
	ok, err := s.ClaimTrial(t.Context(), domain.Trial{ChannelClass: of, RequestID: request, Lease: lease})
	require.NoError(t, err)
	return ok
}

func TestCooldownLength(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, tt := range []struct {
		name       string
		wait, want time.Duration
	}{
		{"no time named", 0, 200 * time.Millisecond},
		{"a time named", 3 * time.Second, 3 * time.Second},
		{"below the least", time.Millisecond, 100 * time.Millisecond},
		{"above the most", time.Hour, 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := tired(domain.ReasonRate, tt.wait)
			require.True(t, cool(t, s, e))
			c, ok := knownOf(t, s, e.ChannelClass)
			require.True(t, ok)
			assert.Equal(t, e.Account, c.Account)
			assert.Equal(t, domain.ReasonRate, c.Reason)
			assert.False(t, c.Out)
			assert.LessOrEqual(t, c.Left, tt.want)
			if tt.want >= 3*time.Second {
				assert.Greater(t, c.Left, tt.want-2*time.Second)
			}
		})
	}
}

func TestLongestCooldownWins(t *testing.T) {
	t.Parallel()
	s := shared(t)
	e := tired(domain.ReasonRate, 4*time.Second)
	require.True(t, cool(t, s, e))
	require.False(t, cool(t, s, e), "the same again adds nothing")
	for _, wait := range []time.Duration{0, time.Second} {
		less := e
		less.Wait = wait
		require.False(t, cool(t, s, less))
	}
	c, _ := knownOf(t, s, e.ChannelClass)
	assert.LessOrEqual(t, c.Left, 4*time.Second)
	assert.Greater(t, c.Left, 2*time.Second)
	more := e
	more.Wait, more.Reason = 8*time.Second, domain.ReasonOverload
	require.True(t, cool(t, s, more))
	c, _ = knownOf(t, s, e.ChannelClass)
	assert.Greater(t, c.Left, 6*time.Second)
	assert.Equal(t, domain.ReasonOverload, c.Reason)
	assert.Zero(t, c.Level, "failures that were in flight are none of a trial")
}

func TestOutStaysUntilResetOrChange(t *testing.T) {
	t.Parallel()
	s := shared(t)
	e := tired(domain.ReasonQuota, 0)
	require.True(t, cool(t, s, e))
	rate := e
	rate.Reason, rate.Wait = domain.ReasonRate, time.Second
	require.False(t, cool(t, s, rate), "a rate limit does not bring it back")
	c, _ := knownOf(t, s, e.ChannelClass)
	assert.True(t, c.Out)
	assert.Equal(t, domain.ReasonQuota, c.Reason)
	assert.False(t, claim(t, s, e.ChannelClass, "r1", time.Minute))
	require.NoError(t, s.EndCooldown(t.Context(), e.ChannelClass))
	_, ok := knownOf(t, s, e.ChannelClass)
	assert.True(t, ok, "an answer to an old request does not bring it back")
	ttl, err := s.client.PTTL(t.Context(), cooldownKey(e.ChannelClass)).Result()
	require.NoError(t, err)
	assert.EqualValues(t, -1, ttl, "it never expires")

	n, err := s.ResetChannel(t.Context(), e.Channel)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	_, ok = knownOf(t, s, e.ChannelClass)
	assert.False(t, ok)
	n, err = s.ResetChannel(t.Context(), e.Channel)
	require.NoError(t, err)
	assert.Zero(t, n)

	require.True(t, cool(t, s, e))
	rate.Account = "a2"
	require.True(t, cool(t, s, rate), "the channel has another account now")
	c, _ = knownOf(t, s, e.ChannelClass)
	assert.False(t, c.Out)
	assert.Equal(t, "a2", c.Account)
}

func TestEndOutTakesTheRightReason(t *testing.T) {
	t.Parallel()
	s := shared(t)
	e := tired(domain.ReasonAuth, 0)
	e.Class = domain.EveryClass
	end := func(reason domain.CooldownReason) bool {
		ended, err := s.EndOut(t.Context(), e.Channel, reason)
		require.NoError(t, err)
		return ended
	}
	require.False(t, end(domain.ReasonAuth), "nothing is known")
	require.True(t, cool(t, s, e))
	require.False(t, end(domain.ReasonQuota))
	require.True(t, end(domain.ReasonAuth))
	_, ok := knownOf(t, s, e.ChannelClass)
	require.False(t, ok)
	e.Reason = domain.ReasonRate
	require.True(t, cool(t, s, e))
	require.False(t, end(domain.ReasonRate), "it is not out")
}

func TestOneProbeInItsTime(t *testing.T) {
	t.Parallel()
	s := shared(t)
	channel := unique("channel")
	claim := func() bool {
		mine, err := s.ClaimProbe(t.Context(), channel, 300*time.Millisecond)
		require.NoError(t, err)
		return mine
	}
	require.True(t, claim())
	require.False(t, claim())
	eventually(t, "its time is over", claim)
}

func TestOneTrialAtATime(t *testing.T) {
	t.Parallel()
	s := shared(t)
	e := tired(domain.ReasonServer, 0)
	of := e.ChannelClass
	require.True(t, claim(t, s, of, "r0", time.Minute), "nothing is known against it")
	require.True(t, cool(t, s, e))
	require.False(t, claim(t, s, of, "r1", time.Minute), "it cools")
	over(t, s, of)

	won := make(chan string, 50)
	for range cap(won) {
		go func() {
			request := unique("request")
			if ok, err := s.ClaimTrial(t.Context(), domain.Trial{ChannelClass: of, RequestID: request, Lease: time.Minute}); err != nil || !ok {
				request = ""
			}
			won <- request
		}()
	}
	var winners []string
	for range cap(won) {
		if request := <-won; request != "" {
			winners = append(winners, request)
		}
	}
	require.Len(t, winners, 1)
	c, _ := knownOf(t, s, of)
	assert.Positive(t, c.TrialLeft)
	assert.True(t, claim(t, s, of, winners[0], time.Minute), "asking again changes nothing")
	assert.False(t, claim(t, s, of, "other", 0), "who has no claim gives none back")
	assert.False(t, claim(t, s, of, "other", time.Minute))
	assert.False(t, claim(t, s, of, winners[0], 0), "the claim is given back")
	assert.True(t, claim(t, s, of, "short", 20*time.Millisecond))
	eventually(t, "a lost claim ends", func() bool { return claim(t, s, of, "next", time.Minute) })

	require.NoError(t, s.EndCooldown(t.Context(), of))
	_, ok := knownOf(t, s, of)
	assert.False(t, ok)
}

func TestFailedTrialDoubles(t *testing.T) {
	t.Parallel()
	s := shared(t)
	e := tired(domain.ReasonServer, 0)
	e.Bounds = domain.CooldownBounds{First: 100 * time.Millisecond, Least: 50 * time.Millisecond, Most: 350 * time.Millisecond}
	require.True(t, cool(t, s, e))
	for level, want := range []time.Duration{200, 350, 350} {
		over(t, s, e.ChannelClass)
		require.True(t, claim(t, s, e.ChannelClass, "r", time.Minute))
		begin := time.Now()
		require.True(t, cool(t, s, e))
		c, _ := knownOf(t, s, e.ChannelClass)
		assert.Equal(t, level+1, c.Level)
		assert.LessOrEqual(t, c.Left, want*time.Millisecond)
		assert.LessOrEqual(t, c.TrialLeft, time.Duration(0), "the trial is over")
		over(t, s, e.ChannelClass)
		assert.GreaterOrEqual(t, time.Since(begin), (want-5)*time.Millisecond)
	}
	asked := e
	asked.Wait, asked.Bounds.Most = 2*time.Second, 10*time.Second
	require.True(t, cool(t, s, asked))
	c, _ := knownOf(t, s, e.ChannelClass)
	assert.Greater(t, c.Left, time.Second, "the longer of what is asked for and the doubled time")
}

func TestCooldownOfOneClassLeavesOthers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	e := tired(domain.ReasonRate, time.Second)
	require.True(t, cool(t, s, e))
	other := e.ChannelClass
	other.Class = "other"
	_, ok := knownOf(t, s, other)
	assert.False(t, ok)
	assert.True(t, claim(t, s, other, "r", time.Minute))
}

func TestCooldownsAreTold(t *testing.T) {
	t.Parallel()
	s := shared(t)
	told := make(chan struct{}, 1000)
	done := make(chan error, 1)
	go func() { done <- s.WatchCooldowns(t.Context(), func() { told <- struct{}{} }) }()
	select {
	case <-told:
	case <-time.After(30 * time.Second):
		t.Fatal("the subscription was not made")
	}
	e := tired(domain.ReasonRate, time.Minute)
	for _, act := range []struct {
		name string
		do   func()
	}{
		{"cool", func() { cool(t, s, e) }},
		{"reset", func() { _, err := s.ResetChannel(t.Context(), e.Channel); require.NoError(t, err) }},
	} {
		act.do()
		select { // other tests cool channels too: that something came is all that can be said
		case <-told:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s was not told", act.name)
		}
	}
}

func TestChannelAverages(t *testing.T) {
	t.Parallel()
	s := shared(t)
	of := domain.ChannelClass{Channel: unique("channel"), Class: "m:large"}
	learn := func(sample domain.ChannelSample) domain.ChannelStat {
		sample.ChannelClass = of
		other := domain.ChannelSample{ChannelClass: domain.ChannelClass{Channel: of.Channel, Class: "other"}, Attempts: 1}
		require.NoError(t, s.LearnChannels(t.Context(), []domain.ChannelSample{sample, other}))
		stats, err := s.ChannelStats(t.Context(), []string{of.Channel, unique("unused")})
		require.NoError(t, err)
		require.Len(t, stats, 2)
		return stats[of]
	}
	got := learn(domain.ChannelSample{Attempts: 1, Failed: 1})
	assert.InDelta(t, 0.2, got.ErrorRate, 1e-5)
	assert.Zero(t, got.TTFT, "none was timed")
	got = learn(domain.ChannelSample{Attempts: 1, Failed: 1})
	assert.InDelta(t, 0.36, got.ErrorRate, 1e-5)
	got = learn(domain.ChannelSample{Attempts: 1, Timed: 1, TTFT: 100 * time.Millisecond})
	assert.InDelta(t, 0.288, got.ErrorRate, 1e-5)
	assert.Equal(t, 100*time.Millisecond, got.TTFT, "the first one is taken as it is")
	got = learn(domain.ChannelSample{Attempts: 2, Timed: 2, TTFT: 400 * time.Millisecond})
	assert.InDelta(t, 0.288*0.64, got.ErrorRate, 1e-5, "two count as one after the other")
	assert.InDelta(t, float64(136*time.Millisecond), float64(got.TTFT), float64(10*time.Microsecond))
	require.NoError(t, s.LearnChannels(t.Context(), nil))
}

// requireCooldowns does every act on channels, on channels of all nodes, and hears
// of the changes whatever node they happen on.
func requireCooldowns(t testing.TB, s *Store) {
	t.Helper()
	var told atomic.Int64
	watching, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.WatchCooldowns(watching, func() { told.Add(1) }) }()
	eventually(t, "the subscription", func() bool { return told.Load() > 0 })
	const channels, acts = 30, 5
	for range channels {
		e := tired(domain.ReasonRate, 0)
		e.Bounds.First, e.Bounds.Least = 10*time.Millisecond, 10*time.Millisecond
		require.True(t, cool(t, s, e))
		over(t, s, e.ChannelClass)
		require.True(t, claim(t, s, e.ChannelClass, "r", time.Minute))
		require.NoError(t, s.EndCooldown(t.Context(), e.ChannelClass))
		e.Reason = domain.ReasonQuota
		require.True(t, cool(t, s, e))
		n, err := s.ResetChannel(t.Context(), e.Channel)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		mine, err := s.ClaimProbe(t.Context(), e.Channel, time.Minute)
		require.NoError(t, err)
		require.True(t, mine)
		require.NoError(t, s.LearnChannels(t.Context(), []domain.ChannelSample{{ChannelClass: e.ChannelClass, Attempts: 1, Failed: 1}}))
		names, err := s.ChannelNames(t.Context())
		require.NoError(t, err)
		require.Contains(t, names, e.Channel)
		stats, err := s.ChannelStats(t.Context(), names)
		require.NoError(t, err)
		require.InDelta(t, domain.HealthAlpha, stats[e.ChannelClass].ErrorRate, 1e-5)
	}
	// A cluster that is just forming loses some. Were only those of one node told,
	// it would be a third.
	eventually(t, "the messages", func() bool { return told.Load() > channels*acts/2 })
	stop()
	require.NoError(t, <-ended)
}
