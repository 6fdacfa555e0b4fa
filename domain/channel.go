package domain

import (
	"net/url"
	"slices"
	"time"
)

// Provider is a vendor as the services see it: where it is and what it speaks.
type Provider struct {
	Name     string
	Dialects []Dialect
	// BaseURL is where it is as the configuration says it: what a cluster and a
	// credential of one provider have in common.
	BaseURL string
	// Authority is the host (and port, when not the scheme's own) of requests.
	Authority string
	// BasePath takes the place of "/v1" in a client's path; no trailing slash.
	BasePath string
	// FirstByteLimit is how long one attempt may wait for response headers.
	FirstByteLimit time.Duration
	// AnthropicVersion is sent where the client sent none.
	AnthropicVersion string
}

// Speaks reports whether the provider serves dialect d natively.
func (p Provider) Speaks(d Dialect) bool { return slices.Contains(p.Dialects, d) }

// AuthorityOf is the host of a base URL, with its port unless that is the
// scheme's own: some providers' front ends compare the Host header with their name.
func AuthorityOf(u *url.URL) string {
	own := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	if u.Port() != own {
		return u.Host
	}
	return u.Host[:len(u.Host)-len(own)-1]
}

// Channel is one SK at one Provider: one Envoy cluster, one connection pool.
type Channel struct {
	Name     string
	Provider Provider
	// SecretRef is the reference to the SK ("env:NAME", "file:PATH"), never the SK.
	SecretRef string
	// Priority: lower is tried first. Weight shares traffic within a priority, ≥ 1.
	Priority int
	Weight   int
	// Slots is how many calls may be in flight in this region; 0 is unlimited.
	Slots int64
	// Models maps the name clients use to the provider's.
	Models       map[string]string
	Organization string
	Project      string
	// InjectUsage: ask the provider for the usage chunk of chat streams.
	InjectUsage bool
	// Account is a short name of what the channel is at its provider: its base
	// URL, credential reference, organization and project. Evidence against one
	// account says nothing of another.
	Account string
	// ObserveOnly: its cooldowns are noted and obeyed by nobody.
	ObserveOnly bool
	// Cost is what the provider charges here relative to other channels, for
	// routing; 1 is usual.
	Cost float64
	// Egress is what turns a client's request into an attempt on the channel.
	Egress Egress
	// Probe asks the provider now and then; a zero Every is never.
	Probe Probe
}

// Probe is a GET at Path, below the provider's base URL, from one replica of the
// region in each Every.
type Probe struct {
	Path  string
	Every time.Duration
}

// Egress is what sets the credential, path, host and body of an attempt
// (ARCHITECTURE §5.1).
type Egress string

const (
	// EgressExtProc is the extproc service, asked by the channel's filter chain.
	EgressExtProc Egress = "ext_proc"
	// EgressNative is Envoy itself, without a call to a service.
	EgressNative Egress = "native"
)

// Valid reports whether e is a known form.
func (e Egress) Valid() bool { return e == EgressExtProc || e == EgressNative }

// Background is what becomes of a request for a response in the background.
type Background string

const (
	// BackgroundRefuse answers it with an error. It is the default.
	BackgroundRefuse Background = "refuse"
	// BackgroundPoll lets it through and asks the provider until the response has ended.
	BackgroundPoll Background = "poll"
)

// Valid reports whether b is a known form.
func (b Background) Valid() bool { return b == BackgroundRefuse || b == BackgroundPoll }

// Model is what clients name.
type Model struct {
	Name string
	// ContextWindow in tokens; 0 is unknown.
	ContextWindow int64
	// MaxOutput in tokens is reserved where a request sets no cap.
	MaxOutput int64
	// HiddenPromptFloor in tokens is the least that is reserved for a prompt
	// which does not stand in the request; 0 is none.
	HiddenPromptFloor int64
	// Heartbeat is how long a stream may be silent before the client gets a
	// heartbeat, IdleLimit how long before it is ended.
	Heartbeat time.Duration
	IdleLimit time.Duration
	// EarlyHeartbeat: streams go through the relay.
	EarlyHeartbeat bool
	// Background is what becomes of requests for responses in the background.
	Background Background
	// Price is the version in force.
	Price Price
	// Images are prices of one image each, the first that fits counts; see
	// ImageMicros.
	Images []ImagePrice
	// Raw are paths that pass unread; a model that has some has no other use.
	Raw []string
	// Channels that serve the model, in the order of the file.
	Channels []string
	// Class is what cools together: models whose limits a provider counts together.
	Class string
	// Strategy orders the channels of one priority.
	Strategy Strategy
	// Fallbacks are models whose channels follow behind the model's own.
	Fallbacks []string
	State     ModelState
	// Sunset is the day on which a deprecated model ends; zero is not known.
	Sunset time.Time
	// Notice is what a deprecated model tells its clients; "" is nothing.
	Notice string
}

// Alias is another name for a model.
type Alias struct {
	Name  string
	Model string
	// Canary serves Percent of the identities instead; "" is none.
	Canary  string
	Percent int
}

// ImagePrice is what one image costs, in micro-units. Quality and Size are as
// clients send them; "" fits every request.
type ImagePrice struct {
	Quality, Size string
	Micros        int64
}

// PassesRaw reports whether m stands for paths that pass unread.
func (m Model) PassesRaw() bool { return len(m.Raw) > 0 }

// HealthClass is the class of which attempts of api are evidence. What is free
// has limits of its own at a provider: that too many tokens were counted says
// nothing of the calls that cost.
func (m Model) HealthClass(api API) string {
	if api.Free() {
		return m.Class + EveryClass + string(api) // no model's class has this mark in it
	}
	return m.Class
}

// ImageMicros is what one image of that quality and size costs; ok is false
// where no price fits.
func (m Model) ImageMicros(quality, size string) (micros int64, ok bool) {
	for _, p := range m.Images {
		if (p.Quality == "" || p.Quality == quality) && (p.Size == "" || p.Size == size) {
			return p.Micros, true
		}
	}
	return 0, false
}
