package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// readiness is the content of ready.json: everything a script needs to use and
// to watch a running `keyway up`.
type readiness struct {
	BaseURL       string             `json:"base_url"`
	APIKey        string             `json:"api_key"`
	Model         string             `json:"model"`
	AdminURL      string             `json:"admin_url"`
	ProviderURL   string             `json:"provider_url"`
	EnvoyAdminURL string             `json:"envoy_admin_url"`
	Binary        string             `json:"binary"`
	RedisURL      string             `json:"redis_url"`
	Ledger        string             `json:"ledger"`
	Config        string             `json:"config"`
	Region        string             `json:"region"`
	Dir           string             `json:"dir"`
	PID           int                `json:"pid"`
	PIDs          map[string]int     `json:"pids"`
	Services      map[string]service `json:"services"`
}

// service is where one of our processes is watched.
type service struct {
	HealthURL  string `json:"health_url"`
	ReadyURL   string `json:"ready_url"`
	MetricsURL string `json:"metrics_url"`
}

func serviceAt(port int) service {
	base := localURL(port)
	return service{HealthURL: base + "/healthz", ReadyURL: base + "/readyz", MetricsURL: base + "/metrics"}
}

func (r readiness) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	return writeFile(path, append(data, '\n'))
}

// readReadiness reads what a running `keyway up` on dir has written.
func readReadiness(dir string) (readiness, error) {
	var r readiness
	data, err := os.ReadFile(filepath.Join(dir, "ready.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("nothing runs on %s: start `keyway up`, or give the address by a flag", dir)
	}
	if err != nil {
		return r, fmt.Errorf("read what keyway up wrote: %w", err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("decode ready.json of %s: %w", dir, err)
	}
	return r, nil
}
