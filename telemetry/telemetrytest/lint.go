package telemetrytest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// Lint fails t for every metric of g that breaks Prometheus' naming rules or
// has no help text. A metric with labels is seen only once it has a value, so
// set one before; g without any metric fails too.
func Lint(t testing.TB, g prometheus.Gatherer) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Errorf("gather metrics: %v", err)
		return
	}
	if len(families) == 0 {
		t.Errorf("there is no metric to lint")
		return
	}
	for _, f := range families {
		// The linter asks only whether the field is there, and it always is.
		if f.GetHelp() == "" {
			t.Errorf("metric %s: has no help text", f.GetName())
		}
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Errorf("lint metrics: %v", err)
	}
	for _, p := range problems {
		t.Errorf("metric %s: %s", p.Metric, p.Text)
	}
}
