package authz

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
	"keyway/wire"
)

// reconfigure sets a changed copy of the fixture's configuration.
func (f *fixture) reconfigure(change func(*config.Snapshot)) {
	next := *f.server.config.Load()
	next.Policies, next.Models = maps.Clone(next.Policies), maps.Clone(next.Models)
	change(&next)
	f.server.config.Set(&next)
}

func injecting(s *config.Snapshot) {
	s.Policies["p"] = domain.Policy{RPM: 10, InjectCap: true}
}

func TestInjectedCap(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a b ", 600) // more than the model's window
	for _, tt := range []struct {
		name, body string
		change     func(*config.Snapshot)
		// want is the cap in the body and the header; 0 is none.
		want int64
	}{
		{"the policy of the key says so, the identity has the budget", `{"model":"m","messages":[]}`, injecting, 400},
		{"the policy of the identity says so", `{"model":"m","messages":[]}`, func(s *config.Snapshot) {
			s.Policies["shared"] = domain.Policy{BudgetMonthMicros: 1e6, InjectCap: true}
		}, 400},
		{"null is no cap", `{"model":"m","max_completion_tokens":null,"messages":[]}`, injecting, 400},
		{"each answer has its own", `{"model":"m","n":3,"messages":[]}`, injecting, 400},
		{"a full window leaves one token", `{"model":"m","messages":[{"role":"user","content":"` + long + `"}]}`, injecting, 1},
		{"the client's cap stands", `{"model":"m","max_tokens":7,"messages":[]}`, injecting, 0},
		{"the default is trust", `{"model":"m","messages":[]}`, func(*config.Snapshot) {}, 0},
		{"no budget applies", `{"model":"m","messages":[]}`, func(s *config.Snapshot) {
			injecting(s)
			delete(s.Policies, "shared")
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.reconfigure(tt.change)
			got, err := f.server.check(t.Context(), f.request(tt.body))
			require.NoError(t, err)
			require.Equal(t, tt.want > 0, hasHeader(got.Headers, headerOutputCap, fmt.Sprint(tt.want)))
			for _, c := range got.Decision.Candidates {
				sent, err := wire.ApplyPatches([]byte(tt.body), c.Patches)
				require.NoError(t, err)
				var body struct {
					Cap *int64 `json:"max_completion_tokens"`
					N   int64
				}
				require.NoError(t, json.Unmarshal(sent, &body))
				if tt.want == 0 {
					require.Nil(t, body.Cap)
					continue
				}
				require.NotNil(t, body.Cap, "%s", sent)
				require.Equal(t, tt.want, *body.Cap)
				require.Equal(t, *body.Cap*max(1, body.N), got.Decision.OutputCap, "what is held is what may come")
			}
		})
	}
}

func hasHeader(headers []wire.Header, name, value string) bool {
	for _, h := range headers {
		if h.Name == name {
			return h.Value == value
		}
	}
	return false
}

// A provider of the Responses API takes no cap below 16.
func TestInjectedCapOfResponses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reconfigure(func(s *config.Snapshot) {
		injecting(s)
		s.Models["m"] = domain.Model{Name: "m", MaxOutput: 3, Channels: []string{"b"}}
	})
	r := f.request(`{"model":"m","input":"hi"}`)
	r.Target = "/v1/responses"
	got, err := f.server.check(t.Context(), r)
	require.NoError(t, err)
	require.EqualValues(t, 16, got.Decision.OutputCap)
	sent, err := wire.ApplyPatches(r.Body, got.Decision.Candidates[0].Patches)
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(sent, []byte(`{"max_output_tokens":16,`)), "%s", sent)
}

// A cap in a field that the API does not heed bounds nothing, so it cannot make
// the hold smaller.
func TestCapOfAnotherAPI(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for body, want := range map[string]int64{
		`{"model":"m","max_output_tokens":1,"messages":[]}`:                  400,
		`{"model":"m","max_output_tokens":500,"messages":[]}`:                500,
		`{"model":"m","max_output_tokens":500,"max_tokens":2,"messages":[]}`: 500,
	} {
		got, err := f.server.check(t.Context(), f.request(body))
		require.NoError(t, err)
		require.Equal(t, want, got.Decision.OutputCap, body)
	}
}

