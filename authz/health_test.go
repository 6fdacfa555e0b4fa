package authz

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// fakeCooldowns is a book that grants trials to the requests it names.
type fakeCooldowns struct {
	book   []domain.Cooldown
	err    error
	grants map[string]bool
	claims []domain.Trial
}

func (f *fakeCooldowns) Cooldowns(context.Context) ([]domain.Cooldown, error) { return f.book, f.err }

func (f *fakeCooldowns) WatchCooldowns(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

func (f *fakeCooldowns) ClaimTrial(_ context.Context, t domain.Trial) (bool, error) {
	f.claims = append(f.claims, t)
	return f.grants[t.Channel] && t.Lease > 0, f.err
}

func (f *fakeCooldowns) ChannelStats(context.Context, []string) (map[domain.ChannelClass]domain.ChannelStat, error) {
	return map[domain.ChannelClass]domain.ChannelStat{{Channel: "a", Class: "m"}: {ErrorRate: 0.5, TTFT: time.Second}}, f.err
}

func (f *fakeCooldowns) SlotsInUse(_ context.Context, channels []string) ([]int64, error) {
	return make([]int64, len(channels)), f.err
}

// know has the fixture's server read a book.
func (f *fixture) know(book ...domain.Cooldown) *fakeCooldowns {
	known := &fakeCooldowns{book: book, grants: map[string]bool{}}
	h := f.server.channelHealth
	h.from, h.stats = known, known
	h.refresh(context.Background())
	return known
}

func against(channel, class string, left time.Duration) domain.Cooldown {
	return domain.Cooldown{ChannelClass: domain.ChannelClass{Channel: channel, Class: class}, Reason: domain.ReasonRate, Left: left}
}

func TestChannelHealth(t *testing.T) {
	t.Parallel()
	out := against("a", domain.EveryClass, 0)
	out.Out, out.Reason = true, domain.ReasonQuota
	onTrial := against("a", "m", -time.Second)
	onTrial.TrialLeft = 3 * time.Second
	elsewhere := against("a", "m", time.Minute)
	elsewhere.Account = "another"
	type state = domain.HealthState
	for _, tc := range []struct {
		name  string
		book  []domain.Cooldown
		want  state
		until time.Duration
	}{
		{"nothing known", nil, domain.HealthUsable, 0},
		{"another class", []domain.Cooldown{against("a", "n", time.Minute)}, domain.HealthUsable, 0},
		{"another channel", []domain.Cooldown{against("b", "m", time.Minute)}, domain.HealthUsable, 0},
		{"another account", []domain.Cooldown{elsewhere}, domain.HealthUsable, 0},
		{"cooling", []domain.Cooldown{against("a", "m", time.Minute)}, domain.HealthCooling, time.Minute},
		{"all of it cooling for longer", []domain.Cooldown{against("a", "m", time.Minute), against("a", domain.EveryClass, time.Hour)}, domain.HealthCooling, time.Hour},
		{"over", []domain.Cooldown{against("a", "m", 0)}, domain.HealthTrial, 0},
		{"on trial by another", []domain.Cooldown{onTrial}, domain.HealthCooling, 3 * time.Second},
		{"out", []domain.Cooldown{against("a", "m", time.Minute), out}, domain.HealthOut, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.know(tc.book...)
			got := f.server.channelHealth.table().of(domain.Channel{Name: "a"}, "m", now)
			assert.Equal(t, tc.want, got.State, got.State.String())
			assert.Equal(t, tc.name == "on trial by another", got.OnTrial)
			if tc.until > 0 {
				assert.Equal(t, tc.until, got.Until.Sub(now))
			} else {
				assert.Zero(t, got.Until)
			}
			assert.InDelta(t, 0.5, got.ErrorRate, 0)
			assert.Equal(t, time.Second, got.TTFT)
			observed := f.server.channelHealth.table().of(domain.Channel{Name: "a", ObserveOnly: true}, "m", now)
			assert.Equal(t, domain.HealthUsable, observed.State, "a cooldown that is only observed is obeyed by nobody")
			states := f.server.channelHealth.table().states(map[string]domain.Channel{"a": {Name: "a", ObserveOnly: true}}, now)
			if tc.name != "another class" {
				assert.Equal(t, map[string]domain.HealthState{"a": tc.want}, states, "and is shown")
			}
		})
	}
}

// While the store is away, what was known stands, and ends by the local clock.
func TestHealthOutlivesTheStore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	known := f.know(against("a", "m", time.Minute))
	known.err = domain.ErrStoreDown
	f.server.channelHealth.refresh(t.Context())
	table := f.server.channelHealth.table()
	assert.Equal(t, domain.HealthCooling, table.of(domain.Channel{Name: "a"}, "m", now).State)
	assert.Equal(t, domain.HealthTrial, table.of(domain.Channel{Name: "a"}, "m", now.Add(time.Minute)).State)
}

