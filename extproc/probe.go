package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"keyway/config"
	"keyway/domain"
	"keyway/envoy"
	"keyway/telemetry"
	"keyway/wire"
)

// Probes is what probing asks of the regional store.
type Probes interface {
	// ClaimProbe reports whether this replica is the one to probe a channel in
	// the time of every.
	ClaimProbe(ctx context.Context, channel string, every time.Duration) (bool, error)
	// EndOut brings a channel back that is out for a reason which is gone.
	EndOut(ctx context.Context, channel string, reason domain.CooldownReason) (bool, error)
}

const (
	// probeTick is how often it is looked for channels that are due.
	probeTick = 250 * time.Millisecond
	// probeLimit bounds one probe, and shorter pauses do.
	probeLimit = 10 * time.Second
	// probeBody is how much of an error is read.
	probeBody = 1 << 10
)

// prober asks providers now and then whether they can be reached and take the
// credential, each channel once in its pause from the whole region. A probe goes
// the way of an attempt, through Envoy's egress listener, so it finds what that
// would find. Its failures are evidence; it spends nothing of anybody's limits.
type prober struct {
	store    Probes
	egress   *http.Client
	config   *config.Holder
	evidence *evidence
	metrics  *metrics
	logger   *slog.Logger

	// due is when each channel is probed next; only run touches it.
	due map[string]time.Time
	mu  sync.Mutex
	// up is what the last probes found, for those that this replica made.
	up map[string]bool
}

// run probes until ctx ends.
func (p *prober) run(ctx context.Context) {
	p.due, p.up = make(map[string]time.Time), make(map[string]bool)
	var running sync.WaitGroup
	defer running.Wait()
	defer p.egress.CloseIdleConnections()
	ticker := time.NewTicker(probeTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, channel := range p.dueAt(now) {
				running.Go(func() { p.probe(ctx, channel) })
			}
		}
	}
}

// dueAt are the channels whose pause is over; it begins the next one. The first
// probe comes at a random moment of a pause, so that channels and replicas do
// not go together.
func (p *prober) dueAt(now time.Time) (list []domain.Channel) {
	snap := p.config.Load()
	if snap == nil {
		return nil
	}
	for name := range p.due {
		if snap.Channels[name].Probe.Every == 0 {
			delete(p.due, name)
			p.forget(name)
		}
	}
	for name, channel := range snap.Channels {
		every := channel.Probe.Every
		if every == 0 {
			continue
		}
		at, known := p.due[name]
		switch {
		case !known:
			p.due[name] = now.Add(time.Duration(rand.Float64() * float64(every)))
		case !now.Before(at):
			p.due[name] = now.Add(every)
			list = append(list, channel)
		}
	}
	return list
}

// probe asks one channel's provider, if no other replica has lately.
func (p *prober) probe(ctx context.Context, channel domain.Channel) {
	every := channel.Probe.Every
	ctx, cancel := context.WithTimeout(ctx, min(every, probeLimit))
	defer cancel()
	// A little less than the pause, or the next probe could miss its own end.
	if mine, err := p.store.ClaimProbe(ctx, channel.Name, every-every/10); err != nil || !mine {
		return
	}
	failure, told := p.ask(ctx, channel)
	if !told {
		return // nobody at the provider had a part in it
	}
	reason := failure.Judge(time.Now()).Reason
	if failure.Status >= 200 && failure.Status < 300 {
		p.recovered(ctx, channel)
	}
	// A limit of the probe's own path says nothing of those that models have.
	up := reason == domain.ReasonNone || reason == domain.ReasonRate
	if !up {
		p.blame(channel, reason, failure)
	}
	p.show(channel.Name, up, reason)
}

// ask makes the call; told is false when it did not get as far as the provider.
func (p *prober) ask(ctx context.Context, channel domain.Channel) (f wire.Failure, told bool) {
	d := domain.Decision{
		RequestID: fmt.Sprintf("probe-%s-%d", channel.Name, time.Now().UnixMilli()),
		API:       domain.APIChat, Path: channel.Probe.Path, FirstByteLimit: probeLimit,
	}
	if !channel.Provider.Speaks(domain.DialectOpenAI) {
		d.API = domain.APIMessages
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://egress"+domain.APIVersionPrefix+channel.Probe.Path, http.NoBody)
	if err == nil {
		err = aim(req, d, domain.Candidate{Channel: channel.Name})
	}
	if err != nil {
		p.logger.Error("probe cannot be made", slog.String("channel", channel.Name), telemetry.Err(err))
		return f, false
	}
	req.Header.Set("X-Request-Id", d.RequestID)
	req.Header.Set("User-Agent", "keyway-probe")
	resp, err := p.egress.Do(req)
	if err != nil {
		// Silence is the provider's; a listener that is away is not.
		return wire.Failure{}, errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	defer resp.Body.Close()
	if reply := resp.Header.Get(envoy.HeaderReply); reply != "" {
		return wire.Failure{}, strings.HasPrefix(reply, detailsUnanswered)
	}
	return failureOf(resp), true
}

// failureOf is what an answer says of the channel.
func failureOf(resp *http.Response) wire.Failure {
	f := wire.Failure{Status: resp.StatusCode}
	f.Body, _ = io.ReadAll(io.LimitReader(resp.Body, probeBody)) // what is cut off is not missed
	for name, values := range resp.Header {
		if lower := strings.ToLower(name); wire.TellsWait(lower) {
			f.Headers = append(f.Headers, wire.Header{Name: lower, Value: values[0]})
		}
	}
	return f
}

// blame brings what a probe found: against every class of the channel.
func (p *prober) blame(channel domain.Channel, reason domain.CooldownReason, f wire.Failure) {
	snap := p.config.Load()
	seen := map[string]bool{}
	for model := range channel.Models {
		class := snap.Models[model].Class
		if class == "" || seen[class] {
			continue
		}
		seen[class] = true
		p.evidence.failed(domain.Candidate{Channel: channel.Name, Class: class, Account: channel.Account}, f)
		if reason.TakesOut() {
			return // it concerns all of them
		}
	}
}

// recovered brings a channel back whose credential was refused and is taken now,
// since it was replaced where its reference leads.
func (p *prober) recovered(ctx context.Context, channel domain.Channel) {
	if ended, err := p.store.EndOut(ctx, channel.Name, domain.ReasonAuth); err == nil && ended {
		p.logger.Info("channel is back: its provider takes the credential again", slog.String("channel", channel.Name))
	}
}

// show tells of a result, and logs a change.
func (p *prober) show(channel string, up bool, reason domain.CooldownReason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, known := p.up[channel]
	p.up[channel] = up
	value := 0.0
	if up {
		value = 1
	}
	p.metrics.probeUp.WithLabelValues(channel).Set(value)
	switch {
	case !up && (was || !known):
		p.logger.Warn("probe of a channel fails", slog.String("channel", channel), slog.String("reason", string(reason)))
	case up && known && !was:
		p.logger.Info("probe of a channel succeeds again", slog.String("channel", channel))
	}
}

// forget takes a channel out of what is shown.
func (p *prober) forget(channel string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.up, channel)
	p.metrics.probeUp.DeleteLabelValues(channel)
}
