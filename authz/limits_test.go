package authz

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
	"keyway/wire"
)

func TestEveryScopeIsHeld(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reconfigure(func(s *config.Snapshot) {
		s.Policies["p"] = domain.Policy{RPM: 10, RPMBurst: 3, Models: map[string]domain.Policy{"m": {InFlight: 2}, "other": {RPM: 1}}}
		s.Policies["shared"] = domain.Policy{Models: map[string]domain.Policy{"m": {TPM: 100_000}}}
		s.Ceiling = domain.Policy{RPM: 600, InFlight: 50}
	})
	got, err := f.server.check(t.Context(), f.request(hello))
	require.NoError(t, err)
	d, region := got.Decision, f.server.config.Load().Region
	require.Equal(t, []domain.Hold{
		{Kind: domain.LimitRPM, Scope: domain.ScopeKey, ID: "key_1", Limit: 10, Burst: 3, Amount: 1},
		{Kind: domain.LimitInFlight, Scope: domain.ScopeKeyModel, ID: "key_1 m", Limit: 2, Amount: 1},
		{Kind: domain.LimitTPM, Scope: domain.ScopeIdentityModel, ID: "acme m", Limit: 100_000, Amount: d.PromptTokens + d.OutputCap},
		{Kind: domain.LimitRPM, Scope: domain.ScopeRegion, ID: region, Limit: 600, Amount: 1},
		{Kind: domain.LimitInFlight, Scope: domain.ScopeRegion, ID: region, Limit: 50, Amount: 1},
	}, d.Holds, "the region's come last")
}

func TestImagesAreHeldWhereTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reconfigure(func(s *config.Snapshot) { s.Policies["p"] = domain.Policy{ImagesDay: 5} })
	for body, want := range map[string]int64{
		`{"model":"m","input":"draw","tools":[{"type":"image_generation"}]}`: 1,
		`{"model":"m","input":"image_generation"}`:                           0,
	} {
		r := f.request(body)
		r.Target = "/v1/responses"
		got, err := f.server.check(t.Context(), r)
		require.NoError(t, err)
		var held int64
		for _, h := range got.Decision.Holds {
			if h.Kind == domain.LimitImagesDay {
				held += h.Amount
			}
		}
		assert.Equal(t, want, held, body)
	}
}

func TestRefusalsNameTheLimit(t *testing.T) {
	t.Parallel()
	d := &domain.Decision{PromptTokens: 30, OutputCap: 100}
	for _, tc := range []struct {
		name     string
		refusal  domain.Refusal
		message  string
		wait     time.Duration
		hopeless bool
	}{
		{
			"a model's own",
			domain.Refusal{Kind: domain.LimitRPM, Scope: domain.ScopeKeyModel, Limit: 7, RetryAfter: 3 * time.Second},
			"This API key for this model has reached its limit of 7 requests per minute. Try again later.", 3 * time.Second, false,
		},
		{
			"a model's for the identity",
			domain.Refusal{Kind: domain.LimitInFlight, Scope: domain.ScopeIdentityModel, Limit: 7},
			"This account for this model has reached its limit of 7 requests in flight. Try again later.", time.Second, false,
		},
		{
			"more than a burst",
			domain.Refusal{Kind: domain.LimitTPM, Scope: domain.ScopeKey, Limit: 1000, Size: 129},
			"This request needs 130 tokens and the limit of this API key is 129 at once. Shorten the prompt or lower the output cap.", 0, true,
		},
		{
			"a burst that is used",
			domain.Refusal{Kind: domain.LimitTPM, Scope: domain.ScopeKey, Limit: 100, Size: 130, RetryAfter: time.Hour},
			"This API key has reached its limit of 100 tokens per minute. Try again later.", time.Minute, false,
		},
		{
			"images",
			domain.Refusal{Kind: domain.LimitImagesDay, Scope: domain.ScopeIdentity, Limit: 9, Size: 9},
			"This account has reached its limit of 9 images per day. Try again tomorrow, or without the tool image_generation.", 0, true,
		},
		{
			"the region's",
			domain.Refusal{Kind: domain.LimitTPM, Scope: domain.ScopeRegion, Limit: 777, Size: 777, RetryAfter: 2 * time.Second},
			"This gateway has reached its limit of tokens per minute for everyone together. Try again later.", 2 * time.Second, false,
		},
		{
			"more than the region's",
			domain.Refusal{Kind: domain.LimitTPM, Scope: domain.ScopeRegion, Limit: 77, Size: 77},
			"This request needs 130 tokens, more than this gateway ever lets through at once. Shorten the prompt or lower the output cap.", 0, true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := refused(tc.refusal, d)
			assert.Equal(t, domain.CodeRateLimited, e.Code)
			assert.Equal(t, tc.message, e.Message)
			assert.Equal(t, tc.wait, e.RetryAfter)
			assert.Equal(t, tc.hopeless, e.NoRetry)
			if tc.refusal.Scope == domain.ScopeRegion {
				assert.Empty(t, wire.LimitHeaders(domain.DialectOpenAI, nil, domain.Admission{Refusal: e.Limit}, time.Now()))
			}
		})
	}
}
