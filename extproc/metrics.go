package extproc

import (
	"github.com/prometheus/client_golang/prometheus"

	"keyway/domain"
	"keyway/telemetry"
)

// metrics are what extproc counts. Labels are closed: outcome and source are
// domain's, channel is configured, class is one of answerClass, reason is domain's,
// why is one of the why constants.
type metrics struct {
	requests      *prometheus.CounterVec
	settlements   *prometheus.CounterVec
	answers       *prometheus.CounterVec
	cooldowns     *prometheus.CounterVec
	probeUp       *prometheus.GaugeVec
	tokens        *prometheus.CounterVec
	costMicros    prometheus.Counter
	unpricedTiers prometheus.Counter
	ttft          prometheus.Histogram
	// The two sides of one metric; a stream observes it with every chunk.
	addedEgress, addedWatch prometheus.Observer

	estimateRatio prometheus.Histogram
	lost          prometheus.Counter
	refused       prometheus.Counter
	heartbeats    prometheus.Counter
	idleEnds      prometheus.Counter
	background    prometheus.Gauge
	takenOver     prometheus.Counter
	givenUp       *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, inFlight, journal func() float64) *metrics {
	f := telemetry.NewFactory(r)
	m := &metrics{
		requests: f.Counters("keyway_extproc_requests_total",
			"Requests that ended, by outcome; the cancel rate is cancelled over all.", "outcome"),
		settlements: f.Counters("keyway_extproc_settlements_total",
			"Settlements by what the store found: done, already, unknown.", "result"),
		answers: f.Counters("keyway_extproc_upstream_answers_total",
			"Attempts by channel and class of answer: ok, 3xx, 429, 4xx, 5xx, none.", "channel", "class"),
		cooldowns: f.Counters("keyway_extproc_cooldowns_total",
			"Cooldowns that began or grew longer, by channel and reason: rate, overload, server, unanswered, and quota and auth, which take it out.", "channel", "reason"),
		probeUp: f.Gauges("keyway_extproc_probe_up",
			"Whether the last probe of a channel that this instance made was answered as it should, 1 or 0.", "channel"),
		tokens: f.Counters("keyway_extproc_tokens_total",
			"Tokens settled, by direction (input, output) and source (upstream, estimate).", "direction", "source"),
		costMicros: f.Counter("keyway_extproc_cost_micros_total",
			"Money settled, in millionths of the currency unit."),
		unpricedTiers: f.Counter("keyway_extproc_unpriced_tier_total",
			"Settlements in a service tier that the model's price does not list; they were charged as the standard tier."),
		ttft: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "keyway_extproc_ttft_seconds",
			Help:    "Time from admission to the first byte of the answer's body, in seconds.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}),
		estimateRatio: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "keyway_extproc_prompt_estimate_ratio",
			Help:    "Prompt tokens reserved, estimated and corrected, over prompt tokens reported by the provider.",
			Buckets: []float64{.25, .5, .75, .9, 1, 1.05, 1.1, 1.2, 1.5, 2, 4},
		}),
		lost: f.Counter("keyway_extproc_settlements_lost_total",
			"Settlements that neither the store nor the journal took; the sweeper ends them as abandoned."),
		refused: f.Counter("keyway_extproc_journal_refused_total",
			"Settlements of the journal that the store refused for good and that were set aside; the sweeper ends their requests as abandoned."),
		heartbeats: f.Counter("keyway_extproc_heartbeats_total",
			"Heartbeats that went to clients while their upstreams were silent."),
		idleEnds: f.Counter("keyway_extproc_idle_ends_total",
			"Answers that were ended because their upstream had sent nothing for idle_limit."),
		background: f.Gauge("keyway_extproc_background_responses",
			"Responses in the background that this instance follows until they have ended."),
		takenOver: f.Counter("keyway_extproc_background_taken_over_total",
			"Responses in the background that this instance went on following where another one, or its predecessor, had stopped."),
		givenUp: f.Counters("keyway_extproc_background_given_up_total",
			"Responses in the background that were settled by an estimate, by why: forgotten by the provider, refused to the channel or its channel gone, age, no_room to follow them.", "why"),
	}
	added := f.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "keyway_extproc_added_latency_seconds",
		Help:    "Time that one message took in this service, in seconds, by side: egress, watch.",
		Buckets: []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .1},
	}, []string{"side"})
	m.addedEgress, m.addedWatch = added.WithLabelValues("egress"), added.WithLabelValues("watch")
	f.GaugeFunc("keyway_extproc_in_flight",
		"Requests whose holds this instance keeps alive.", inFlight)
	f.GaugeFunc("keyway_extproc_journal_entries",
		"Settlements that wait in the journal for the store.", journal)
	return m
}

var settleResults = map[domain.SettleResult]string{
	domain.SettleDone: "done", domain.SettleAlready: "already", domain.SettleUnknown: "unknown",
}

func (m *metrics) observeSettlement(r domain.UsageRecord, result domain.SettleResult) {
	m.settlements.WithLabelValues(settleResults[result]).Inc()
	if result == domain.SettleAlready {
		return
	}
	m.requests.WithLabelValues(string(r.Outcome)).Inc()
	for _, a := range r.Attempts {
		m.answers.WithLabelValues(a.Channel, answerClass(a.Status)).Inc()
	}
	m.tokens.WithLabelValues("input", string(r.Source)).Add(float64(r.Usage.Input()))
	m.tokens.WithLabelValues("output", string(r.Source)).Add(float64(r.Usage.Output))
	m.costMicros.Add(float64(r.CostMicros))
}

func answerClass(status int) string {
	switch {
	case status == 0:
		return "none"
	case status == 429:
		return "429"
	case status >= 500:
		return "5xx"
	case status >= 400:
		return "4xx"
	case status >= 300:
		return "3xx"
	}
	return "ok"
}
