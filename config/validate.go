package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// The bounds of values. Each is far beyond use and inside what the parts
// behind it can hold.
const (
	maxRegionLength = 32
	maxNameLength   = 48 // a channel's name is part of Envoy's statistics names
	maxOpaqueLength = 128
	maxPathLength   = 4096

	minRequestBytes = 1 << 10
	maxRequestBytes = 64 << 20

	minLease     = time.Second
	maxLease     = 30 * time.Second // a dead process must free its holds within this
	minDrainTime = time.Second
	maxDrainTime = 24 * time.Hour

	// maxLimit and maxBudgetMicros keep the store's arithmetic, which counts
	// rates in thousandths, below 2^53.
	maxLimit        = 1_000_000_000
	maxBudgetMicros = 1_000_000_000 * microsPerUnit
	maxPort         = 65535
)

// Validate checks a complete configuration (after FillDefaults). The error is
// a *ValidationError with every problem, or nil.
func Validate(cfg *keywayv1.Config) error {
	var found problems
	check(cfg, &found)
	checkServed(cfg, &found)
	return found.err()
}

// checker holds the names that references are checked against.
type checker struct {
	*problems
	providers, models, policies []string
	raw                         []string
}

// check looks at every field and reference.
func check(cfg *keywayv1.Config, found *problems) {
	c := checker{problems: found}
	c.name("region", cfg.Region, maxRegionLength)
	c.listener(cfg.GetListener())
	c.limits(cfg.GetLimits())
	c.cooldown(cfg.GetCooldown())
	for i, p := range cfg.Providers {
		at := fmt.Sprintf("providers[%d]", i)
		c.providers = c.unique(c.providers, at+".name", p.Name)
		c.provider(at, p)
	}
	for i, m := range cfg.Models {
		at := fmt.Sprintf("models[%d]", i)
		c.models = c.unique(c.models, at+".name", m.Name)
		c.model(at, m)
	}
	for i, m := range cfg.Models {
		c.route(fmt.Sprintf("models[%d]", i), m)
	}
	c.aliases(cfg.Aliases)
	for i, p := range cfg.Policies {
		at := fmt.Sprintf("policies[%d]", i)
		c.policies = c.unique(c.policies, at+".name", p.Name)
		c.policy(at, p)
	}
	c.flow("ceiling", cfg.GetCeiling())
	var channels, identities []string
	for i, ch := range cfg.Channels {
		at := fmt.Sprintf("channels[%d]", i)
		channels = c.unique(channels, at+".name", ch.Name)
		c.channel(at, ch)
	}
	for i, id := range cfg.Identities {
		at := fmt.Sprintf("identities[%d]", i)
		identities = c.unique(identities, at+".id", id.Id)
		c.opaque(at+".id", id.Id, maxOpaqueLength)
		if id.Policy != "" {
			c.reference(at+".policy", id.Policy, reference{"policy", c.policies})
		}
		c.multiplier(at+".price_multiplier", id.PriceMultiplier)
	}
}

// checkServed reports models without a channel. Services do not ask for it: a
// channel may be withheld from them, and its model must then stay known.
func checkServed(cfg *keywayv1.Config, found *problems) {
	served := make(map[string]struct{})
	for _, ch := range cfg.Channels {
		for _, m := range ch.Models {
			served[m.Name] = struct{}{}
		}
	}
	for i, m := range cfg.Models {
		if _, ok := served[m.Name]; !ok && m.Name != "" {
			found.add(fmt.Sprintf("models[%d]", i), "no channel serves %s", quote(m.Name))
		}
	}
}

func (c *checker) listener(l *keywayv1.Listener) {
	if addr, err := netip.ParseAddr(l.GetAddress()); err != nil || addr.Zone() != "" {
		c.add("listener.address", "%s is not an IP address", quote(l.GetAddress()))
	}
	if port := l.GetPort(); port < 1 || port > maxPort {
		c.add("listener.port", "%d is not a port; 1 to %d", port, maxPort)
	}
	tls := l.GetTls()
	if tls == nil {
		return
	}
	for _, file := range []struct{ path, value string }{
		{"listener.tls.cert_file", tls.CertFile}, {"listener.tls.key_file", tls.KeyFile},
	} {
		if file.value == "" {
			c.add(file.path, "is missing; TLS needs cert_file and key_file")
			continue
		}
		c.filePath(file.path, file.value)
	}
}

