package config

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// The defaults of a configuration, each with its reason.
const (
	// DefaultAddress keeps a first start off the network: clear-text keys
	// must not be accepted from afar by accident.
	DefaultAddress = "127.0.0.1"
	// DefaultPort is the customary port of a plain HTTP proxy; it needs no privilege.
	DefaultPort = 8080
	// DefaultMaxRequestBytes is 32 MiB: what the providers accept (Anthropic
	// says 32 MB), so that the gateway is never the tighter bound.
	DefaultMaxRequestBytes = 32 << 20
	// DefaultDrainTime is how long the longest answers take: providers end a
	// response after 10 minutes at the latest.
	DefaultDrainTime = 600 * time.Second
	// DefaultFirstByteLimit lets a reasoning model think for a minute before
	// the next channel is tried.
	DefaultFirstByteLimit = 60 * time.Second
	// DefaultConnectTimeout is two round trips around the world for TCP and
	// TLS with room for one lost packet.
	DefaultConnectTimeout = 2 * time.Second
	// DefaultHTTP2Ping notices a peer that vanished within 40 s, which is sooner
	// than a client gives up, and is rarer than what servers take for a flood.
	DefaultHTTP2Ping = 30 * time.Second
	// DefaultAnthropicVersion is the only version that Anthropic's SDKs send.
	DefaultAnthropicVersion = "2023-06-01"
	// DefaultWeight shares traffic evenly among channels that do not say otherwise.
	DefaultWeight = 1
	// DefaultMaxOutput is reserved where a request sets no cap: the common
	// default of chat models. More would refuse small budgets, less would
	// let answers overrun what was reserved.
	DefaultMaxOutput = 4096
	// DefaultHiddenPromptFloor is the size of a conversation of some turns.
	DefaultHiddenPromptFloor = 4096
	// DefaultOpenWindow covers a failover of the store.
	DefaultOpenWindow = 10 * time.Second
	// DefaultHeartbeat is one second, for the way to the client, below the 15
	// seconds that no stream is to be silent for.
	DefaultHeartbeat = 14 * time.Second
	// DefaultIdleLimit is how long the longest answers take in all.
	DefaultIdleLimit = 10 * time.Minute
	// DefaultCooldownFirst is short: it follows failures that say nothing of
	// their length, and the next trial doubles it where they last.
	DefaultCooldownFirst = 2 * time.Second
	// DefaultCooldownMin is what the SDKs round their own waits up to.
	DefaultCooldownMin = time.Second
	// DefaultProbePath is free of charge, and asks for the credential, at every
	// provider that serves the dialects.
	DefaultProbePath = "/models"
	// DefaultProbeEvery is the pause of the usual health checks of balancers times ten.
	DefaultProbeEvery = time.Minute
	// DefaultCooldownMax costs one trial request in five minutes where a
	// provider asks for hours.
	DefaultCooldownMax = 5 * time.Minute
)

// The words of closed text fields.
const (
	httpAuto = "auto"
	http1    = "http1"
	http2    = "http2"

	streamUsageInject = "inject"
	streamUsageLeave  = "leave"

	capTrust  = "trust"
	capInject = "inject"

	// costUsual is the cost of a channel that says nothing of it.
	costUsual = "1"

	storeDownRefuse     = "refuse"
	storeDownOpen       = "open_window"
	storeDownOptimistic = "optimistic"

	cooldownObey    = "obey"
	cooldownObserve = "observe"

	rateModeCentral = "central"
	rateModeLeased  = "leased"

	schemeHTTPS = "https://"
)

