package config

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/url"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// Snapshot is one version of a region's configuration in domain types. It is
// shared by everyone who loaded it and must not be changed, its maps included.
type Snapshot struct {
	// Version is that of the RegionConfig it was compiled from; ≥ 1.
	Version int64
	Region  string
	// MaxRequestBytes bounds a request body.
	MaxRequestBytes int64
	// Lease is how long holds live without renewal.
	Lease time.Duration
	// KeepStoredIDs is how long it is known which channel made a response.
	KeepStoredIDs time.Duration
	Models        map[string]domain.Model
	// Aliases are the other names of models.
	Aliases map[string]domain.Alias
	// ModelNames are the names of both, in order.
	ModelNames []string
	Channels   map[string]domain.Channel
	Policies   map[string]domain.Policy
	// Cooldown is for how long channels are left alone.
	Cooldown domain.CooldownBounds
	// Ceiling limits everyone in the region together.
	Ceiling domain.Policy
	// Identities maps an identity to the name of its policy; "" is none.
	Identities map[string]string
	// PriceFactors maps identities to their price multiplier in millionths;
	// one that is absent pays the plain price.
	PriceFactors map[string]int64
	// Prepaid are the identities that can spend what they have paid in.
	Prepaid map[string]bool
	// Raw are the paths that pass unread, the longest first.
	Raw []RawPath
}

// RawPath is a path of which Model has all that is at and below it.
type RawPath struct{ Path, Model string }

var errNoVersion = errors.New("version must be 1 or more")

// Compile makes the snapshot of rc, which it does not change. What cannot be
// compiled is refused as a whole: the error is a *ValidationError for wrong
// content. A model whose channels are all missing is kept, so that clients
// learn that it is out of order and not that it does not exist.
func Compile(rc *keywayv1.RegionConfig) (*Snapshot, error) {
	if rc.GetVersion() < 1 {
		return nil, fmt.Errorf("compile configuration: %w", errNoVersion)
	}
	cfg := proto.CloneOf(rc.GetConfig())
	if cfg == nil {
		cfg = new(keywayv1.Config)
	}
	FillDefaults(cfg)
	var found problems
	check(cfg, &found)
	if err := found.err(); err != nil {
		return nil, fmt.Errorf("compile configuration version %d: %w", rc.GetVersion(), err)
	}
	s := &Snapshot{
		Version:         rc.GetVersion(),
		Region:          cfg.Region,
		MaxRequestBytes: int64(cfg.Limits.MaxRequestBytes),
		Lease:           cfg.Limits.Lease.AsDuration(),
		KeepStoredIDs:   cfg.Limits.KeepStoredIds.AsDuration(),
		Policies:        make(map[string]domain.Policy, len(cfg.Policies)),
		Identities:      make(map[string]string, len(cfg.Identities)),
		Prepaid:         make(map[string]bool),
	}
	providers := make(map[string]domain.Provider, len(cfg.Providers))
	for _, p := range cfg.Providers {
		providers[p.Name] = compileProvider(p)
	}
	s.Channels = compileChannels(cfg.Channels, providers)
	s.Models = compileModels(cfg)
	s.Cooldown = domain.CooldownBounds{
		First: cfg.Cooldown.First.AsDuration(), Least: cfg.Cooldown.Min.AsDuration(), Most: cfg.Cooldown.Max.AsDuration(),
	}
	s.Aliases = compileAliases(cfg.Aliases)
	s.ModelNames = slices.AppendSeq(slices.Collect(maps.Keys(s.Models)), maps.Keys(s.Aliases))
	slices.Sort(s.ModelNames)
	for _, p := range cfg.Policies {
		s.Policies[p.Name] = compilePolicy(p)
	}
	s.Ceiling = domain.Policy{
		RPM: cfg.Ceiling.GetRpm(), RPMBurst: cfg.Ceiling.GetRpmBurst(),
		TPM: cfg.Ceiling.GetTpm(), TPMBurst: cfg.Ceiling.GetTpmBurst(), InFlight: cfg.Ceiling.GetInFlight(),
	}
	for _, id := range cfg.Identities {
		s.Identities[id.Id] = id.Policy
		if id.Prepaid {
			s.Prepaid[id.Id] = true
		}
	}
	s.PriceFactors = compileFactors(cfg.Identities)
	s.Raw = compileRaw(cfg.Models)
	return s, nil
}

// The functions below run on checked content, so parse errors cannot occur.

func compileProvider(p *keywayv1.Provider) domain.Provider {
	out := domain.Provider{
		Name:             p.Name,
		BaseURL:          p.BaseUrl,
		FirstByteLimit:   p.FirstByteLimit.AsDuration(),
		AnthropicVersion: p.AnthropicVersion,
	}
	for _, d := range p.Dialects {
		out.Dialects = append(out.Dialects, domain.Dialect(d))
	}
	if u, err := url.Parse(p.BaseUrl); err == nil {
		out.Authority, out.BasePath = domain.AuthorityOf(u), u.EscapedPath()
	}
	return out
}

