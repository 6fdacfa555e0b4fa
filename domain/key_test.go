package domain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func TestKeySecretHasAChecksum(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 200 {
		secret, err := domain.NewKeySecret()
		require.NoError(t, err)
		require.True(t, domain.WellFormedKey(secret), secret)
		require.False(t, seen[secret])
		seen[secret] = true
		for i := len(domain.KeyPrefix); i < len(secret); i++ {
			other := byte('0')
			if secret[i] == other {
				other = '1'
			}
			require.False(t, domain.WellFormedKey(secret[:i]+string(other)+secret[i+1:]), "a wrong character at %d passes", i)
		}
	}
	for _, bad := range []string{"", "kw_", "kw_" + strings.Repeat("a", 38), "sk-" + strings.Repeat("a", 38)} {
		require.False(t, domain.WellFormedKey(bad), bad)
	}
}

func TestKeyCheckAtTheEdgeOfItsExpiry(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	key := domain.VirtualKey{State: domain.KeyActive, ExpiresAt: now}
	require.Nil(t, key.Check(now.Add(-time.Nanosecond)))
	require.Equal(t, domain.CodeKeyExpired, key.Check(now).Code)
	key.State = domain.KeyDisabled
	require.Equal(t, domain.CodeKeyDisabled, key.Check(now.Add(-time.Hour)).Code)
	require.Equal(t, domain.CodeKeyDisabled, domain.VirtualKey{}.Check(now).Code, "no state is not active")
}

func TestTwoSecretsOfARotatedKey(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	key := domain.VirtualKey{Hash: "one", State: domain.KeyActive}
	code := func(hash string, at time.Time) domain.Code {
		if err := key.CheckSecret(hash, at); err != nil {
			return err.Code
		}
		return ""
	}
	require.Empty(t, code("one", now))
	require.Equal(t, domain.CodeInvalidKey, code("", now), "no previous secret is not an empty one")
	require.Equal(t, domain.CodeInvalidKey, code("two", now))

	key = key.Rotated(domain.KeyRotation{Hash: "two", At: now, Grace: time.Hour})
	require.Empty(t, code("two", now))
	require.Empty(t, code("one", now.Add(time.Hour-time.Nanosecond)))
	require.Equal(t, domain.CodeKeyExpired, code("one", now.Add(time.Hour)))
	require.Empty(t, code("two", now.Add(time.Hour)))

	key = key.Rotated(domain.KeyRotation{Hash: "three", At: now.Add(time.Minute)})
	require.Equal(t, domain.CodeInvalidKey, code("one", now.Add(time.Minute)), "its grace is forgotten")
	require.Equal(t, domain.CodeKeyExpired, code("two", now.Add(time.Minute)), "no grace ends at once")
	require.Empty(t, code("three", now.Add(time.Minute)))

	key.State = domain.KeyDisabled
	key.PreviousUntil = now.Add(time.Hour)
	require.Equal(t, domain.CodeKeyDisabled, code("two", now), "a state is that of both")
	require.Equal(t, domain.CodeKeyDisabled, code("three", now))
	key.State, key.PreviousHash = domain.KeyActive, ""
	require.Equal(t, domain.CodeInvalidKey, code("", now))
}

func TestHoldsFollowTheCalendarOfTheZone(t *testing.T) {
	t.Parallel()
	p := domain.Policy{BudgetDayMicros: 5, BudgetMonthMicros: 9, TimeZone: "America/New_York"}
	demand := domain.Demand{CostMicros: 2}
	for at, want := range map[string][2]string{
		"2026-12-01T04:59:59Z": {"2026-11-30", "2026-11"},
		"2026-12-01T05:00:00Z": {"2026-12-01", "2026-12"},
		"2026-03-08T06:59:59Z": {"2026-03-08", "2026-03"}, // the clocks go forward at 07:00Z
		"2026-11-01T05:30:00Z": {"2026-11-01", "2026-11"}, // the hour that comes twice
	} {
		now, err := time.Parse(time.RFC3339, at)
		require.NoError(t, err)
		holds := p.Holds(domain.ScopeKey, "k", demand, now)
		require.Len(t, holds, 2, "only limits that are set")
		require.Equal(t, want, [2]string{holds[0].Window, holds[1].Window}, at)
		require.Equal(t, int64(2), holds[0].Amount)
	}
}