func TestClaimTrial(t *testing.T) {
	t.Parallel()
	candidates := func(list ...domain.Candidate) domain.Decision {
		return domain.Decision{RequestID: "r", FirstByteLimit: 7 * time.Second, Candidates: list}
	}
	tired := func(name string) domain.Candidate { return domain.Candidate{Channel: name, Class: "m", Trial: true} }
	good := domain.Candidate{Channel: "good", Class: "m"}
	for _, tc := range []struct {
		name   string
		list   []domain.Candidate
		grants []string
		err    error
		want   []string
		claims int
	}{
		{"the first is usable", []domain.Candidate{good, tired("a")}, nil, nil, []string{"good", "a"}, 0},
		{"granted", []domain.Candidate{tired("a"), good}, []string{"a"}, nil, []string{"a", "good"}, 1},
		{"another request tries it", []domain.Candidate{tired("a"), good}, nil, nil, []string{"good"}, 1},
		{"the second is granted", []domain.Candidate{tired("a"), tired("b"), good}, []string{"b"}, nil, []string{"b", "good"}, 2},
		{"none is granted", []domain.Candidate{tired("a"), tired("b")}, nil, nil, nil, 2},
		{"the store is away", []domain.Candidate{tired("a"), good}, []string{"a"}, errors.New("away"), []string{"good"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			known := f.know()
			known.err = tc.err
			for _, name := range tc.grants {
				known.grants[name] = true
			}
			d := candidates(tc.list...)
			trial := f.server.claimTrial(t.Context(), &d)
			var left []string
			for _, c := range d.Candidates {
				left = append(left, c.Channel)
			}
			assert.Equal(t, tc.want, left)
			assert.Len(t, known.claims, tc.claims)
			if len(tc.grants) > 0 && tc.err == nil {
				require.NotNil(t, trial)
				assert.Equal(t, 7*time.Second+trialMargin, trial.Lease)
				f.server.giveBack(t.Context(), *trial)
				assert.Zero(t, known.claims[len(known.claims)-1].Lease)
			} else {
				assert.Nil(t, trial)
			}
		})
	}
}

// Where all usable channels are full, one whose cooldown is over comes first by
// a claim only.
func TestATrialBehindFullChannelsNeedsAClaim(t *testing.T) {
	t.Parallel()
	tired := func(name string) domain.Candidate { return domain.Candidate{Channel: name, Class: "m", Trial: true} }
	usable := func(name string) domain.Candidate { return domain.Candidate{Channel: name, Class: "m", Slots: 1} }
	for _, tc := range []struct {
		name         string
		list         []domain.Candidate
		full, grants []string
		want         []string
		// left are the claims that stand when the request goes out.
		left []string
		err  error
	}{
		{"a slot is free", []domain.Candidate{usable("x"), tired("a")}, []string{"y"}, []string{"a"}, []string{"x", "a"}, nil, nil},
		{"granted", []domain.Candidate{usable("x"), tired("a"), usable("y")}, []string{"x", "y"}, []string{"a"}, []string{"a", "y"}, []string{"a"}, nil},
		{"behind it a slot is free", []domain.Candidate{usable("x"), tired("a"), usable("y")}, []string{"x"}, []string{"a"}, []string{"y"}, nil, nil},
		{"another request tries it", []domain.Candidate{usable("x"), tired("a")}, []string{"x"}, nil, nil, nil, errBusy},
		{"the next of them is granted", []domain.Candidate{usable("x"), tired("a"), tired("b")}, []string{"x"}, []string{"b"}, []string{"b"}, []string{"b"}, nil},
		{"granted and full too", []domain.Candidate{usable("x"), tired("a"), tired("b")}, []string{"x", "a"}, []string{"a", "b"}, []string{"b"}, []string{"b"}, nil},
		{"no other, and all on trial", []domain.Candidate{tired("a"), tired("b")}, []string{"x"}, nil, nil, nil, errOnTrial},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			known := f.know()
			f.reservations.full = tc.full
			for _, name := range tc.grants {
				known.grants[name] = true
			}
			d := domain.Decision{RequestID: "r", Candidates: tc.list}
			_, err := f.server.reserveFirst(t.Context(), &d, terms{})
			require.ErrorIs(t, err, tc.err)
			standing := map[string]bool{}
			for _, claim := range known.claims {
				standing[claim.Channel] = claim.Lease > 0 && known.grants[claim.Channel]
			}
			var left, names []string
			for name, stands := range standing {
				if stands {
					left = append(left, name)
				}
			}
			assert.Equal(t, tc.left, left)
			for _, c := range d.Candidates {
				names = append(names, c.Channel)
			}
			if tc.err == nil {
				assert.Equal(t, tc.want, names)
			}
		})
	}
}

func TestRefusalWhileAllRest(t *testing.T) {
	t.Parallel()
	cools := resting(now.Add(17*time.Second), now, 0)
	assert.Equal(t, domain.CodeNoChannel, cools.Code)
	assert.Equal(t, 17*time.Second, cools.RetryAfter)
	assert.False(t, cools.NoRetry)
	assert.Equal(t, maxRetryAfter, resting(now.Add(time.Hour), now, 0).RetryAfter)
	assert.Equal(t, trialWait, resting(time.Time{}, now, 1).RetryAfter, "others try just now")
	out := resting(time.Time{}, now, 0)
	assert.True(t, out.NoRetry)
	assert.Zero(t, out.RetryAfter)
}
