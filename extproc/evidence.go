package extproc

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"keyway/domain"
	"keyway/telemetry"
	"keyway/wire"
)

// Cooldowns is the region's book of channels that must be left alone.
type Cooldowns interface {
	// Cool notes evidence; it reports whether that changes anything.
	Cool(ctx context.Context, e domain.Evidence) (bool, error)
	// EndCooldown forgets a cooldown that is over, because a trial succeeded.
	EndCooldown(ctx context.Context, c domain.ChannelClass) error
	// ClaimTrial gives a claim back when t has no lease.
	ClaimTrial(ctx context.Context, t domain.Trial) (bool, error)
}

// ChannelLearner takes what attempts showed of their channels.
type ChannelLearner interface {
	LearnChannels(ctx context.Context, samples []domain.ChannelSample) error
}

const (
	// evidencePeriod is how long samples are summed up before the store gets
	// them, and the pause after which evidence that it did not take is sent again.
	evidencePeriod = time.Second
	// evidenceTimeout bounds one round of calls.
	evidenceTimeout = time.Second
	// suspicion is the average of failures from which one that may be bad luck
	// counts: two in a row after a good time, or a third of all.
	suspicion = 0.3
)

// evidence turns the ends of attempts into what the region knows of its
// channels. Attempts report to it and never wait; one goroutine tells the store.
// All of it is bounded by the channels and classes of the configuration.
type evidence struct {
	book    Cooldowns
	learner ChannelLearner
	bounds  func() domain.CooldownBounds
	now     func() time.Time
	logger  *slog.Logger
	metrics *metrics
	// wake has room for one: what comes before the next round is part of it.
	wake chan struct{}

	mu sync.Mutex // guards all below
	// rates are the averages of failures as this replica has seen them.
	rates   map[domain.ChannelClass]float64
	waiting map[domain.ChannelClass]dated
	// over are trials that succeeded, open those that showed nothing.
	over map[domain.ChannelClass]struct{}
	open []domain.Trial
	sums map[domain.ChannelClass]domain.ChannelSample
	// quotas are what answers said last of rate limits.
	quotas map[domain.ChannelClass]quota
}

// quota is what is left of an account's rate limit, and when it is whole again.
type quota struct {
	left  float64
	whole time.Time
}

// init makes what is empty at first; it returns e.
func (e *evidence) init() *evidence {
	e.wake = make(chan struct{}, 1)
	e.rates = make(map[domain.ChannelClass]float64)
	e.waiting = make(map[domain.ChannelClass]dated)
	e.over = make(map[domain.ChannelClass]struct{})
	e.sums = make(map[domain.ChannelClass]domain.ChannelSample)
	e.quotas = make(map[domain.ChannelClass]quota)
	return e
}

func classOf(c domain.Candidate) domain.ChannelClass {
	return domain.ChannelClass{Channel: c.Channel, Class: c.Class}
}