// FillDefaults sets every field of cfg that was left out, and brings base URLs
// to one form (no trailing slash). It changes cfg and may run again on its own
// result without effect.
func FillDefaults(cfg *keywayv1.Config) {
	if cfg.Listener == nil {
		cfg.Listener = new(keywayv1.Listener)
	}
	orDefault(&cfg.Listener.Address, DefaultAddress)
	orDefault(&cfg.Listener.Port, DefaultPort)
	if cfg.Limits == nil {
		cfg.Limits = new(keywayv1.Limits)
	}
	orDefault(&cfg.Limits.MaxRequestBytes, DefaultMaxRequestBytes)
	orDuration(&cfg.Limits.Lease, domain.DefaultLease)
	orDuration(&cfg.Limits.DrainTime, DefaultDrainTime)
	if cfg.Cooldown == nil {
		cfg.Cooldown = new(keywayv1.Cooldown)
	}
	orDefault(&cfg.Cooldown.Mode, cooldownObey)
	orDuration(&cfg.Cooldown.First, DefaultCooldownFirst)
	orDuration(&cfg.Cooldown.Min, DefaultCooldownMin)
	orDuration(&cfg.Cooldown.Max, DefaultCooldownMax)
	orDuration(&cfg.Limits.KeepStoredIds, domain.DefaultKeepStoredIDs)
	for _, p := range cfg.Providers {
		fillProvider(p)
	}
	for _, c := range cfg.Channels {
		if c.Weight == nil {
			c.Weight = proto.Uint32(DefaultWeight)
		}
		orDefault(&c.Cooldown, cfg.Cooldown.Mode)
		if c.Probe != nil {
			orDefault(&c.Probe.Path, DefaultProbePath)
			orDuration(&c.Probe.Every, DefaultProbeEvery)
		}
		orDefault(&c.StreamUsage, streamUsageInject)
		orDefault(&c.Cost, costUsual)
		orDefault(&c.Egress, string(domain.EgressExtProc))
		for _, m := range c.Models {
			orDefault(&m.Upstream, m.Name)
		}
	}
	for _, m := range cfg.Models {
		fillModel(m)
	}
	for _, p := range cfg.Policies {
		orDefault(&p.TimeZone, "UTC")
		orDefault(&p.Cap, capTrust)
		orDefault(&p.OnStoreDown, storeDownRefuse)
		orDefault(&p.RateMode, rateModeCentral)
		if p.OnStoreDown == storeDownOpen || p.OnStoreDown == storeDownOptimistic {
			orDuration(&p.OpenWindow, DefaultOpenWindow)
		}
	}
}

func fillProvider(p *keywayv1.Provider) {
	p.BaseUrl = strings.TrimRight(p.BaseUrl, "/")
	orDuration(&p.FirstByteLimit, DefaultFirstByteLimit)
	orDuration(&p.ConnectTimeout, DefaultConnectTimeout)
	orDefault(&p.AnthropicVersion, DefaultAnthropicVersion)
	// Without TLS there is no ALPN to choose by, and HTTP/1.1 is what every
	// plain-text server understands.
	if strings.HasPrefix(strings.ToLower(p.BaseUrl), schemeHTTPS) {
		orDefault(&p.Http, httpAuto)
	} else {
		orDefault(&p.Http, http1)
	}
	if p.Http != http1 {
		orDuration(&p.Http2Ping, DefaultHTTP2Ping)
	}
}

func fillModel(m *keywayv1.Model) {
	orDefault(&m.Class, m.Name)
	if m.MaxOutput == 0 {
		m.MaxOutput = DefaultMaxOutput
		if m.ContextWindow > 0 {
			m.MaxOutput = min(m.MaxOutput, m.ContextWindow)
		}
	}
	if m.HiddenPromptFloor == 0 {
		m.HiddenPromptFloor = DefaultHiddenPromptFloor
		if m.ContextWindow > 0 {
			m.HiddenPromptFloor = min(m.HiddenPromptFloor, m.ContextWindow)
		}
	}
	orDefault(&m.Strategy, string(domain.StrategyWeighted))
	orDefault(&m.State, string(domain.ModelActive))
	orDefault(&m.Background, string(domain.BackgroundRefuse))
	orDuration(&m.Heartbeat, DefaultHeartbeat)
	orDuration(&m.IdleLimit, DefaultIdleLimit)
	for _, p := range m.Prices {
		fillPrice(p)
	}
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// orDuration leaves an explicit zero alone: validation refuses it, since "no
// limit" is not on offer.
func orDuration(field **durationpb.Duration, value time.Duration) {
	if *field == nil {
		*field = durationpb.New(value)
	}
}
