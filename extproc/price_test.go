package extproc

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// A tier without a price is charged as the standard one; that it happened must show.
func TestUnpricedTiersAreCounted(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t)
	d := decisionOf(domain.APIChat)
	d.Price.Tiers = []domain.TierFactor{{Tier: "flex", FactorMicros: 500_000}}
	for _, step := range []struct {
		tier   string
		result domain.SettleResult
		want   float64
	}{
		{"", domain.SettleDone, 0},
		{"flex", domain.SettleDone, 0},
		{"turbo", domain.SettleDone, 1},
		{"turbo", domain.SettleAlready, 1},
		{"turbo", domain.SettleUnknown, 2},
	} {
		s.settled(domain.Settlement{Decision: d, Record: domain.UsageRecord{Usage: domain.Usage{Tier: step.tier}}}, step.result)
		require.InDelta(t, step.want, testutil.ToFloat64(s.metrics.unpricedTiers), 0, "%+v", step)
	}
}