// failed takes in an attempt that c did not serve.
func (e *evidence) failed(c domain.Candidate, f wire.Failure) {
	verdict := f.Judge(e.now())
	if verdict.Reason == domain.ReasonNone {
		// The provider did its part; the request was at fault.
		e.worked(c, 0)
		return
	}
	of := classOf(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := e.sums[of]
	sum.ChannelClass = of
	sum.Attempts++
	sum.Failed++
	e.sums[of] = sum
	e.rates[of] += domain.HealthAlpha * (1 - e.rates[of])
	if !verdict.Certain && !c.Trial && e.rates[of] < suspicion {
		return
	}
	// What failed before the cooldown does not count again after it.
	delete(e.rates, of)
	delete(e.over, of)
	if verdict.Everywhere {
		of.Class = domain.EveryClass
	}
	found := dated{at: e.now(), Evidence: domain.Evidence{
		ChannelClass: of, Account: c.Account, Reason: verdict.Reason, Wait: verdict.Wait, Bounds: e.bounds(),
	}}
	if before, ok := e.waiting[of]; ok && before.Account == found.Account {
		found.Wait = max(found.Wait, before.Wait)
		if before.Reason.TakesOut() {
			found.Reason = before.Reason
		}
	}
	e.waiting[of] = found
	e.tell()
}

// worked takes in an attempt that c served; ttft is the time to its first
// byte, 0 where it says nothing of the channel.
func (e *evidence) worked(c domain.Candidate, ttft time.Duration) {
	of := classOf(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := e.sums[of]
	sum.ChannelClass = of
	sum.Attempts++
	if ttft > 0 {
		sum.Timed++
		sum.TTFT += ttft
	}
	e.sums[of] = sum
	if rate, ok := e.rates[of]; ok {
		e.rates[of] = rate * (1 - domain.HealthAlpha)
	}
	if c.Trial {
		e.over[of] = struct{}{}
		e.tell()
	}
}

// limits takes in what the head of an answer of c says of the account's rate
// limits.
func (e *evidence) limits(c domain.Candidate, headers map[string][]string) {
	now := e.now()
	q, ok := wire.ReadQuota(headers, now)
	if !ok {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.quotas[classOf(c)] = quota{left: q.Left, whole: now.Add(q.Ends)}
}

// undecided takes in a trial whose request ended before c showed anything.
func (e *evidence) undecided(requestID string, c domain.Candidate) {
	if !c.Trial {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open = append(e.open, domain.Trial{ChannelClass: classOf(c), RequestID: requestID})
	e.tell()
}

func (e *evidence) tell() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run tells the store until ctx ends: of cooldowns and trials at once, of
// averages every period.
func (e *evidence) run(ctx context.Context) {
	ticker := time.NewTicker(evidencePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			e.report(ctx)
		case <-ticker.C:
			e.report(ctx)
			e.teach(ctx)
		}
	}
}

// report tells of trials and cooldowns. A trial goes first: where a failure
// followed it, the failure stands.
func (e *evidence) report(ctx context.Context) {
	e.mu.Lock()
	over, open, waiting := e.over, e.open, e.waiting
	e.over, e.open, e.waiting = make(map[domain.ChannelClass]struct{}), nil, make(map[domain.ChannelClass]dated)
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, evidenceTimeout)
	defer cancel()
	for of := range over {
		_ = e.book.EndCooldown(ctx, of) // else the claim ends by itself, and there is another trial
	}
	for _, t := range open {
		_, _ = e.book.ClaimTrial(ctx, t) // as above
	}
	for of, found := range waiting {
		still, ok := found.after(e.now())
		if !ok {
			continue
		}
		changed, err := e.book.Cool(ctx, still)
		if err != nil {
			e.keep(of, found)
			continue
		}
		if changed {
			e.cooled(still)
		}
	}
}

// dated is evidence and when it came.
type dated struct {
	domain.Evidence
	at time.Time
}

// after is what of the evidence still counts at a later time, when the store
// did not take it before; ok is false for nothing.
func (d dated) after(now time.Time) (e domain.Evidence, ok bool) {
	e = d.Evidence
	age := now.Sub(d.at)
	switch {
	case e.Reason.TakesOut():
		return e, true
	case e.Wait > 0:
		e.Wait -= age
		return e, e.Wait > 0
	}
	return e, age <= e.Bounds.First
}

// keep has evidence sent again, unless there is newer.
func (e *evidence) keep(of domain.ChannelClass, found dated) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, newer := e.waiting[of]; !newer {
		e.waiting[of] = found
	}
}

// cooled counts and logs a change, once for each.
func (e *evidence) cooled(found domain.Evidence) {
	e.metrics.cooldowns.WithLabelValues(found.Channel, string(found.Reason)).Inc()
	attributes := []any{slog.String("channel", found.Channel), slog.String("class", found.Class), slog.String("reason", string(found.Reason))}
	if found.Reason.TakesOut() {
		e.logger.Error("channel is out until it is changed or reset", attributes...)
		return
	}
	e.logger.Warn("channel is left alone for a while", append(attributes, slog.Duration("asked_for", found.Wait))...)
}

func (e *evidence) teach(ctx context.Context) {
	e.mu.Lock()
	samples := make([]domain.ChannelSample, 0, len(e.sums))
	for of, sum := range e.sums {
		if q, ok := e.quotas[of]; ok {
			sum.QuotaLeft, sum.QuotaEnds = q.left, max(q.whole.Sub(e.now()), 0)
			delete(e.quotas, of)
		}
		samples = append(samples, sum)
	}
	clear(e.sums)
	e.mu.Unlock()
	if len(samples) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, evidenceTimeout)
	defer cancel()
	if err := e.learner.LearnChannels(ctx, samples); err != nil {
		e.logger.Debug("averages of channels were not kept", telemetry.Err(err))
	}
}
