package telemetrytest

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a testing.TB that keeps the errors.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func TestLint(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		opts []prometheus.CounterOpts
		want int
	}{
		{name: "clean", opts: []prometheus.CounterOpts{{Name: "keyway_things_total", Help: "Things seen."}}},
		{name: "no help", opts: []prometheus.CounterOpts{{Name: "keyway_things_total"}}, want: 1},
		{name: "bad suffix", opts: []prometheus.CounterOpts{{Name: "keyway_things", Help: "Things seen."}}, want: 1},
		{name: "bad unit", opts: []prometheus.CounterOpts{{Name: "keyway_wait_milliseconds_total", Help: "Wait."}}, want: 1},
		{name: "nothing registered", want: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			reg := prometheus.NewRegistry()
			for _, o := range tt.opts {
				reg.MustRegister(prometheus.NewCounter(o))
			}
			r := &recorder{TB: t}
			Lint(r, reg)
			assert.Len(t, r.errors, tt.want, "%v", r.errors)
		})
	}
}
