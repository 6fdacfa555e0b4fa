package config

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

const (
	minFirstByteLimit = 10 * time.Millisecond
	maxFirstByteLimit = time.Hour
	minConnectTimeout = 10 * time.Millisecond
	maxConnectTimeout = time.Minute
	minHTTP2Ping      = 3 * time.Second // a third is for the answer, from anywhere on earth
	maxHTTP2Ping      = time.Hour
	minCooldown       = 50 * time.Millisecond
	maxCooldown       = 24 * time.Hour
	minProbeEvery     = time.Second
	maxProbeEvery     = 24 * time.Hour

	maxUpstreamLength = 256
	maxVersionLength  = 64
	maxWeight         = 1_000_000
	maxTokens         = 1 << 31 // usage above this is refused as nonsense

	// A heartbeat in much less than a second only costs; 15 s are promised.
	minHeartbeat = 100 * time.Millisecond
	maxHeartbeat = 15 * time.Second
	minIdleLimit = 500 * time.Millisecond
	maxIdleLimit = time.Hour

	// maxPriceMicros is 100 000 currency units per million tokens: enough for
	// the dearest model in the smallest currency, and small enough that 90
	// million tokens in one request do not overflow the sum.
	maxPriceMicros = 100_000 * microsPerUnit
)

func (c *checker) provider(at string, p *keywayv1.Provider) {
	c.name(at+".name", p.Name, maxNameLength)
	if len(p.Dialects) == 0 {
		c.add(at+".dialects", "is missing; known: %s, %s", domain.DialectOpenAI, domain.DialectAnthropic)
	}
	var dialects []string
	for i, d := range p.Dialects {
		here := fmt.Sprintf("%s.dialects[%d]", at, i)
		dialects = c.unique(dialects, here, d)
		if !domain.Dialect(d).Valid() {
			c.add(here, "%s is not a dialect; known: %s, %s", quote(d), domain.DialectOpenAI, domain.DialectAnthropic)
		}
	}
	tls := c.baseURL(at+".base_url", p.BaseUrl)
	c.duration(at+".first_byte_limit", p.FirstByteLimit, span{minFirstByteLimit, maxFirstByteLimit})
	c.duration(at+".connect_timeout", p.ConnectTimeout, span{minConnectTimeout, maxConnectTimeout})
	c.filePath(at+".ca_file", p.CaFile)
	if p.CaFile != "" && tls == transportPlain {
		c.add(at+".ca_file", "is only used with an https base_url")
	}
	switch p.Http {
	case http1, http2:
	case httpAuto:
		if tls == transportPlain {
			c.add(at+".http", "%q chooses by ALPN and needs an https base_url; use %q or %q", httpAuto, http1, http2)
		}
	default:
		c.add(at+".http", "%s is not known; known: %s, %s, %s", quote(p.Http), httpAuto, http1, http2)
	}
	c.headerValue(at+".anthropic_version", p.AnthropicVersion)
	c.http2Ping(at+".http2_ping", p)
}

// http2Ping checks how often connections are tried; 0 is never.
func (c *checker) http2Ping(at string, p *keywayv1.Provider) {
	switch {
	case p.Http2Ping == nil:
	case p.Http == http1:
		c.add(at, "is not used with %q", http1)
	case p.Http2Ping.AsDuration() != 0:
		c.duration(at, p.Http2Ping, span{minHTTP2Ping, maxHTTP2Ping})
	}
}

// transport is what a base URL says about TLS.
type transport int

const (
	transportUnknown transport = iota
	transportPlain
	transportTLS
)

// baseURL checks a base URL. No message repeats more than the scheme: people
// do paste credentials into URLs.
func (c *checker) baseURL(at, text string) transport {
	if text == "" {
		c.add(at, "is missing, such as \"https://api.openai.com/v1\"")
		return transportUnknown
	}
	u, err := url.Parse(text)
	if err != nil {
		c.add(at, "is not a URL such as \"https://api.openai.com/v1\"")
		return transportUnknown
	}
	kind := map[string]transport{"http": transportPlain, "https": transportTLS}[u.Scheme]
	switch port, portErr := strconv.Atoi(u.Port()); {
	case kind == transportUnknown:
		c.add(at, "must start with https:// or http://")
	case u.User != nil:
		c.add(at, "must not hold a user or password; the channel's secret is the credential")
	case u.Hostname() == "":
		c.add(at, "has no host")
	case u.Port() != "" && (portErr != nil || port < 1 || port > maxPort), strings.HasSuffix(u.Host, ":"):
		c.add(at, "has no valid port; 1 to %d", maxPort)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#"):
		c.add(at, "must not hold a query or fragment")
	case u.Path != "" && path.Clean(u.Path) != u.Path:
		c.add(at, "has a path with empty, \".\" or \"..\" segments")
	}
	return kind
}

// probePath is a plain path: no query could carry a credential, and no segment
// leads out of the provider's base URL.
var probePath = regexp.MustCompile(`^(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}){1,8}$`)

