package authz

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
	"keyway/wire"
)

// routed adds models and channels to the fixture's configuration: "m" falls back to
// "n" and "secret", and has the aliases "latest" and "trial".
func (f *fixture) routed(change func(*config.Snapshot)) {
	f.reconfigure(func(s *config.Snapshot) {
		s.Channels = maps.Clone(s.Channels)
		openai := s.Channels["a"].Provider
		s.Channels["c"] = domain.Channel{Name: "c", Provider: openai, Weight: 1, Models: map[string]string{"n": "n-upstream", "secret": "s"}}
		m := s.Models["m"]
		m.Fallbacks = []string{"n", "secret"}
		s.Models["m"] = m
		s.Models["n"] = domain.Model{
			Name: "n", ContextWindow: 2000, MaxOutput: 800, Channels: []string{"c"},
			Price: domain.Price{Version: "n1", Input: 5_000_000, Output: 7_000_000},
		}
		s.Models["secret"] = domain.Model{Name: "secret", MaxOutput: 10, State: domain.ModelPreview, Channels: []string{"c"}}
		s.Aliases = map[string]domain.Alias{
			"latest": {Name: "latest", Model: "m"},
			"trial":  {Name: "trial", Model: "m", Canary: "n", Percent: 50},
		}
		s.PriceFactors = map[string]int64{"acme": 2_000_000}
		s.Policies["p"] = domain.Policy{Models: map[string]domain.Policy{"m": {RPM: 5}, "n": {RPM: 6}, "secret": {RPM: 7}}}
		if change != nil {
			change(s)
		}
	})
}

// cool makes channels rest, or takes them out when left is 0.
func (f *fixture) cool(left time.Duration, channels ...string) {
	t := &healthTable{at: now, cooldowns: map[domain.ChannelClass]domain.Cooldown{}}
	for _, name := range channels {
		key := domain.ChannelClass{Channel: name, Class: domain.EveryClass}
		t.cooldowns[key] = domain.Cooldown{ChannelClass: key, Reason: domain.ReasonRate, Left: left, Out: left == 0}
	}
	f.server.channelHealth.last.Store(t)
}

func channelsOf(d domain.Decision) []string {
	var names []string
	for _, c := range d.Candidates {
		names = append(names, c.Channel+" "+d.ModelOf(c))
	}
	return names
}

func TestFallbackModelsFollow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.routed(nil)
	got, err := f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	d := got.Decision
	require.Equal(t, []string{"a m", "b m", "c n"}, channelsOf(d))
	last := d.Candidates[2]
	assert.Equal(t, "n1", d.PriceOf(last).Version)
	assert.EqualValues(t, 2_000_000, d.PriceOf(last).FactorMicros, "the identity's multiplier goes along")
	assert.Equal(t, "v", d.PriceOf(d.Candidates[0]).Version)
	assert.Equal(t, "n-upstream", last.UpstreamModel)
	require.Len(t, d.Route, 4)
	assert.Equal(t, domain.Standing{Model: "secret", LeftOut: leftKey}, d.Route[3], "in preview, and the key does not name it")

	var money, rpm []int64
	for _, h := range d.Holds {
		if h.Kind.IsBudget() {
			money = append(money, h.Amount)
		}
		if h.Scope == domain.ScopeKeyModel {
			rpm = append(rpm, h.Limit)
		}
	}
	assert.Equal(t, []int64{2 * (5*d.PromptTokens + 7*100)}, money, "the dearest that may serve")
	assert.Equal(t, []int64{5, 6}, rpm, "the limits of each that may serve")
}

func TestFallbackServesAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.routed(nil)
	f.cool(time.Minute, "a", "b")
	got, err := f.server.check(t.Context(), f.request(`{"model":"m","messages":[]}`))
	require.NoError(t, err)
	d := got.Decision
	require.Equal(t, []string{"c n"}, channelsOf(d))
	assert.Equal(t, []string{"n", "m", "n1"}, []string{d.Model, d.AskedModel(), d.Price.Version})
	assert.EqualValues(t, 800, d.OutputCap, "sized for the model that serves")
	assert.Empty(t, d.Candidates[0].Model, "it is the decision's own")
	assert.Equal(t, "cooling for 1m0s (rate)", d.Route[0].LeftOut)
	for _, h := range d.Holds {
		assert.NotEqual(t, "key_1 m", h.ID, "a model that cannot serve holds nothing")
	}

	f.cool(0, "a", "b", "c")
	_, err = f.server.check(t.Context(), f.request(hello))
	refused := domain.AsError(err)
	require.Equal(t, domain.CodeNoChannel, refused.Code)
	require.True(t, refused.NoRetry)
	f.cool(3*time.Second, "a", "b", "c")
	_, err = f.server.check(t.Context(), f.request(hello))
	refused = domain.AsError(err)
	require.Equal(t, domain.CodeNoChannel, refused.Code)
	require.Equal(t, 3*time.Second, refused.RetryAfter)
}

