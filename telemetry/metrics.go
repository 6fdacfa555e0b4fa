package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Factory makes metrics and registers them as it does. Names are given whole, so
// that a search for one finds where it is made. It panics where a name is taken.
type Factory struct{ promauto.Factory }

// NewFactory makes one for r.
func NewFactory(r prometheus.Registerer) Factory { return Factory{promauto.With(r)} }

// Counter makes a counter without labels.
func (f Factory) Counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// Counters makes a counter for each set of values of labels.
func (f Factory) Counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Gauge makes a gauge without labels.
func (f Factory) Gauge(name, help string) prometheus.Gauge {
	return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// Gauges makes a gauge for each set of values of labels.
func (f Factory) Gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// GaugeFunc makes a gauge that asks value whenever it is read.
func (f Factory) GaugeFunc(name, help string, value func() float64) {
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}