func TestHiddenPromptHasAFloor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reconfigure(func(s *config.Snapshot) {
		m := s.Models["m"]
		m.HiddenPromptFloor = 300
		s.Models["m"] = m
	})
	for _, tt := range []struct {
		body   string
		hidden bool
	}{
		{`{"model":"m","input":"go on","previous_response_id":"resp_1"}`, true},
		{`{"model":"m","input":[{"type":"item_reference","id":"item_1"}]}`, true},
		{`{"model":"m","input":"hello"}`, false},
	} {
		r := f.request(tt.body)
		r.Target = "/v1/responses"
		got, err := f.server.check(t.Context(), r)
		require.NoError(t, err)
		d := got.Decision
		require.Equal(t, tt.hidden, d.PromptTokens == 300, "%s: %d", tt.body, d.PromptTokens)
		require.Equal(t, tt.hidden, d.Class == "", "nothing is learned from what is not seen")
		require.Equal(t, d.PromptTokens+d.OutputCap, d.Holds[1].Amount)
	}
}

// fakeCalibrations answers what it is told to.
type fakeCalibrations struct {
	known domain.Calibration
	err   error
}

func (f *fakeCalibrations) Calibration(context.Context) (domain.Calibration, error) {
	return f.known, f.err
}

func TestPromptIsCorrected(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	source := &fakeCalibrations{known: domain.Calibration{
		{Model: "m", Class: domain.ContentText}:   1.5,
		{Model: "m", Class: domain.ContentCJK}:    2,
		{Model: "else", Class: domain.ContentCJK}: 0.8,
	}}
	f.server.calibration.from = source
	text := func(content string) string {
		return `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"` + content + `"}]}`
	}
	english := text(strings.Repeat("rain and wind ", 30))
	before, err := f.server.check(t.Context(), f.request(english))
	require.NoError(t, err)
	require.Equal(t, before.Decision.PromptEstimate, before.Decision.PromptTokens, "nothing is known yet")

	f.server.calibration.refresh(t.Context())
	for body, factor := range map[string]float64{
		english:                                  1.5,
		text(strings.Repeat("今天天气", 40)):         2,
		text("rain"):                             1, // too short to be corrected
		text(strings.Repeat(`{\"a\":[1]} `, 40)): 1, // nothing known of this class
	} {
		got, err := f.server.check(t.Context(), f.request(body))
		require.NoError(t, err)
		d := got.Decision
		require.InDelta(t, factor*float64(d.PromptEstimate), float64(d.PromptTokens), 0.51, "%.80s", body)
		require.Equal(t, d.PromptTokens+1, d.Holds[1].Amount)
	}

	// A store that is away changes nothing for now.
	source.known, source.err = nil, errors.New("away")
	f.server.calibration.refresh(t.Context())
	after, err := f.server.check(t.Context(), f.request(english))
	require.NoError(t, err)
	require.InDelta(t, 1.5*float64(before.Decision.PromptTokens), float64(after.Decision.PromptTokens), 0.51)
}

// What a prepaid identity may cost is held of its balance, before all else; a
// policy that injects caps does so for a balance as for a budget.
func TestPrepaidIdentity(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	body := `{"model":"m","messages":[]}`
	before, err := f.server.check(t.Context(), f.request(body))
	require.NoError(t, err)
	f.reconfigure(func(s *config.Snapshot) {
		injecting(s)
		delete(s.Policies, "shared")
		s.Prepaid = map[string]bool{"acme": true}
	})
	got, err := f.server.check(t.Context(), f.request(body))
	require.NoError(t, err)
	d := got.Decision
	require.Positive(t, d.Price.MaxCostMicros(d.PromptTokens, d.OutputCap))
	require.Equal(t, domain.BalanceHold("acme", d.Price.MaxCostMicros(d.PromptTokens, d.OutputCap)), d.Holds[0])
	require.True(t, hasHeader(got.Headers, headerOutputCap, "400"))
	for _, h := range before.Decision.Holds {
		require.NotEqual(t, domain.LimitBalance, h.Kind)
	}
	require.Zero(t, blindly(d.Holds, domain.Policy{OpenWindow: 1}, domain.Policy{OpenWindow: 1}), "no balance can be kept without the store")
}
