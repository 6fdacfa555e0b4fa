package authz

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/envoy"
)

// Streams of a model that thinks in silence go through the relay, which then
// bounds its attempts by itself; everything else goes to the channels.
func TestRelayIsForStreamsOfThinkingModels(t *testing.T) {
	t.Parallel()
	const whole = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	for _, tc := range []struct {
		name, body string
		early      bool
		want       []string
	}{
		{"a stream", hello, true, []string{envoy.HeaderRelay}},
		{"a whole answer", whole, true, []string{envoy.HeaderMaxRetries, envoy.HeaderPerTryTimeout}},
		{"a stream of another model", hello, false, []string{envoy.HeaderMaxRetries, envoy.HeaderPerTryTimeout}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			m := f.server.config.Load().Models["m"]
			m.EarlyHeartbeat = tc.early
			f.server.config.Load().Models["m"] = m
			got, err := f.server.check(t.Context(), f.request(tc.body))
			require.NoError(t, err)
			response, err := admittedResponse(got)
			require.NoError(t, err)
			var names []string
			for _, h := range response.GetOkResponse().GetHeaders() {
				names = append(names, h.GetHeader().GetKey())
			}
			assert.Equal(t, tc.want, names)
		})
	}
}
