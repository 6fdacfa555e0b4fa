package authz

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// A response in the background goes out for models that allow it, and never
// through the relay, which might have it made twice.
func TestBackgroundIsTheModels(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","input":"x","stream":true,"background":true}`
	for _, tc := range []struct {
		name, target string
		mode         domain.Background
		admitted     bool
	}{
		{"polled", "/v1/responses", domain.BackgroundPoll, true},
		{"refused", "/v1/responses", domain.BackgroundRefuse, false},
		{"of another operation", "/v1/responses/input_tokens", domain.BackgroundPoll, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			m := f.server.config.Load().Models["m"]
			m.Background, m.EarlyHeartbeat = tc.mode, true
			f.server.config.Load().Models["m"] = m
			r := f.request(body)
			r.Target = tc.target
			got, err := f.server.check(t.Context(), r)
			if !tc.admitted {
				require.ErrorIs(t, err, errBackground)
				return
			}
			require.NoError(t, err)
			assert.True(t, got.Decision.Background)
			assert.False(t, got.Relay)
		})
	}
}
