package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// TestCase063WindowsFollowTheCalendar looks at both edges of days that are 23, 24 and
// 25 hours long, of months of every length and of zones that begin their day
// at odd hours of UTC.
func TestCase063WindowsFollowTheCalendar(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		zone       string
		begin, end string // first moment of the day, and of the one that follows
		day, next  string
	}{
		{"", "2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z", "2026-11-30", "2026-12-01"},
		{"UTC", "2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z", "2028-02-29", "2028-03-01"},
		{"Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-29", "2026-03-30"},    // 23 hours
		{"Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-25", "2026-10-26"},    // 25 hours
		{"America/New_York", "2026-10-31T04:00:00Z", "2026-11-01T04:00:00Z", "2026-10-31", "2026-11-01"}, // month end
		{"America/New_York", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", "2026-11-01", "2026-11-02"}, // 25 hours
		{"America/New_York", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", "2026-03-08", "2026-03-09"}, // 23 hours
		{"Asia/Kolkata", "2026-12-30T18:30:00Z", "2026-12-31T18:30:00Z", "2026-12-31", "2027-01-01"},
		{"Asia/Kathmandu", "2026-04-29T18:15:00Z", "2026-04-30T18:15:00Z", "2026-04-30", "2026-05-01"},
		{"Pacific/Kiritimati", "2026-02-27T10:00:00Z", "2026-02-28T10:00:00Z", "2026-02-28", "2026-03-01"},
		{"Pacific/Pago_Pago", "2026-06-30T11:00:00Z", "2026-07-01T11:00:00Z", "2026-06-30", "2026-07-01"},
		{"Australia/Lord_Howe", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z", "2026-10-04", "2026-10-05"}, // half an hour less
		{"America/Santiago", "2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z", "2026-09-06", "2026-09-07"},    // has no midnight
	} {
		p := domain.Policy{BudgetDayMicros: 5, BudgetMonthMicros: 9, ImagesDay: 3, TimeZone: row.zone}
		windows := func(at time.Time) (day, month string) {
			holds := p.Holds(domain.ScopeKey, "k", domain.Demand{CostMicros: 2, Images: 1}, at)
			require.Len(t, holds, 3)
			require.Equal(t, holds[0].Window, holds[2].Window, "images and money of a day are of the same day")
			return holds[0].Window, holds[1].Window
		}
		begin, err := time.Parse(time.RFC3339, row.begin)
		require.NoError(t, err)
		end, err := time.Parse(time.RFC3339, row.end)
		require.NoError(t, err)
		for at, want := range map[time.Time]string{begin: row.day, end.Add(-time.Nanosecond): row.day, end: row.next} {
			day, month := windows(at)
			assert.Equal(t, want, day, "%s %s", row.zone, at)
			assert.Equal(t, want[:7], month, "%s %s", row.zone, at)
		}
		day, _ := windows(begin.Add(-time.Nanosecond))
		assert.NotEqual(t, row.day, day, "%s %s", row.zone, begin)
	}
}

func TestHoldsAreThoseOfEveryLimitThatApplies(t *testing.T) {
	t.Parallel()
	p := domain.Policy{
		RPM: 60, RPMBurst: 5, TPM: 1000,
		Models: map[string]domain.Policy{
			"m": {TPM: 500, TPMBurst: 100, InFlight: 2, ImagesDay: 1},
			"n": {RPM: 1},
		},
	}
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	demand := domain.Demand{Models: []string{"m"}, Tokens: 30}
	own := []domain.Hold{
		{Kind: domain.LimitRPM, Scope: domain.ScopeKey, ID: "k", Limit: 60, Burst: 5, Amount: 1},
		{Kind: domain.LimitTPM, Scope: domain.ScopeKey, ID: "k", Limit: 1000, Amount: 30},
	}
	ofModel := []domain.Hold{
		{Kind: domain.LimitTPM, Scope: domain.ScopeKeyModel, ID: "k m", Limit: 500, Burst: 100, Amount: 30},
		{Kind: domain.LimitInFlight, Scope: domain.ScopeKeyModel, ID: "k m", Limit: 2, Amount: 1},
	}
	assert.Equal(t, append(own, ofModel...), p.Holds(domain.ScopeKey, "k", demand, now))
	demand.Images = 2
	images := domain.Hold{Kind: domain.LimitImagesDay, Scope: domain.ScopeKeyModel, ID: "k m", Window: "2026-12-01", Limit: 1, Amount: 2}
	assert.Equal(t, append(append(own[:2:2], ofModel...), images), p.Holds(domain.ScopeKey, "k", demand, now))
	demand.Models = []string{"o"}
	assert.Equal(t, own, p.Holds(domain.ScopeKey, "k", demand, now), "a model without limits has those of all")
	demand.Models = []string{"n"}
	assert.Equal(t, domain.ScopeIdentityModel, p.Holds(domain.ScopeIdentity, "acme", demand, now)[2].Scope)
	assert.Empty(t, domain.Policy{}.Holds(domain.ScopeRegion, "eu-1", demand, now), "no rule, no hold")

	demand.Models = []string{"m", "o", "n"}
	several := p.Holds(domain.ScopeKey, "k", demand, now)
	assert.Equal(t, "k n", several[len(several)-1].ID, "of every model that may be dispatched")
	assert.True(t, several[0].Concerns("o"))
	assert.True(t, several[len(several)-1].Concerns("n"))
	assert.False(t, several[len(several)-1].Concerns("m"))

	assert.True(t, p.LimitsImages("m"))
	assert.False(t, p.LimitsImages("n"))
	assert.EqualValues(t, 5, own[0].Size())
	assert.EqualValues(t, 1000, own[1].Size(), "a bucket without a burst holds a minute's worth")
}
