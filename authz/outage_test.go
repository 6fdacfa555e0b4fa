package authz

import (
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
)

// rpm is a hold of one request on a rate.
func rpm(id string, limit int64) domain.Hold {
	return domain.Hold{Kind: domain.LimitRPM, Scope: domain.ScopeKey, ID: id, Limit: limit, Amount: 1}
}

func admittedOf(o *outage, tries int, at time.Time, holds ...domain.Hold) (n int) {
	for range tries {
		if o.admits(holds, blindly(holds, domain.Policy{OpenWindow: 10 * time.Second}, domain.Policy{}), at) {
			n++
		}
	}
	return n
}

func TestOutageGivesOneAllowance(t *testing.T) {
	t.Parallel()
	o := newOutage()
	require.Equal(t, 100, admittedOf(o, 150, now, rpm("a", 600)), "ten seconds of 600 a minute")
	require.Equal(t, 0, admittedOf(o, 5, now.Add(9*time.Second), rpm("a", 600)), "it does not come back while the outage lasts")
	require.Equal(t, 1, admittedOf(o, 5, now.Add(10*time.Second), rpm("b", 6)), "each has its own")
	require.Equal(t, 0, admittedOf(o, 5, now, rpm("c", 5)), "less than one in a window is none")
	require.Equal(t, 0, admittedOf(o, 5, now.Add(10*time.Second+1), rpm("d", 600)), "the window is over for everyone")

	// A store that comes back for a moment brings a new window, and no new allowance.
	o.over(now.Add(20 * time.Second))
	require.Equal(t, 0, admittedOf(o, 5, now.Add(21*time.Second), rpm("a", 600)))
	require.Equal(t, 100, admittedOf(o, 150, now.Add(21*time.Second), rpm("d", 600)))
	o.over(now.Add(30 * time.Second))
	require.Equal(t, 100, admittedOf(o, 150, now.Add(30*time.Second+outageRest+1), rpm("a", 600)))
}

// What one rate refuses is not charged to the other.
func TestOutageChargesAllOrNothing(t *testing.T) {
	t.Parallel()
	o := newOutage()
	tokens := domain.Hold{Kind: domain.LimitTPM, Scope: domain.ScopeKey, ID: "a", Limit: 600, Amount: 40}
	require.Equal(t, 2, admittedOf(o, 10, now, rpm("a", 600), tokens), "100 tokens in a window")
	require.Equal(t, 98, admittedOf(o, 200, now, rpm("a", 600)))
}

func TestOutageRemembersABoundedNumber(t *testing.T) {
	t.Parallel()
	o := newOutage()
	o.ended = now
	for i := range maxOpenBuckets {
		o.spent[rateBucket{id: strconv.Itoa(i)}] = 1
	}
	require.Equal(t, 0, admittedOf(o, 1, now.Add(time.Second), rpm("late", 600)), "it follows another one closely")
}

func TestBlindly(t *testing.T) {
	t.Parallel()
	open, short, refusing := domain.Policy{OpenWindow: 9 * time.Second}, domain.Policy{OpenWindow: 4 * time.Second}, domain.Policy{}
	trusting := domain.Policy{OpenWindow: 9 * time.Second, OptimisticMicros: 500}
	hold := func(kind domain.LimitKind, scope domain.Scope) domain.Hold {
		return domain.Hold{Kind: kind, Scope: scope}
	}
	for name, tt := range map[string]struct {
		holds       []domain.Hold
		own, shared domain.Policy
		want        time.Duration
	}{
		"no limit has no policy that could say so": {nil, open, open, 0},
		"rates of both":                 {[]domain.Hold{hold(domain.LimitRPM, domain.ScopeKey), hold(domain.LimitTPM, domain.ScopeIdentity)}, open, short, 4 * time.Second},
		"a model's rate":                {[]domain.Hold{hold(domain.LimitTPM, domain.ScopeKeyModel)}, open, refusing, 9 * time.Second},
		"one of them refuses":           {[]domain.Hold{hold(domain.LimitRPM, domain.ScopeKey), hold(domain.LimitRPM, domain.ScopeIdentity)}, open, refusing, 0},
		"a budget of the identity":      {[]domain.Hold{hold(domain.LimitRPM, domain.ScopeKey), hold(domain.LimitBudgetDay, domain.ScopeIdentity)}, open, open, 0},
		"the region's ceiling":          {[]domain.Hold{hold(domain.LimitRPM, domain.ScopeKey), hold(domain.LimitRPM, domain.ScopeRegion)}, open, open, 0},
		"a budget on credit and a rate": {[]domain.Hold{hold(domain.LimitBudgetDay, domain.ScopeKey), hold(domain.LimitRPM, domain.ScopeIdentity)}, trusting, short, 4 * time.Second},
		"a budget of the other one":     {[]domain.Hold{hold(domain.LimitRPM, domain.ScopeKey), hold(domain.LimitBudgetDay, domain.ScopeIdentity)}, trusting, open, 0},
		"images":                        {[]domain.Hold{hold(domain.LimitImagesDay, domain.ScopeKey)}, trusting, open, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, blindly(tt.holds, tt.own, tt.shared).open)
		})
	}
}

func TestCheckInAnOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reservations.err = domain.ErrStoreDown
	f.reconfigure(func(s *config.Snapshot) {
		s.Policies["p"] = domain.Policy{RPM: 60, OpenWindow: 3 * time.Second}
		s.Identities = nil
	})
	for range 3 {
		got, err := f.server.check(t.Context(), f.request(hello))
		require.NoError(t, err)
		require.Empty(t, got.Headers, "nobody knows what remains")
		require.NotEmpty(t, got.Decision.Candidates)
	}
	require.Empty(t, f.server.refunds.queue, "what went out is settled, not given back")
	_, err := f.server.check(t.Context(), f.request(hello))
	require.Equal(t, domain.CodeUnavailable, domain.AsError(err).Code)
	require.Len(t, f.server.refunds.queue, 1)
}

// Where leases serve, no request tells that the store is back; their exchange does,
// or the next outage would begin with the window of this one.
func TestOutageEndsWithALease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	rates := &fakeRates{left: map[domain.LimitKind]int64{domain.LimitRPM: 600}, err: domain.ErrStoreDown}
	f.server.lending.rates, f.reservations.err = rates, domain.ErrStoreDown
	f.reconfigure(func(s *config.Snapshot) {
		s.Policies["p"] = domain.Policy{RPM: 600, Leased: true, OpenWindow: 3 * time.Second}
		s.Identities = nil
	})
	_, err := f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err, "within the window")
	f.server.lending.tick(t.Context(), (*lending).wish)
	require.True(t, f.server.outage.away.Load())
	rates.err = nil
	f.server.lending.tick(t.Context(), (*lending).wish)
	require.False(t, f.server.outage.away.Load())
}

// After the store has lost writes, what a window limits is refused until they
// are rebuilt, and the log says once what is the matter.
func TestCheckWithoutBudgets(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var log strings.Builder
	f.server.logger = slog.New(slog.NewTextHandler(&log, nil))
	f.reservations.admission.BudgetsUnknown = true
	for range 3 {
		_, err := f.server.check(t.Context(), f.request(hello))
		got := domain.AsError(err)
		require.Equal(t, domain.CodeUnavailable, got.Code)
		require.Equal(t, time.Second, got.RetryAfter)
	}
	require.Empty(t, f.server.refunds.queue, "nothing stays charged")
	require.InDelta(t, 3, testutil.ToFloat64(f.server.metrics.budgetsUnknown), 0)
	require.Equal(t, 1, strings.Count(log.String(), "no worker has rebuilt its budgets"))
}