func compileChannels(channels []*keywayv1.Channel, providers map[string]domain.Provider) map[string]domain.Channel {
	out := make(map[string]domain.Channel, len(channels))
	for _, ch := range channels {
		models := make(map[string]string, len(ch.Models))
		for _, m := range ch.Models {
			models[m.Name] = m.Upstream
		}
		out[ch.Name] = domain.Channel{
			Name:         ch.Name,
			Provider:     providers[ch.Provider],
			SecretRef:    ch.Secret,
			Priority:     int(ch.Priority),
			Weight:       int(ch.GetWeight()),
			Slots:        ch.Slots,
			Models:       models,
			Organization: ch.Organization,
			Project:      ch.Project,
			InjectUsage:  ch.StreamUsage == streamUsageInject,
			Account:      account(ch, providers[ch.Provider].BaseURL),
			ObserveOnly:  ch.Cooldown == cooldownObserve,
			Probe:        domain.Probe{Path: ch.Probe.GetPath(), Every: ch.Probe.GetEvery().AsDuration()},
			Cost:         float64(micros(ch.Cost)) / microsPerUnit,
			Egress:       domain.Egress(ch.Egress),
		}
	}
	return out
}

// account names what a channel is at its provider. Its 32 bits tell a channel
// from its own earlier selves, which is all they are for.
func account(ch *keywayv1.Channel, baseURL string) string {
	h := fnv.New32a()
	for _, part := range []string{baseURL, ch.Secret, ch.Organization, ch.Project} {
		h.Write([]byte(part)) // never fails
		h.Write([]byte{0})
	}
	return fmt.Sprintf("%08x", h.Sum32())
}

func compileModels(cfg *keywayv1.Config) map[string]domain.Model {
	servedBy := make(map[string][]string, len(cfg.Models))
	for _, ch := range cfg.Channels {
		for _, m := range ch.Models {
			servedBy[m.Name] = append(servedBy[m.Name], ch.Name)
		}
	}
	out := make(map[string]domain.Model, len(cfg.Models))
	for _, m := range cfg.Models {
		out[m.Name] = domain.Model{
			Name:          m.Name,
			ContextWindow: m.ContextWindow,
			MaxOutput:     m.MaxOutput,
			Price:         compilePrice(m.Prices[len(m.Prices)-1]),
			Images:        compileImages(m.Prices[len(m.Prices)-1].Images),
			Channels:      servedBy[m.Name],
			Class:         m.Class,
			Raw:           m.Raw,

			HiddenPromptFloor: m.HiddenPromptFloor,

			Strategy:  domain.Strategy(m.Strategy),
			Fallbacks: m.Fallbacks,
			State:     domain.ModelState(m.State),
			Sunset:    day(m.Sunset),
			Notice:    m.Notice,
			Heartbeat: m.Heartbeat.AsDuration(),
			IdleLimit: m.IdleLimit.AsDuration(),

			EarlyHeartbeat: m.EarlyHeartbeat,
			Background:     domain.Background(m.Background),
		}
	}
	return out
}

func compilePolicy(p *keywayv1.Policy) domain.Policy {
	out := domain.Policy{
		Name:              p.Name,
		RPM:               p.Rpm,
		RPMBurst:          p.RpmBurst,
		TPM:               p.Tpm,
		TPMBurst:          p.TpmBurst,
		InFlight:          p.InFlight,
		BudgetDayMicros:   micros(p.BudgetDay),
		BudgetMonthMicros: micros(p.BudgetMonth),
		ImagesDay:         p.ImagesDay,
		TimeZone:          p.TimeZone,
		InjectCap:         p.Cap == capInject,
		Leased:            p.RateMode == rateModeLeased,
		OpenWindow:        p.OpenWindow.AsDuration(),
		OptimisticMicros:  micros(p.OptimisticBudget),
		CountTokensRPM:    p.CountTokensRpm,
	}
	if len(p.Models) > 0 {
		out.Models = make(map[string]domain.Policy, len(p.Models))
	}
	for _, m := range p.Models {
		out.Models[m.Name] = domain.Policy{
			Name:              m.Name,
			RPM:               m.Rpm,
			RPMBurst:          m.RpmBurst,
			TPM:               m.Tpm,
			TPMBurst:          m.TpmBurst,
			InFlight:          m.InFlight,
			BudgetDayMicros:   micros(m.BudgetDay),
			BudgetMonthMicros: micros(m.BudgetMonth),
			ImagesDay:         m.ImagesDay,
			TimeZone:          p.TimeZone,
			Leased:            out.Leased,
		}
	}
	return out
}

// micros reads a checked decimal; "" is 0.
func micros(text string) int64 {
	n, err := ParseMicros(text)
	if err != nil {
		return 0
	}
	return n
}
