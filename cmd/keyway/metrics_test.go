package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/authz"
	"keyway/config"
	"keyway/domain"
	"keyway/extproc"
	"keyway/secret"
	"keyway/store"
	"keyway/telemetry"
	"keyway/worker"
	"keyway/xds"
)

var update = flag.Bool("update", false, "write docs/metrics.md instead of comparing it")

// recorder is a registry that remembers what each service registers, also the
// families that have no value before the first request.
type recorder struct {
	prometheus.Registerer
	found []metricDoc
}

func (r *recorder) Register(c prometheus.Collector) error {
	r.found = append(r.found, describe(c)...)
	return r.Registerer.Register(c)
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// metricDoc is one row of the document.
type metricDoc struct{ name, kind, labels, help string }

var descForm = regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", .*variableLabels: \{([^}]*)\}`)

func describe(c prometheus.Collector) []metricDoc {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	var docs []metricDoc
	for d := range descs {
		m := descForm.FindStringSubmatch(d.String())
		if m == nil {
			panic("description is not readable: " + d.String())
		}
		docs = append(docs, metricDoc{name: m[1], kind: kindOf(c), labels: m[3], help: strings.ReplaceAll(m[2], `\"`, `"`)})
	}
	return docs
}

func kindOf(c prometheus.Collector) string {
	switch c.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.GaugeVec:
		return "gauge"
	case *prometheus.HistogramVec:
		return "histogram"
	}
	metrics := make(chan prometheus.Metric, 100)
	c.Collect(metrics)
	close(metrics)
	for m := range metrics {
		var value dto.Metric
		if err := m.Write(&value); err != nil {
			panic(err)
		}
		switch {
		case value.Counter != nil:
			return "counter"
		case value.Gauge != nil:
			return "gauge"
		case value.Histogram != nil:
			return "histogram"
		}
	}
	return "unknown"
}

// nowhere is a ledger that is never written.
type nowhere struct{}

func (nowhere) Append(context.Context, []domain.UsageRecord) (int, error) { return 0, nil }

func (nowhere) AddBalance(context.Context, domain.BalanceEntry) (domain.BalanceEntry, bool, error) {
	return domain.BalanceEntry{}, false, nil
}

func (nowhere) BalanceEntry(context.Context, string, string) (domain.BalanceEntry, error) {
	return domain.BalanceEntry{}, nil
}

// serviceMetrics makes every service as its subcommand does, without running it.
func serviceMetrics(t *testing.T) map[string][]metricDoc {
	t.Helper()
	regional, err := store.Open(store.Options{URL: "redis://127.0.0.1:1/0"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, regional.Close()) })
	logger := slog.New(slog.DiscardHandler)
	health := telemetry.NewHealth(telemetry.HealthOptions{})
	creators := map[string]func(*recorder) error{
		"authz": func(r *recorder) error {
			ln, err := listen(t.Context(), loopback+":0")
			require.NoError(t, err)
			server, err := authz.New(authz.Options{
				Config: new(config.Holder), Keys: regional, KeyChanges: regional, Reservations: regional, Calibrations: regional,
				Cooldowns: regional, ChannelStats: regional, Rates: regional, Listener: ln,
				Health: health, Registerer: r, Logger: logger,
			})
			require.NoError(t, err)
			ended, end := context.WithCancel(t.Context())
			end()
			_ = server.Run(ended) // Only its end is wanted: that stops the cache's goroutine.
			return nil
		},
		"extproc": func(r *recorder) error {
			ln, err := listen(t.Context(), loopback+":0")
			require.NoError(t, err)
			defer ln.Close()
			_, err = extproc.New(extproc.Options{
				Config: new(config.Holder), Store: regional, Secrets: secret.NewResolver(secret.Options{}), Listener: ln,
				Health: health, Registerer: r, Logger: logger, JournalFile: filepath.Join(t.TempDir(), "journal"),
			})
			return err
		},
		"xds": func(r *recorder) error {
			_, err := xds.New(xds.Options{ConfigFile: "x", ListenXDS: loopback + ":0", Registerer: r, Logger: logger})
			return err
		},
		"worker": func(r *recorder) error {
			_, err := worker.New(worker.Options{
				Outbox: regional, Ledger: nowhere{}, Reservations: regional, Stats: regional, Consumer: "x", Registerer: r,
			})
			require.NoError(t, err)
			_, err = worker.NewWebhook(worker.WebhookOptions{
				Balances: nowhere{}, Config: new(config.Holder), Secrets: func() ([]string, error) { return nil, nil }, Currency: "usd", Registerer: r,
			})
			return err
		},
	}
	docs := map[string][]metricDoc{}
	for name, create := range creators {
		r := &recorder{Registerer: prometheus.NewRegistry()}
		require.NoError(t, create(r), name)
		docs[name] = r.found
	}
	return docs
}

func TestMetricsDocument(t *testing.T) {
	docs := serviceMetrics(t)
	var text strings.Builder
	text.WriteString(`# Metrics

Each service serves these under /metrics of its --metrics address, with the Go
runtime's and the process's own. Label sets are closed: no key, identity,
request or stream is ever a label.

This file is written by a test from the services' registries (make generate).
`)
	for _, name := range []string{procXDS, procAuthz, procExtproc, procWorker} {
		fmt.Fprintf(&text, "\n## %s\n\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n", name)
		rows := docs[name]
		slices.SortFunc(rows, func(a, b metricDoc) int { return strings.Compare(a.name, b.name) })
		for _, m := range rows {
			assert.True(t, strings.HasPrefix(m.name, "keyway_"), "%s begins with keyway_", m.name)
			assert.NotEqual(t, "unknown", m.kind, m.name)
			assert.True(t, sentence(m.help), "%s: %q is a sentence", m.name, m.help)
			fmt.Fprintf(&text, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.ReplaceAll(m.labels, ",", ", "), strings.ReplaceAll(m.help, "|", `\|`))
		}
	}
	path := filepath.Join("..", "..", "docs", "metrics.md")
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, text.String(), string(have), "docs/metrics.md is not current: make generate")
}