// A model with many channels leaves its fallback the last place.
func TestTheLastPlaceIsTheFallbacks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.routed(func(s *config.Snapshot) {
		m := s.Models["m"]
		for i := range 6 {
			name := fmt.Sprint("more-", i)
			s.Channels[name] = domain.Channel{Name: name, Provider: s.Channels["a"].Provider, Models: map[string]string{"m": "m"}}
			m.Channels = append(m.Channels, name)
		}
		s.Models["m"] = m
	})
	got, err := f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	require.Len(t, got.Decision.Candidates, maxCandidates)
	require.Equal(t, "n", got.Decision.ModelOf(got.Decision.Candidates[3]))
	left := 0
	for _, s := range got.Decision.Route {
		if s.LeftOut == leftPlace {
			left++
		}
	}
	require.Equal(t, 5, left)
}

// The model that is dispatched is the one that a key must allow, whatever it
// was called and whichever way leads to it.
func TestCase067KeysAreCheckedOnTheModelDispatched(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		models   []string
		identity string
		asked    string
		want     []string // nil is a refusal
	}{
		{nil, "acme", "m", []string{"a m", "b m", "c n"}},
		{nil, "acme", "latest", []string{"a m", "b m", "c n"}},
		{[]string{"m"}, "acme", "m", []string{"a m", "b m"}},
		{[]string{"m"}, "acme", "latest", []string{"a m", "b m"}},
		{[]string{"latest"}, "acme", "latest", nil},
		{[]string{"m", "secret"}, "acme", "m", []string{"a m", "b m", "c secret"}},
		{nil, "acme", "secret", nil},
		{[]string{"*"}, "acme", "secret", nil},
		{[]string{"*", "secret"}, "acme", "secret", []string{"c secret"}},
		{[]string{"m"}, "acme", "n", nil},
	} {
		t.Run(fmt.Sprint(tc.models, tc.asked), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.routed(nil)
			f.setKey(domain.VirtualKey{ID: "key_1", Identity: tc.identity, State: domain.KeyActive, Models: tc.models})
			got, err := f.server.check(t.Context(), f.request(`{"model":"`+tc.asked+`","messages":[]}`))
			if tc.want == nil {
				require.Equal(t, domain.CodeModelNotFound, domain.AsError(err).Code)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, channelsOf(got.Decision))
			require.Equal(t, tc.asked, got.Decision.AskedModel())
		})
	}
}

func TestACanaryTakesItsShareOfIdentities(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.routed(nil)
	snap := f.server.config.Load()
	taken := 0
	for i := range 1000 {
		key := domain.VirtualKey{Identity: fmt.Sprint("identity-", i)}
		first, ok := resolve(snap, key, "trial")
		require.True(t, ok)
		again, _ := resolve(snap, key, "trial")
		require.Equal(t, first.Name, again.Name)
		key.Models = []string{"m"}
		kept, ok := resolve(snap, key, "trial")
		require.True(t, ok)
		require.Equal(t, "m", kept.Name, "a key that may not use the canary stays")
		if first.Name == "n" {
			taken++
		}
	}
	require.InDelta(t, 500, taken, 60)
}

func TestDeprecatedModelsSaySo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.routed(func(s *config.Snapshot) {
		m := s.Models["m"]
		m.State, m.Notice, m.Sunset = domain.ModelDeprecated, "Use n.", time.Date(2027, 3, 31, 0, 0, 0, 0, time.UTC)
		s.Models["m"] = m
		s.Policies["p"] = domain.Policy{}
	})
	got, err := f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	require.Equal(t, []wire.Header{{Name: "x-keyway-notice", Value: "Use n."}, {Name: "sunset", Value: "Wed, 31 Mar 2027 00:00:00 GMT"}}, got.Headers)
	require.Equal(t, []wire.Header{{Name: "x-keyway-notice", Value: "The model x is deprecated."}}, notices(domain.Model{Name: "x", State: domain.ModelDeprecated}))
}

