package worker

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"keyway/domain"
)

// operation is one kind of call of the store or the ledger: its name as a
// metric label, and the health check that it speaks for.
type operation struct{ name, check string }

const (
	checkStore  = "store"
	checkLedger = "ledger"
)

// The closed set of operations.
var (
	opRead       = operation{"read_outbox", checkStore}
	opAck        = operation{"ack_outbox", checkStore}
	opDeadLetter = operation{"dead_letter", checkStore}
	opExpired    = operation{"expired", checkStore}
	opSettle     = operation{"settle", checkStore}
	opStats      = operation{"stats", checkStore}
	opBudgets    = operation{"budgets", checkStore}
	opAppend     = operation{"append", checkLedger}
	opBudgetSums = operation{"budget_sums", checkLedger}
	opNewest     = operation{"newest", checkLedger}
	opAdvance    = operation{"advance", checkStore}
	opRebuild    = operation{"rebuild", checkBudgets}
	opCredits    = operation{"credits", checkLedger}
	opCreditMark = operation{"credit_mark", checkStore}
	opSetCredits = operation{"set_credits", checkStore}

	operations = []operation{
		opRead, opAck, opDeadLetter, opExpired, opSettle, opStats, opBudgets, opAppend, opBudgetSums,
		opCredits, opCreditMark, opSetCredits, opNewest, opAdvance, opRebuild,
	}
)

// sweepResults are the closed label set of swept, by domain.SettleResult.
var sweepResults = map[domain.SettleResult]string{
	domain.SettleDone:    "settled",
	domain.SettleAlready: "already",
	domain.SettleUnknown: "unknown",
}

type metrics struct {
	// Used by drain.
	written     prometheus.Counter
	duplicates  prometheus.Counter
	deadLetters prometheus.Counter
	appendTime  prometheus.Histogram
	// Used by sweep.
	swept *prometheus.CounterVec // result
	// Used by watch.
	openReservations prometheus.Gauge
	outboxEntries    prometheus.Gauge
	outboxAge        prometheus.Gauge
	// Used by compareBudgets.
	drift           prometheus.Gauge
	comparedBudgets prometheus.Gauge
	// Used by carryCredits.
	credits prometheus.Counter
	// Used by keepGenerations.
	lostShards prometheus.Gauge
	rebuilt    prometheus.Counter
	// Used by all.
	errors *prometheus.CounterVec // operation
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const namespace, subsystem = "keyway", "worker"
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	m := &metrics{
		written:     prometheus.NewCounter(counter("records_written_total", "Records that were new to the ledger.")),
		duplicates:  prometheus.NewCounter(counter("records_duplicate_total", "Records delivered again that the ledger had already.")),
		deadLetters: prometheus.NewCounter(counter("dead_letters_total", "Outbox entries set aside because they could not be written.")),
		appendTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem,
			Name: "append_duration_seconds", Help: "Time of one ledger transaction, failed ones included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8), // 1 ms to 16 s
		}),
		swept: prometheus.NewCounterVec(counter("reservations_swept_total",
			"Expired reservations settled as abandoned, by what the store found."), []string{"result"}),
		openReservations: gauge("open_reservations", "Reservations neither settled nor abandoned."),
		outboxEntries:    gauge("outbox_entries", "Settlements on their way to the ledger."),
		outboxAge:        gauge("outbox_oldest_age_seconds", "Age of the oldest settlement that is not in the ledger yet."),
		drift: gauge("drift_micros",
			"Money by which budget counters differ from the ledger, in millionths of the currency unit; anything but 0 is a fault."),
		comparedBudgets: gauge("drift_compared_budgets", "Budgets that the last comparison with the ledger looked at."),
		lostShards: gauge("lost_shards",
			"Shards of the store that have lost writes; budgeted requests there are refused until their budgets are rebuilt from the ledger."),
		rebuilt: prometheus.NewCounter(counter("shards_rebuilt_total", "Shards of the store whose budgets were rebuilt from the ledger.")),
		credits: prometheus.NewCounter(counter("credits_carried_total",
			"Sums of what an identity has paid in that were brought to the store; some were there already.")),
		errors: prometheus.NewCounterVec(counter("errors_total", "Calls of the store or the ledger that failed."), []string{"operation"}),
	}
	for _, op := range operations {
		m.errors.WithLabelValues(op.name)
	}
	for _, result := range sweepResults {
		m.swept.WithLabelValues(result)
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.written, m.duplicates, m.deadLetters, m.appendTime, m.swept,
		m.openReservations, m.outboxEntries, m.outboxAge, m.drift, m.comparedBudgets, m.credits, m.lostShards, m.rebuilt, m.errors,
	} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// watch keeps the gauges of the store's size until ctx ends. While the store
// is away they keep their last value; the health check says so.
func (w *Worker) watch(ctx context.Context) {
	for {
		var stats domain.StoreStats
		err := w.call(ctx, opStats, func(ctx context.Context) (err error) {
			stats, err = w.opts.Stats.Stats(ctx)
			return err
		})
		if err == nil {
			w.metrics.openReservations.Set(float64(stats.OpenReservations))
			w.metrics.outboxEntries.Set(float64(stats.OutboxLen))
			w.metrics.outboxAge.Set(stats.OutboxOldest.Seconds())
		}
		if !pause(ctx, w.opts.StatsInterval) {
			return
		}
	}
}
