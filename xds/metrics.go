package xds

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/prometheus/client_golang/prometheus"

	"keyway/config"
)

// The kinds of node, by what they ask for.
const (
	kindEnvoy   = "envoy"
	kindService = "service"
)

// typeLabels names the resource types in logs, metrics and status.
var typeLabels = map[string]string{
	resource.ListenerType:   "listener",
	resource.RouteType:      "route",
	resource.ClusterType:    "cluster",
	config.RegionConfigType: "region_config",
}

// typeLabel keeps the label set closed whatever a client asks for.
func typeLabel(typeURL string) string {
	if label, ok := typeLabels[typeURL]; ok {
		return label
	}
	return "other"
}

// metrics of the control plane; all of them are set by the loop, nacks also by
// the streams.
type metrics struct {
	connected *prometheus.GaugeVec
	nacks     *prometheus.CounterVec
	version   prometheus.Gauge
	rejected  prometheus.Counter
	timeouts  prometheus.Counter
	withheld  prometheus.Gauge
	push      prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyway_xds_connected_nodes", Help: "Open ADS streams by kind of node: envoy or service.",
		}, []string{"kind"}),
		nacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "keyway_xds_nacks_total", Help: "Responses that a node refused, by resource type.",
		}, []string{"type"}),
		version: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keyway_xds_config_version", Help: "Version of the RegionConfig that is published.",
		}),
		rejected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyway_xds_config_rejected_total", Help: "Contents of the configuration file that were refused.",
		}),
		timeouts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyway_xds_ack_timeouts_total", Help: "Pushes that went on although an Envoy had not answered within the wait.",
		}),
		withheld: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "keyway_xds_withheld_channels", Help: "Channels that services are not told of because an Envoy refused their cluster.",
		}),
		push: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "keyway_xds_push_duration_seconds", Help: "Time from a configuration's acceptance to its publication to the services.",
			Buckets: []float64{0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}),
	}
	reg.MustRegister(m.connected, m.nacks, m.version, m.rejected, m.timeouts, m.withheld, m.push)
	for _, kind := range []string{kindEnvoy, kindService} {
		m.connected.WithLabelValues(kind)
	}
	for _, label := range typeLabels {
		m.nacks.WithLabelValues(label)
	}
	return m
}