// What continues a stored response goes to the channel that made it, or nowhere.
func TestStoredIDsPinTheirChannel(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		body   string
		change func(*fixture)
		want   []string
		code   domain.Code
		words  string
	}{
		{name: "a response", body: `"model":"m","previous_response_id":"resp_b"`, want: []string{"b m"}},
		{name: "a conversation", body: `"model":"m","conversation":"conv_1"`, want: []string{"a m"}},
		{name: "nothing", body: `"model":"m","previous_response_id":null`, want: []string{"a m", "b m", "c n"}},
		{name: "through a fallback", body: `"model":"m","previous_response_id":"resp_c"`, want: []string{"c n"}},
		{name: "an unknown one", body: `"model":"m","previous_response_id":"resp_9"`, code: domain.CodeNotFound, words: "does not exist"},
		{
			name: "another's", body: `"model":"m","previous_response_id":"resp_b"`, code: domain.CodeNotFound, words: "does not exist",
			change: func(f *fixture) { f.setKey(domain.VirtualKey{ID: "key_2", Identity: "other", State: domain.KeyActive}) },
		},
		{name: "of two channels", body: `"model":"m","previous_response_id":"resp_b","conversation":"conv_1"`, code: domain.CodeInvalidRequest, words: "different providers"},
		{name: "of a channel that is gone", body: `"model":"m","previous_response_id":"resp_gone"`, code: domain.CodeNotFound, words: "no longer has"},
		{name: "of a channel without the model", body: `"model":"n","previous_response_id":"resp_b"`, code: domain.CodeNotFound, words: `does not serve the model "n"`},
		{
			name: "of a channel that cools", body: `"model":"m","previous_response_id":"resp_b"`, code: domain.CodeNoChannel, words: "left alone",
			change: func(f *fixture) { f.cool(time.Minute, "b") },
		},
		{
			name: "while the store is away", body: `"model":"m","previous_response_id":"resp_b"`, code: domain.CodeUnavailable,
			change: func(f *fixture) { f.stored.err = domain.ErrStoreDown },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.routed(nil)
			f.stored.byID = map[string]string{"resp_b": "b", "resp_c": "c", "resp_gone": "gone", "conv_1": "a"}
			if tc.change != nil {
				tc.change(f)
			}
			r := f.request(`{` + tc.body + `,"input":"go on"}`)
			r.Target = "/v1/responses"
			got, err := f.server.check(t.Context(), r)
			if tc.code != "" {
				refused := domain.AsError(err)
				require.Equal(t, tc.code, refused.Code)
				require.Contains(t, refused.Message, tc.words)
				require.Empty(t, f.reservations.admitted, "nothing is held")
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, channelsOf(got.Decision))
		})
	}
}

// A session stays on one channel of a sticky model, a cached prompt on that of
// any weighted one.
func TestAffinity(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.routed(func(s *config.Snapshot) {
		for _, name := range []string{"a", "b"} {
			c := s.Channels[name]
			c.Priority, c.Slots = 0, 0
			s.Channels[name] = c
		}
		m := s.Models["m"]
		m.Fallbacks = nil
		s.Models["m"] = m
		m.Name, m.Strategy = "sticky", domain.StrategySticky
		s.Models["sticky"] = m
		s.Policies["p"] = domain.Policy{}
	})
	f.server.random = func() float64 { panic("chance decides") }
	led := map[string]int{}
	for i := range 40 {
		for _, tc := range []struct {
			body    string
			headers map[string]string
		}{
			{`"model":"m","prompt_cache_key":"session-%d"`, nil},
			{`"model":"sticky","prompt_cache_key":"session-%d","user":"someone"`, nil},
			{`"model":"sticky","user":"session-%d"`, nil},
			{`"model":"sticky","safety_identifier":"session-%d"`, nil},
			{`"model":"sticky","metadata":{"x":"y","user_id":"session-%d"}`, nil},
			{`"model":"sticky","user":"someone%.0d"`, map[string]string{"x-session-id": fmt.Sprint("session-", i)}},
		} {
			r := f.request(`{` + fmt.Sprintf(tc.body, i) + `,"messages":[]}`)
			maps.Copy(r.Headers, tc.headers)
			got, err := f.server.check(t.Context(), r)
			require.NoError(t, err)
			led[fmt.Sprint(i, got.Decision.Candidates[0].Channel)]++
		}
	}
	require.Len(t, led, 40, "one channel for each session, whatever carries its name")
}

// Reading a stored response is no work that another model could do.
func TestStoredResponsesHaveNoFallback(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.routed(func(s *config.Snapshot) {
		c := s.Channels["a"]
		c.Models = map[string]string{"m": "m", "n": "n"}
		s.Channels["a"] = c
		n := s.Models["n"]
		n.Channels = []string{"a"}
		s.Models["n"] = n
	})
	snap := f.server.config.Load()
	a := ask{snap: snap, api: domain.APIStored, model: snap.Models["m"], pinned: "a"}
	require.Len(t, f.server.route(a).picks, 1)
	a.api = domain.APIResponses
	require.Len(t, f.server.route(a).picks, 2)
}
