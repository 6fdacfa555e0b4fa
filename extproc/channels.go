package extproc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"keyway/config"
	"keyway/domain"
)

const (
	// goneFor is how long a channel that left the configuration, or changed,
	// still serves the requests that were admitted with it: longer than four
	// attempts can wait for their first bytes.
	goneFor = 10 * time.Minute
	// pushWait is how long an attempt waits for a configuration that Envoy
	// already has: clusters are pushed first.
	pushWait = 2 * time.Second
)

// channels finds what the configuration says of a channel at the provider to
// which its cluster leads, now or lately. Envoy and this service learn of a
// change at different moments; what must never happen in between is that the
// credential for one provider goes to another.
type channels struct {
	now func() time.Time

	mu   sync.Mutex // guards all below
	last *config.Snapshot
	gone map[channelAt]goneChannel
	// changed is closed by the next follow.
	changed chan struct{}
}

// channelAt is a channel at a provider's base URL.
type channelAt struct{ name, baseURL string }

type goneChannel struct {
	channel domain.Channel
	until   time.Time
}

func newChannels(now func() time.Time) *channels {
	return &channels{now: now, gone: make(map[channelAt]goneChannel), changed: make(chan struct{})}
}

// follow takes in a new snapshot; it is an observer of the configuration.
func (c *channels) follow(snap *config.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.last != nil {
		for name, channel := range c.last.Channels {
			c.gone[channelAt{name, channel.Provider.BaseURL}] = goneChannel{channel: channel, until: now.Add(goneFor)}
		}
	}
	c.last = snap
	for at, g := range c.gone {
		if current, ok := snap.Channels[at.name]; ok && current.Provider.BaseURL == at.baseURL || now.After(g.until) {
			delete(c.gone, at)
		}
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// find returns the channel as the configuration describes it at that provider.
// It waits a little for one that Envoy knows first.
func (c *channels) find(ctx context.Context, at channelAt) (domain.Channel, error) {
	ctx, cancel := context.WithTimeout(ctx, pushWait)
	defer cancel()
	for {
		channel, ok, changed := c.look(at)
		if ok {
			return channel, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return domain.Channel{}, fmt.Errorf("channel %q at %s is not configured", at.name, at.baseURL)
		}
	}
}

// egress is the form in which a channel is configured; "" for one that is not.
func (c *channels) egress(name string) domain.Egress {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		return ""
	}
	return c.last.Channels[name].Egress
}

func (c *channels) look(at channelAt) (channel domain.Channel, ok bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil {
		if channel, ok := c.last.Channels[at.name]; ok && channel.Provider.BaseURL == at.baseURL {
			return channel, true, nil
		}
	}
	g, ok := c.gone[at]
	return g.channel, ok && c.now().Before(g.until), c.changed
}
