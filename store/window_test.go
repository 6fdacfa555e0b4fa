package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// TestCase063: a budget that is used up to the last moment of its day or month
// is whole in the first of the next, in the policy's own zone and also where a
// day has 23 or 25 hours; nothing resets it in between, and nothing needs to.
func TestCase063(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, row := range []struct {
		name, zone string
		// next is the first moment of a day.
		next string
		// month says that a month begins with it.
		month bool
	}{
		{"midnight", "", "2026-11-29T00:00:00Z", false},
		{"midnight of a zone", "Asia/Kathmandu", "2026-11-28T18:15:00Z", false},
		{"month end", "", "2026-12-01T00:00:00Z", true},
		{"month end of a zone", "America/New_York", "2026-12-01T05:00:00Z", true},
		{"a leap day", "UTC", "2028-02-29T00:00:00Z", false},
		{"the day of 23 hours begins", "Europe/Berlin", "2026-03-28T23:00:00Z", false},
		{"the day of 23 hours ends", "Europe/Berlin", "2026-03-29T22:00:00Z", false},
		{"the day of 25 hours ends", "Europe/Berlin", "2026-10-25T23:00:00Z", false},
		{"the day of 25 hours is the first of its month", "America/New_York", "2026-11-01T04:00:00Z", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			next, err := time.Parse(time.RFC3339, row.next)
			require.NoError(t, err)
			for _, budget := range []domain.Policy{{BudgetDayMicros: 100, TimeZone: row.zone}, {BudgetMonthMicros: 100, TimeZone: row.zone}} {
				o := newTenant()
				ask := func(at time.Time, micros int64) domain.Decision {
					d := o.decide(budget.Holds(domain.ScopeKey, o.key, domain.Demand{CostMicros: micros}, at)...)
					d.AdmittedAt = at
					return d
				}
				admit(t, s, ask(next.Add(-time.Hour), 60))
				admit(t, s, ask(next.Add(-time.Minute), 40))
				assert.Zero(t, refusal(t, s, ask(next.Add(-time.Nanosecond), 1)).Remaining, "used up to the last moment")
				if budget.BudgetMonthMicros > 0 && !row.month {
					refusal(t, s, ask(next, 1))
					continue
				}
				admit(t, s, ask(next, 100))
				refusal(t, s, ask(next.Add(time.Hour), 1))
			}
		})
	}
}

// TestAWindowIsThatOfTheAdmission: a request that began before midnight is
// charged to the day in which it began, whenever it ends, and leaves the next
// day's budget whole. Rates know no window and follow the store's clock only.
func TestAWindowIsThatOfTheAdmission(t *testing.T) {
	t.Parallel()
	s, ctx, o := shared(t), context.Background(), newTenant()
	p := domain.Policy{RPM: slow, RPMBurst: 2, BudgetDayMicros: 100, TimeZone: "Europe/Berlin"}
	midnight := time.Date(2026, 11, 28, 23, 0, 0, 0, time.UTC)
	decide := func(at time.Time) domain.Decision {
		d := o.decide(p.Holds(domain.ScopeKey, o.key, domain.Demand{CostMicros: 60}, at)...)
		d.AdmittedAt = at
		return d
	}
	before, after := decide(midnight.Add(-time.Nanosecond)), decide(midnight)
	admit(t, s, before)
	admit(t, s, after) // 60 + 60 would not fit into one day
	assert.Equal(t, map[string]int64{"rpm:key": 2, "budget_day:key": 60}, counters(t, s, o), "of the day that is asked for")
	assert.Equal(t, domain.LimitRPM, refusal(t, s, func() domain.Decision {
		d := decide(midnight.Add(25 * time.Hour)) // a day later by a clock that nobody asks
		return d
	}()).Kind)
	got, err := s.Settle(ctx, ends(before, 1, 90))
	require.NoError(t, err)
	require.Equal(t, domain.SettleDone, got)
	assert.EqualValues(t, 60, counters(t, s, o)["budget_day:key"], "the day that has begun has its own")
	all, err := s.Counters(ctx, o.identity)
	require.NoError(t, err)
	assert.EqualValues(t, 90, all[bucketKey(o.identity, before.Holds[1])])
}
