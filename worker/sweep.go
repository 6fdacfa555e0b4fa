package worker

import (
	"context"
	"log/slog"
	"time"

	"keyway/domain"
	"keyway/telemetry"
)

// sweepMax bounds one look, so that the store's script stays short.
const sweepMax = 100

// sweep settles reservations whose owner died, until ctx ends.
func (w *Worker) sweep(ctx context.Context) {
	var answering answering
	for {
		for w.sweepOnce(ctx, &answering) == sweepMax && ctx.Err() == nil {
			// A full answer that was settled whole: there may be more.
		}
		if !pause(ctx, w.opts.SweepInterval) {
			return
		}
	}
}

// answering knows since when the store has answered without a failure. While
// it was away nobody could renew a lease, so an end that has passed says
// nothing about the owner.
type answering struct{ since time.Time }

// note takes in one call's result and returns for how long the store has answered.
func (a *answering) note(err error) time.Duration {
	switch {
	case err != nil:
		a.since = time.Time{}
		return 0
	case a.since.IsZero():
		a.since = time.Now()
	}
	return time.Since(a.since)
}

// sweepOnce settles one answer's worth and returns how many it settled. What
// fails is found expired again the next time, and so is what owners still have
// the time to end themselves.
func (w *Worker) sweepOnce(ctx context.Context, a *answering) (settled int) {
	var expired []domain.ExpiredReservation
	err := w.call(ctx, opExpired, func(ctx context.Context) (err error) {
		expired, err = w.opts.Reservations.Expired(ctx, sweepMax)
		return err
	})
	if a.note(err) < w.opts.SweepGrace {
		return 0
	}
	for _, e := range expired {
		if ctx.Err() != nil {
			return settled
		}
		var result domain.SettleResult
		err := w.call(ctx, opSettle, func(ctx context.Context) (err error) {
			result, err = w.opts.Reservations.Settle(ctx, abandoned(e, w.opts.Now()))
			return err
		})
		if err != nil {
			continue
		}
		settled++
		w.metrics.swept.WithLabelValues(sweepResults[result]).Inc()
		w.opts.Logger.Info("reservation swept", telemetry.RequestID(e.Decision.RequestID),
			telemetry.KeyID(e.Decision.KeyID), slog.String("result", sweepResults[result]))
	}
	return settled
}

// abandoned is the settlement of a reservation that nobody settled, at time
// now. One that was renewed had a request running, so a provider has most
// likely read the prompt and charges for it; how much was answered nobody
// knows. One never renewed did not get that far and costs nothing. Which
// channel it ran on is known of the first attempt only.
func abandoned(e domain.ExpiredReservation, now time.Time) domain.Settlement {
	d := e.Decision
	s := domain.Settlement{
		Decision: d,
		Record: domain.UsageRecord{
			RequestID:            d.RequestID,
			KeyID:                d.KeyID,
			Identity:             d.Identity,
			API:                  d.API,
			Model:                d.AskedModel(),
			ModelDispatched:      d.ModelOf(d.Last(1)),
			Outcome:              domain.OutcomeAbandoned,
			Source:               domain.SourceEstimate,
			PriceVersion:         d.PriceOf(d.Last(1)).Version,
			PromptTokensEstimate: d.PromptTokens,
			AdmittedAt:           d.AdmittedAt,
			EndedAt:              now,
		},
	}
	first, ok := d.Candidate(1)
	if ok {
		// The admission took its slot; a later attempt's slot ends with its lease.
		s.Channel = first.Channel
	}
	if !e.Renewed {
		return s
	}
	s.Record.Usage = domain.Usage{InputUncached: d.PromptTokens, Tools: d.SentUnits()}
	s.Record.CostMicros = d.PriceOf(first).CostMicros(s.Record.Usage)
	if ok {
		s.Record.Attempt = 1
		s.Record.Channel = first.Channel
		s.Record.Attempts = []domain.Attempt{{Channel: first.Channel}}
	}
	return s
}
