package extproc

import (
	"sync"
	"time"

	"keyway/config"
	"keyway/domain"
)

// goneFor is how long a channel that left the configuration still serves the
// requests that were admitted with it: longer than four attempts can wait for
// their first bytes.
const goneFor = 10 * time.Minute

// channels remembers what the configuration lately said of channels that are
// gone from it. Envoy keeps their clusters for a while, and a request that was
// admitted before may still fall back to one.
type channels struct {
	now func() time.Time

	mu   sync.Mutex // guards all below
	last *config.Snapshot
	gone map[string]goneChannel
}

type goneChannel struct {
	channel domain.Channel
	until   time.Time
}

// follow takes in a new snapshot; it is an observer of the configuration.
func (c *channels) follow(snap *config.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.last != nil {
		for name, channel := range c.last.Channels {
			c.gone[name] = goneChannel{channel: channel, until: now.Add(goneFor)}
		}
	}
	c.last = snap
	for name, g := range c.gone {
		if _, back := snap.Channels[name]; back || now.After(g.until) {
			delete(c.gone, name)
		}
	}
}

// find returns the channel called name as it is now, or as it was last.
func (c *channels) find(name string) (domain.Channel, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil {
		if channel, ok := c.last.Channels[name]; ok {
			return channel, true
		}
	}
	g, ok := c.gone[name]
	return g.channel, ok && c.now().Before(g.until)
}