func (c *checker) channel(at string, ch *keywayv1.Channel) {
	c.name(at+".name", ch.Name, maxNameLength)
	c.reference(at+".provider", ch.Provider, reference{"provider", c.providers})
	c.secretRef(at+".secret", ch.Secret)
	if w := ch.GetWeight(); w < 1 || w > maxWeight {
		c.add(at+".weight", "%d is out of range; 1 to %d; a channel without traffic is left out", w, maxWeight)
	}
	if ch.Slots < 0 || ch.Slots > maxLimit {
		c.add(at+".slots", "%d is out of range; 0 (unlimited) to %d", ch.Slots, maxLimit)
	}
	if len(ch.Models) == 0 {
		c.add(at+".models", "is missing; a channel serves at least one model")
	}
	var names []string
	for i, m := range ch.Models {
		here := fmt.Sprintf("%s.models[%d]", at, i)
		c.reference(here+".name", m.Name, reference{"model", c.models})
		names = c.unique(names, here+".name", m.Name)
		if m.Name != "" {
			c.opaque(here+".upstream", m.Upstream, maxUpstreamLength)
		}
	}
	c.cooldownMode(at+".cooldown", ch.Cooldown)
	if p := ch.Probe; p != nil {
		if !probePath.MatchString(p.Path) {
			c.add(at+".probe.path", "%s is not a path such as \"/models\"", quote(p.Path))
		}
		c.duration(at+".probe.every", p.Every, span{minProbeEvery, maxProbeEvery})
	}
	c.multiplier(at+".cost", ch.Cost)
	c.headerValue(at+".organization", ch.Organization)
	c.headerValue(at+".project", ch.Project)
	switch ch.StreamUsage {
	case streamUsageInject, streamUsageLeave:
	default:
		c.add(at+".stream_usage", "%s is not known; known: %s, %s", quote(ch.StreamUsage), streamUsageInject, streamUsageLeave)
	}
	if !domain.Egress(ch.Egress).Valid() {
		c.add(at+".egress", "%s is not known; known: %s, %s", quote(ch.Egress), domain.EgressExtProc, domain.EgressNative)
	}
}

const (
	secretEnv  = "env:"
	secretFile = "file:"
)

var environmentName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// secretRef checks the form of a reference. Whatever is wrong with it, the
// value is not repeated: it may be the secret.
func (c *checker) secretRef(at, ref string) {
	name, isEnv := strings.CutPrefix(ref, secretEnv)
	file, isFile := strings.CutPrefix(ref, secretFile)
	switch {
	case ref == "":
		c.add(at, "is missing; a reference such as \"env:NAME\" or \"file:PATH\"")
	case isEnv && looksSecret(name) && secretPrefix.MatchString(name), !isEnv && !isFile && looksSecret(ref):
		c.add(at, "looks like a secret itself; put it into an environment variable or a file and refer to it by \"env:NAME\" or \"file:PATH\"")
	case isEnv && !environmentName.MatchString(name):
		c.add(at, "does not name an environment variable; letters, digits and \"_\", such as \"env:OPENAI_KEY\"")
	case isFile && file == "":
		c.add(at, "names no file, such as \"file:secrets/openai\"")
	case isFile:
		c.filePath(at, file)
	case !isEnv:
		c.add(at, "is not a reference; use \"env:NAME\" or \"file:PATH\"")
	}
}

func (c *checker) model(at string, m *keywayv1.Model) {
	c.opaque(at+".name", m.Name, maxOpaqueLength)
	if strings.Contains(m.Name, "*") {
		c.add(at+".name", "holds a *, which stands for any characters in the models of a key")
	}
	if m.Class != m.Name {
		c.opaque(at+".class", m.Class, maxOpaqueLength)
		if strings.Contains(m.Class, domain.EveryClass) {
			c.add(at+".class", "holds a *, which stands for all classes of a channel")
		}
	}
	if m.ContextWindow < 0 || m.ContextWindow > maxTokens {
		c.add(at+".context_window", "%d is out of range; 0 (unknown) to %d", m.ContextWindow, int64(maxTokens))
	}
	switch {
	case m.MaxOutput < 1 || m.MaxOutput > maxTokens:
		c.add(at+".max_output", "%d is out of range; 1 to %d", m.MaxOutput, int64(maxTokens))
	case m.ContextWindow > 0 && m.MaxOutput > m.ContextWindow:
		c.add(at+".max_output", "%d is more than the context window of %d", m.MaxOutput, m.ContextWindow)
	}
	switch {
	case m.HiddenPromptFloor < 1 || m.HiddenPromptFloor > maxTokens:
		c.add(at+".hidden_prompt_floor", "%d is out of range; 1 to %d", m.HiddenPromptFloor, int64(maxTokens))
	case m.ContextWindow > 0 && m.HiddenPromptFloor > m.ContextWindow:
		c.add(at+".hidden_prompt_floor", "%d is more than the context window of %d", m.HiddenPromptFloor, m.ContextWindow)
	}
	c.duration(at+".heartbeat", m.Heartbeat, span{minHeartbeat, maxHeartbeat})
	c.duration(at+".idle_limit", m.IdleLimit, span{minIdleLimit, maxIdleLimit})
	if !domain.Background(m.Background).Valid() {
		c.add(at+".background", "%s is not known; known: %s and %s", quote(m.Background), domain.BackgroundRefuse, domain.BackgroundPoll)
	}
	if len(m.Prices) == 0 {
		c.add(at+".prices", "is missing; a model has at least one price version")
	}
	for i, path := range m.Raw {
		here := fmt.Sprintf("%s.raw[%d]", at, i)
		c.raw = c.unique(c.raw, here, path)
		c.rawPath(here, path)
	}
	var versions []string
	for i, p := range m.Prices {
		here := fmt.Sprintf("%s.prices[%d]", at, i)
		versions = c.unique(versions, here+".version", p.Version)
		c.opaque(here+".version", p.Version, maxVersionLength)
		c.price(here, p)
	}
}
