package authz

import (
	"testing"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// An identity's multiplier is in what is held and in what travels to the
// settlement; the model's own price stays as it is for everyone else.
func TestIdentityMultiplierIsHeldAndTravels(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	snap := *f.server.config.Load()
	snap.PriceFactors = map[string]int64{"acme": 1_500_000}
	f.server.config.Set(&snap)

	got, err := f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	d := got.Decision
	require.EqualValues(t, 1_500_000, d.Price.FactorMicros)
	held := d.Holds[len(d.Holds)-1]
	require.Equal(t, domain.LimitBudgetDay, held.Kind)
	tokens := d.PromptTokens + 200 // at one and two micro-units
	require.Equal(t, (tokens*3+1)/2, held.Amount)
	require.Zero(t, snap.Models["m"].Price.FactorMicros)

	f.setKey(domain.VirtualKey{ID: "key_2", Identity: "globex", Policy: "p", State: domain.KeyActive})
	f.server.keys.drop(domain.HashKey(f.secret))
	got, err = f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	require.Zero(t, got.Decision.Price.FactorMicros)
}
