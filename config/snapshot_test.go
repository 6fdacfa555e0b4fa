package config_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
	"keyway/domain"
)

func regionConfig(t *testing.T, version int64) *keywayv1.RegionConfig {
	t.Helper()
	cfg, err := config.Load("testdata/full.good.yaml")
	require.NoError(t, err)
	return &keywayv1.RegionConfig{Version: version, Config: cfg}
}

func TestCompile(t *testing.T) {
	t.Parallel()
	rc := regionConfig(t, 7)
	before := proto.CloneOf(rc)
	got, err := config.Compile(rc)
	require.NoError(t, err)
	assert.True(t, proto.Equal(before, rc))

	vendor := domain.Provider{
		Name:             "vendor",
		BaseURL:          "https://LLM.example.com:443/compat/v1",
		Dialects:         []domain.Dialect{domain.DialectOpenAI, domain.DialectAnthropic},
		Authority:        "LLM.example.com",
		BasePath:         "/compat/v1",
		FirstByteLimit:   90 * time.Second,
		AnthropicVersion: "2025-01-01",
	}
	plain := domain.Provider{
		Name: "plain", BaseURL: "http://127.0.0.1:9000", Dialects: []domain.Dialect{domain.DialectOpenAI}, Authority: "127.0.0.1:9000",
		FirstByteLimit: time.Minute, AnthropicVersion: "2023-06-01",
	}
	assert.Equal(t, &config.Snapshot{
		Version: 7, Region: "eu-1", MaxRequestBytes: 1 << 20, Lease: 20 * time.Second, KeepStoredIDs: 720 * time.Hour,
		Models: map[string]domain.Model{
			"team/model:latest": {
				Name: "team/model:latest", ContextWindow: 200_000, MaxOutput: 8192, HiddenPromptFloor: 20_000, Class: "team/model:latest",
				Heartbeat: 10 * time.Second, IdleLimit: 15 * time.Minute, EarlyHeartbeat: true, Background: domain.BackgroundPoll,
				Price: domain.Price{
					Version: "2", Input: 2_500_000, CacheRead: 250_000, CacheWrite: 3_125_000, Output: 12_000_001,
					Special: []domain.PartRate{
						{Part: domain.PartCacheWrite30m, Rate: 3_200_000},
						{Part: domain.PartCacheWrite1h, Rate: 5_000_000},
						{Part: domain.PartCacheWrite12h, Rate: 7_500_000},
						{Part: domain.PartInputAudio, Rate: 40_000_000},
						{Part: domain.PartReasoning, Rate: 14_000_000},
						{Part: domain.PartOutputAudio, Rate: 80_000_000},
						{Part: domain.PartOutputImage, Rate: 30_000_000},
					},
					Steps: []domain.PriceStep{{
						AbovePrompt: 200_000, Input: 5_000_000, CacheRead: 500_000, CacheWrite: 6_250_000, Output: 22_500_000,
						Special: []domain.PartRate{
							{Part: domain.PartCacheWrite30m, Rate: 6_400_000},
							{Part: domain.PartCacheWrite1h, Rate: 10_000_000},
							{Part: domain.PartCacheWrite12h, Rate: 15_000_000},
							{Part: domain.PartInputAudio, Rate: 80_000_000},
							{Part: domain.PartInputImage, Rate: 6_000_000},
							{Part: domain.PartReasoning, Rate: 28_000_000},
							{Part: domain.PartOutputAudio, Rate: 160_000_000},
							{Part: domain.PartOutputImage, Rate: 60_000_000},
						},
					}},
					Tools: []domain.ToolRate{{Tool: domain.ToolWebSearch, PerThousand: 10_000_000}, {Tool: domain.ToolCodeInterpreter, PerThousand: 30_000_000}},
					Tiers: []domain.TierFactor{{Tier: "flex", FactorMicros: 500_000}, {Tier: "priority", FactorMicros: 2_000_000}},
				},
				Channels: []string{"vendor-a"},
				Strategy: domain.StrategySticky, Fallbacks: []string{"small"}, State: domain.ModelDeprecated,
				Sunset: time.Date(2027, 3, 31, 0, 0, 0, 0, time.UTC), Notice: "Use small.",
				Images: []domain.ImagePrice{{Quality: "high", Size: "1024x1024", Micros: 170_000}, {Micros: 40_000}},
			},
			"small": {
				Name: "small", ContextWindow: 2048, MaxOutput: 2048, HiddenPromptFloor: 2048, Class: "small",
				Heartbeat: 14 * time.Second, IdleLimit: 10 * time.Minute, Background: domain.BackgroundRefuse,
				Price: domain.Price{Version: "1"}, Channels: []string{"vendor-a", "plain-a"},
				Strategy: domain.StrategyWeighted, State: domain.ModelActive, Raw: []string{"/v1/files", "/v1/files/tmp"},
			},
		},
		Aliases: map[string]domain.Alias{
			"latest": {Name: "latest", Model: "team/model:latest", Canary: "small", Percent: 5},
			"tiny":   {Name: "tiny", Model: "small"},
		},
		Channels: map[string]domain.Channel{
			"vendor-a": {
				Name: "vendor-a", Provider: vendor, SecretRef: "file:/run/secrets/vendor-a", Priority: 1, Weight: 3, Slots: 40,
				Models:       map[string]string{"team/model:latest": "model-2026", "small": "small"},
				Organization: "org-1", Project: "proj-1", Account: "3b89daaa", Cost: 0.8, Egress: domain.EgressNative,
				ObserveOnly: true, Probe: domain.Probe{Path: "/health", Every: 90 * time.Second},
			},
			"plain-a": {
				Name: "plain-a", Provider: plain, SecretRef: "env:PLAIN_KEY", Weight: 1,
				Models: map[string]string{"small": "tiny"}, InjectUsage: true, Account: "e8b34922", Cost: 1, Egress: domain.EgressExtProc,
			},
		},
		Policies: map[string]domain.Policy{
			"team": {
				Name: "team", RPM: 600, TPM: 200_000, InFlight: 20,
				BudgetDayMicros: 25_000_000, BudgetMonthMicros: 500_000_000, TimeZone: "Europe/Berlin", InjectCap: true,
				RPMBurst: 60, TPMBurst: 400_000, ImagesDay: 50, CountTokensRPM: 900,
				Models: map[string]domain.Policy{"small": {
					Name: "small", RPM: 10, RPMBurst: 2, TPM: 5000, TPMBurst: 9000, InFlight: 3,
					BudgetDayMicros: 1_500_000, BudgetMonthMicros: 15_000_000, ImagesDay: 5, TimeZone: "Europe/Berlin",
				}},
			},
			"empty": {Name: "empty", TimeZone: "UTC"},
			"trusting": {
				Name: "trusting", BudgetDayMicros: 50_000_000, InFlight: 8, TimeZone: "UTC",
				OpenWindow: 10 * time.Second, OptimisticMicros: 1_500_000,
			},
			"steady": {Name: "steady", RPM: 600, TimeZone: "UTC", OpenWindow: 5 * time.Second},
			"local": {
				Name: "local", TimeZone: "UTC", Leased: true,
				Models: map[string]domain.Policy{"small": {Name: "small", TPM: 5000, TimeZone: "UTC", Leased: true}},
			},
		},
		Cooldown:     domain.CooldownBounds{First: 2 * time.Second, Least: time.Second, Most: 5 * time.Minute},
		Ceiling:      domain.Policy{RPM: 6000, RPMBurst: 200, TPM: 1_000_000, TPMBurst: 2_000_000, InFlight: 500},
		Identities:   map[string]string{"acme": "team", "user:42@example.com": ""},
		PriceFactors: map[string]int64{"acme": 900_000},
		Prepaid:      map[string]bool{"acme": true},
		ModelNames:   []string{"latest", "small", "team/model:latest", "tiny"},
		Raw:          []config.RawPath{{Path: "/v1/files/tmp", Model: "small"}, {Path: "/v1/files", Model: "small"}},
	}, got)
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(*keywayv1.RegionConfig)
		want  string
	}{
		{"no version", func(rc *keywayv1.RegionConfig) { rc.Version = 0 }, "version must be 1 or more"},
		{"no content", func(rc *keywayv1.RegionConfig) { rc.Config = nil }, "region: is missing"},
		{"bad decimal", func(rc *keywayv1.RegionConfig) { rc.Config.Models[0].Prices[0].Input = "x" }, `models[0].prices[0].input: "x" is not a decimal`},
		{"dangling channel", func(rc *keywayv1.RegionConfig) { rc.Config.Providers = nil }, `channels[0].provider: "vendor" is not a provider`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rc := regionConfig(t, 7)
			tt.spoil(rc)
			_, err := config.Compile(rc)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestCompileKeepsModelWhoseChannelsAreWithheld(t *testing.T) {
	t.Parallel()
	rc := regionConfig(t, 1)
	rc.Config.Channels = nil
	require.ErrorContains(t, config.Validate(rc.Config), "no channel serves", "not for an operator's file")
	s, err := config.Compile(rc)
	require.NoError(t, err)
	assert.Contains(t, s.Models, "small")
	assert.Empty(t, s.Models["small"].Channels)
}

func TestHolder(t *testing.T) {
	t.Parallel()
	var h config.Holder
	assert.Nil(t, h.Load())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)

	var early, late []int64
	h.OnChange(func(s *config.Snapshot) { early = append(early, s.Version) })
	waited := make(chan *config.Snapshot)
	go func() {
		s, err := h.Wait(t.Context())
		assert.NoError(t, err)
		waited <- s
	}()
	h.Set(&config.Snapshot{Version: 1})
	assert.EqualValues(t, 1, (<-waited).Version)
	h.OnChange(func(s *config.Snapshot) { late = append(late, s.Version) })
	h.Set(&config.Snapshot{Version: 2})
	assert.EqualValues(t, 2, h.Load().Version)
	assert.Equal(t, []int64{1, 2}, early)
	assert.Equal(t, []int64{1, 2}, late, "an observer begins with the one in force")
	s, err := h.Wait(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 2, s.Version)
}
