package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"keyway/domain"
	"keyway/telemetry"
)

// drain moves the outbox into the ledger until ctx ends and, after swept is
// closed, whatever is left then. Exactly once is made of two halves: an entry
// is acknowledged only after the commit that wrote it, and the ledger passes
// over what it has.
func (w *Worker) drain(ctx context.Context, swept <-chan struct{}) {
	work, cancel := outlive(ctx, w.opts.StopLimit) // a batch under way is finished
	defer cancel()
	pauses := w.newBackoff()
	for ctx.Err() == nil {
		n, err := w.drainBatch(work)
		switch {
		case err != nil:
			pauses.wait(ctx)
			continue
		case n < w.opts.Batch:
			pause(ctx, w.opts.PollInterval)
		}
		pauses.reset()
	}

	<-swept
	for {
		n, err := w.drainBatch(work)
		if err == nil && n > 0 {
			continue
		}
		if err == nil {
			w.opts.Logger.Info("outbox drained")
			return
		}
		if !pauses.wait(work) {
			w.opts.Logger.Warn("outbox left for the next worker", telemetry.Err(err))
			return
		}
	}
}

// outlive returns a context that ends limit after ctx does.
func outlive(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(limit, cancel) // in vain when everything ended before
	})
	return longer, func() { stop(); cancel() }
}

// drainBatch reads one batch and sees it through: written, acknowledged, or
// set aside. It returns how many entries were read. Once they are read it
// fails only when ctx ends; they then stay in the outbox and come again.
func (w *Worker) drainBatch(ctx context.Context) (int, error) {
	w.batch.Lock()
	defer w.batch.Unlock()
	var entries []domain.OutboxEntry
	err := w.call(ctx, opRead, func(ctx context.Context) (err error) {
		entries, err = w.opts.Outbox.ReadOutbox(ctx, domain.OutboxRead{
			Consumer: w.opts.Consumer, Max: w.opts.Batch, Resume: !w.resumed, ReclaimIdle: w.opts.ReclaimIdle,
		})
		return err
	})
	w.resumed = w.resumed || err == nil
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	good := make([]domain.OutboxEntry, 0, len(entries))
	for _, e := range entries {
		if reason := unfit(e); reason != "" {
			w.setAside(ctx, e, reason)
			continue
		}
		good = append(good, e)
	}
	if err := w.deliver(ctx, good); err != nil {
		return 0, err
	}
	return len(entries), nil
}

// unfit says why e cannot be a row of the ledger; "" when it can.
func unfit(e domain.OutboxEntry) string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	case e.Record.RequestID == "":
		return "record has no request id"
	case !e.Record.Outcome.Valid():
		return "record has an unknown outcome"
	case e.Record.Source != domain.SourceUpstream && e.Record.Source != domain.SourceEstimate:
		return "record has an unknown source"
	}
	return ""
}

// deliver writes entries and acknowledges them. While the database or the
// store is away it tries again and again, until ctx ends.
func (w *Worker) deliver(ctx context.Context, entries []domain.OutboxEntry) error {
	if len(entries) == 0 {
		return nil
	}
	err := w.persist(ctx, func() error { return w.append(ctx, entries) })
	if errors.Is(err, domain.ErrRejected) {
		if len(entries) == 1 {
			w.setAside(ctx, entries[0], err.Error())
			return nil
		}
		// One record is at fault; alone, each of the others is taken.
		for i := range entries {
			if err := w.deliver(ctx, entries[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	return w.persist(ctx, func() error {
		return w.call(ctx, opAck, func(ctx context.Context) error { return w.opts.Outbox.AckOutbox(ctx, entries) })
	})
}

// persist repeats do until it succeeds, blames a record, or ctx ends.
func (w *Worker) persist(ctx context.Context, do func() error) error {
	pauses := w.newBackoff()
	for {
		err := do()
		if err == nil || errors.Is(err, domain.ErrRejected) || !pauses.wait(ctx) {
			return err
		}
	}
}

func (w *Worker) append(ctx context.Context, entries []domain.OutboxEntry) error {
	recs := make([]domain.UsageRecord, len(entries))
	for i, e := range entries {
		recs[i] = e.Record
	}
	return w.call(ctx, opAppend, func(ctx context.Context) error {
		began := time.Now()
		inserted, err := w.opts.Ledger.Append(ctx, recs)
		w.metrics.appendTime.Observe(time.Since(began).Seconds())
		if err != nil {
			return err
		}
		w.metrics.written.Add(float64(inserted))
		w.metrics.duplicates.Add(float64(len(recs) - inserted))
		return nil
	})
}

// setAside leaves e unacknowledged, so that it comes again after ReclaimIdle
// (a newer worker may understand it), and dead-letters it at its last
// delivery. Its own failure needs no retry: the entry comes again.
func (w *Worker) setAside(ctx context.Context, e domain.OutboxEntry, reason string) {
	log := w.opts.Logger.With(slog.Int("shard", e.Shard), slog.String("entry", e.ID),
		slog.Int64("deliveries", e.Deliveries), slog.String("reason", reason))
	if e.Deliveries < w.opts.MaxDeliveries {
		log.Warn("outbox entry cannot be written")
		return
	}
	err := w.call(ctx, opDeadLetter, func(ctx context.Context) error { return w.opts.Outbox.DeadLetter(ctx, e, reason) })
	if err == nil {
		w.metrics.deadLetters.Inc()
		log.Error("outbox entry dead-lettered")
	}
}