func (c *checker) limits(l *keywayv1.Limits) {
	if n := l.GetMaxRequestBytes(); n < minRequestBytes || n > maxRequestBytes {
		c.add("limits.max_request_bytes", "%d is out of range; %d to %d", n, minRequestBytes, maxRequestBytes)
	}
	c.duration("limits.lease", l.GetLease(), span{minLease, maxLease})
	c.duration("limits.drain_time", l.GetDrainTime(), span{minDrainTime, maxDrainTime})
	c.duration("limits.keep_stored_ids", l.GetKeepStoredIds(), span{domain.MinKeepStoredIDs, domain.MaxKeepStoredIDs})
}

func (c *checker) cooldown(l *keywayv1.Cooldown) {
	c.cooldownMode("cooldown.mode", l.GetMode())
	within := span{minCooldown, maxCooldown}
	c.duration("cooldown.first", l.GetFirst(), within)
	c.duration("cooldown.min", l.GetMin(), within)
	c.duration("cooldown.max", l.GetMax(), within)
	if l.GetMin().AsDuration() > l.GetMax().AsDuration() {
		c.add("cooldown.min", "%s is more than cooldown.max, which is %s", l.GetMin().AsDuration(), l.GetMax().AsDuration())
	}
}

func (c *checker) cooldownMode(path, mode string) {
	if mode != cooldownObey && mode != cooldownObserve {
		c.add(path, "%s is not known; known: %s, %s", quote(mode), cooldownObey, cooldownObserve)
	}
}

// amount checks a decimal and its upper bound, in micro-units.
func (c *checker) amount(path, text string, limit int64) {
	micros, err := ParseMicros(text)
	switch {
	case err != nil:
		c.add(path, "%s %s", quote(text), err.Error())
	case micros > limit:
		c.add(path, "%s is too large; at most %d", quote(text), limit/microsPerUnit)
	}
}

// span is an inclusive range of durations.
type span struct{ low, high time.Duration }

func (c *checker) duration(path string, d *durationpb.Duration, within span) {
	// Out-of-range seconds saturate in AsDuration, so the comparison holds.
	if got := d.AsDuration(); d.CheckValid() != nil || got < within.low || got > within.high {
		c.add(path, "%s is out of range; %s to %s", got, within.low, within.high)
	}
}

// name checks an identifier of ours: it becomes part of resource, statistics
// and key names.
func (c *checker) name(path, value string, limit int) {
	plain := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' }
	switch {
	case value == "":
		c.add(path, "is missing")
	case len(value) > limit || strings.ContainsFunc(value, func(r rune) bool { return !plain(r) }):
		c.add(path, "%s is not a name; a-z, 0-9 and \"-\", 1 to %d characters", quote(value), limit)
	}
}

// opaque checks a name that belongs to others: any text that can be printed
// on one line and split from its neighbours.
func (c *checker) opaque(path, value string, limit int) {
	switch {
	case value == "":
		c.add(path, "is missing")
	case len(value) > limit:
		c.add(path, "is %d bytes long; at most %d", len(value), limit)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }):
		c.add(path, "%s holds blanks or characters that cannot be printed", quote(value))
	}
}

// headerValue checks text that becomes a header; "" is allowed.
func (c *checker) headerValue(path, value string) {
	printable := func(r rune) bool { return r > ' ' && r < unicode.MaxASCII }
	if len(value) > maxOpaqueLength || strings.ContainsFunc(value, func(r rune) bool { return !printable(r) }) {
		c.add(path, "%s cannot be a header value; printable ASCII without blanks, at most %d bytes", quote(value), maxOpaqueLength)
	}
}

func (c *checker) filePath(path, value string) {
	if len(value) > maxPathLength || strings.ContainsFunc(value, unicode.IsControl) {
		c.add(path, "is not a file path")
	}
}

// unique adds name to seen, and reports it when it is there already.
func (c *checker) unique(seen []string, path, name string) []string {
	if name == "" {
		return seen
	}
	if slices.Contains(seen, name) {
		c.add(path, "%s is used twice", quote(name))
		return seen
	}
	return append(seen, name)
}

// reference is what a name may refer to.
type reference struct {
	noun  string
	known []string
}

// shownNames bounds how many known names a message lists.
const shownNames = 12

func (c *checker) reference(path, name string, to reference) {
	if slices.Contains(to.known, name) {
		return
	}
	known := "none is defined"
	if len(to.known) > 0 {
		known = "known: " + strings.Join(to.known[:min(len(to.known), shownNames)], ", ")
	}
	if len(to.known) > shownNames {
		known += fmt.Sprintf(" and %d more", len(to.known)-shownNames)
	}
	if name == "" {
		c.add(path, "is missing; %s", known)
		return
	}
	c.add(path, "%s is not a %s; %s", quote(name), to.noun, known)
}
