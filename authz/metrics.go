package authz

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keyway/domain"
	"keyway/telemetry"
)

// admittedLabel is the value of the label code for a request that was admitted.
const admittedLabel = "admitted"

// The modes in which a request goes out while the store is away.
const (
	modeOpenWindow = "open_window"
	modeOptimistic = "optimistic"
)

// journalSize tells how many admissions wait, and how many bytes they are.
type journalSize func() (entries int, bytes int64)

// metrics are what authz counts. Labels are closed: code is admittedLabel or a domain.Code,
// channel is configured.
type metrics struct {
	checks         *prometheus.CounterVec
	duration       prometheus.Histogram
	refundsDropped prometheus.Counter
	// outageAdmissions are by modeOpenWindow or modeOptimistic.
	outageAdmissions *prometheus.CounterVec
	replayed         prometheus.Counter
	refused          prometheus.Counter

	leasedAdmissions prometheus.Counter
	notesDropped     prometheus.Counter
	budgetsUnknown   prometheus.Counter

	channelState *prometheus.GaugeVec
	channelsOut  prometheus.Gauge
	// shown are the channels that channelState has; only observeChannels touches it.
	shown map[string]domain.HealthState
}

func newMetrics(r prometheus.Registerer, journal journalSize) *metrics {
	f := telemetry.NewFactory(r)
	m := &metrics{
		checks: f.Counters("keyway_authz_checks_total",
			"Requests checked, by code: admitted, or why a request was refused.", "code"),
		duration: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "keyway_authz_check_duration_seconds",
			Help:    "Time that admission added to a request, in seconds.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1},
		}),
		refundsDropped: f.Counter("keyway_authz_refunds_dropped_total",
			"Uncertain reservations left to the sweeper because too many waited for the store."),
		outageAdmissions: f.Counters("keyway_authz_outage_admissions_total",
			"Requests admitted while the store was away, by what their policies allow then: open_window, optimistic.", "mode"),
		replayed: f.Counter("keyway_authz_admissions_replayed_total",
			"Optimistic admissions that were charged once the store was back."),
		refused: f.Counter("keyway_authz_journal_refused_total",
			"Optimistic admissions that the store refused for good and that were set aside; what their requests used is still charged at their ends."),
		leasedAdmissions: f.Counter("keyway_authz_leased_admissions_total",
			"Requests admitted on leased rates alone, without a call to the store."),
		notesDropped: f.Counter("keyway_authz_notes_dropped_total",
			"Requests on leased rates whose reservation was not written because too many waited for the store: the sweeper cannot find them."),
		budgetsUnknown: f.Counter("keyway_authz_budgets_unknown_total",
			"Requests refused because the store is new or has lost writes, and no worker has rebuilt its budgets from the ledger yet."),
	}
	m.channelState = f.Gauges("keyway_authz_channel_state",
		"What may be sent to a channel, by the worst of its classes: 0 anything, 1 a trial, 2 nothing while it cools, 3 nothing until it is changed or reset.", "channel")
	m.channelsOut = f.Gauge("keyway_authz_channels_out",
		"Channels that are out until an operator acts: the account is out of money, or its credential is refused.")
	for _, mode := range []string{modeOpenWindow, modeOptimistic} {
		m.outageAdmissions.WithLabelValues(mode)
	}
	f.GaugeFunc("keyway_authz_journal_entries",
		"Optimistic admissions that wait in the journal for the store.", func() float64 { n, _ := journal(); return float64(n) })
	f.GaugeFunc("keyway_authz_journal_bytes",
		"Length of the journal's file; it is emptied when every admission in it has landed.", func() float64 { _, size := journal(); return float64(size) })
	return m
}

// observeChannels shows the states of all channels that there are.
func (m *metrics) observeChannels(states map[string]domain.HealthState) {
	out := 0
	for name, state := range states {
		m.channelState.WithLabelValues(name).Set(float64(state))
		if state == domain.HealthOut {
			out++
		}
	}
	for name := range m.shown {
		if _, still := states[name]; !still {
			m.channelState.DeleteLabelValues(name)
		}
	}
	m.channelsOut.Set(float64(out))
	m.shown = states
}

func (m *metrics) observe(err error, took time.Duration) {
	label := admittedLabel
	if err != nil {
		label = string(domain.CodeInternal)
		var known *domain.Error
		if errors.As(err, &known) {
			label = string(known.Code)
		}
	}
	m.checks.WithLabelValues(label).Inc()
	m.duration.Observe(took.Seconds())
}
