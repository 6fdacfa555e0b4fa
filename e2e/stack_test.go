package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
	"keyway/ledger"
	"keyway/store"
)

// lease is that of every test region: short, so that tests of lost owners end soon.
const lease = 4 * time.Second

// ready is what `keyway up` writes for scripts.
type ready struct {
	BaseURL       string         `json:"base_url"`
	APIKey        string         `json:"api_key"`
	AdminURL      string         `json:"admin_url"`
	EnvoyAdminURL string         `json:"envoy_admin_url"`
	RedisURL      string         `json:"redis_url"`
	Ledger        string         `json:"ledger"`
	PIDs          map[string]int `json:"pids"`
	Services      map[string]struct {
		ReadyURL   string `json:"ready_url"`
		MetricsURL string `json:"metrics_url"`
	} `json:"services"`
}

// stack is one whole region on this machine.
type stack struct {
	ready    ready
	dir      string
	config   string
	provider *fakeprovider.Server
	store    *store.Store
	ledger   *ledger.Ledger
	up       *exec.Cmd
	output   *lockedBuffer
	done     chan struct{}
}

// shared is the region of all tests that leave it as they found it.
var shared struct {
	once  sync.Once
	stack *stack
	err   error
}

// sharedStack starts the shared region at first use. Tests on it choose what
// the provider does by markers in the prompt, so they can run side by side.
func sharedStack(t testing.TB) *stack {
	t.Helper()
	shared.once.Do(func() { shared.stack, shared.err = newStack() })
	require.NoError(t, shared.err, "start the shared region")
	return shared.stack
}

// ownStack starts a region for one test that breaks things.
func ownStack(t testing.TB) *stack {
	t.Helper()
	s, err := newStack()
	require.NoError(t, err, "start a region")
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("keyway up printed:\n%s\n%s", s.output, s.logs())
		}
	})
	return s
}

// faceNames are the provider's faces; each is a provider and a channel of its
// own. Those that begin with "tls" speak HTTP/2 over TLS.
var faceNames = []string{"a", "b", "c", "tlsa", "tlsb"}

func faceKey(name string) string { return "sk-test-" + name + "-3f9c" }

func newStack() (_ *stack, err error) {
	dir, err := os.MkdirTemp("", "kw")
	if err != nil {
		return nil, err
	}
	s := &stack{dir: dir, output: &lockedBuffer{}, done: make(chan struct{})}
	defer func() {
		if err != nil {
			s.stop()
			err = fmt.Errorf("%w\nkeyway up printed:\n%s\n%s", err, s.output, s.logs())
		}
	}()
	faces := make([]fakeprovider.FaceOptions, 0, len(faceNames))
	for _, name := range faceNames {
		f := fakeprovider.FaceOptions{Name: name, WantKey: faceKey(name)}
		if strings.HasPrefix(name, "tls") {
			f.TLS = &fakeprovider.TLSOptions{}
		}
		faces = append(faces, f)
	}
	if s.provider, err = fakeprovider.New(fakeprovider.Options{Faces: faces}); err != nil {
		return nil, err
	}
	if err = s.provider.Start(); err != nil {
		return nil, err
	}
	if err = s.writeConfig(configValues{}); err != nil {
		return nil, err
	}
	if err = s.start(); err != nil {
		return nil, err
	}
	s.store, err = store.Open(store.Options{URL: s.ready.RedisURL})
	if err != nil {
		return nil, err
	}
	s.ledger, err = ledger.Open(context.Background(), "sqlite:"+strings.TrimPrefix(s.ready.Ledger, "sqlite:"))
	return s, err
}

// start runs `keyway up` until it is ready.
func (s *stack) start() error {
	root, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	s.up = exec.Command(binary, "up", "--dir", filepath.Join(s.dir, "up"), "--config", s.config,
		"--parts-dir", filepath.Join(root, ".parts"), "--stop-grace", "500ms",
		"--admin-port", "0", "--provider-port", "0", "--envoy-admin-port", "0", "--store-port", "0",
		"--authz-port", "0", "--extproc-port", "0", "--worker-port", "0")
	s.up.Stdout, s.up.Stderr = s.output, s.output
	s.up.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.up.Start(); err != nil {
		return fmt.Errorf("start keyway up: %w", err)
	}
	go func() {
		defer close(s.done)
		_ = s.up.Wait()
	}()
	return s.waitReady(2 * time.Minute)
}

// waitReady reads ready.json once it is there.
func (s *stack) waitReady(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) {
		if err := s.readReady(); err == nil {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("keyway up ended before it was ready")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("keyway up was not ready within %s", limit)
}

func (s *stack) readReady() error {
	raw, err := os.ReadFile(filepath.Join(s.dir, "up", "ready.json"))
	if err != nil {
		return err
	}
	var r ready
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	s.ready = r
	return nil
}

// stop ends the region and the provider; safe to call twice.
func (s *stack) stop() {
	if s.ledger != nil {
		_ = s.ledger.Close()
		s.ledger = nil
	}
	if s.store != nil {
		_ = s.store.Close()
		s.store = nil
	}
	if s.up != nil && s.up.Process != nil {
		_ = s.up.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.done:
		case <-time.After(40 * time.Second):
			_ = syscall.Kill(-s.up.Process.Pid, syscall.SIGKILL)
			<-s.done
		}
		s.up = nil
	}
	if s.provider != nil {
		s.provider.Close()
		s.provider = nil
	}
}

// logs are the tails of what the processes wrote.
func (s *stack) logs() string {
	var out strings.Builder
	files, _ := filepath.Glob(filepath.Join(s.dir, "up", "log", "*.log"))
	for _, file := range files {
		raw, _ := os.ReadFile(file)
		const tail = 3000
		if len(raw) > tail {
			raw = raw[len(raw)-tail:]
		}
		fmt.Fprintf(&out, "--- %s\n%s\n", filepath.Base(file), raw)
	}
	return out.String()
}

// configValues change the configuration of a region.
type configValues struct {
	// Extra is appended to the channel list, YAML.
	ExtraChannels string
}

// writeConfig writes the configuration file; xds picks it up by itself.
func (s *stack) writeConfig(v configValues) error {
	type face struct{ Name, URL, CA, Secret string }
	data := struct {
		configValues
		Port  int
		Lease string
		Faces []face
	}{configValues: v, Lease: lease.String()}
	ca := filepath.Join(s.dir, "ca.pem")
	if err := os.WriteFile(ca, s.provider.CAPEM(), 0o600); err != nil {
		return err
	}
	for _, name := range faceNames {
		secret := filepath.Join(s.dir, name+".sk")
		if err := os.WriteFile(secret, []byte(faceKey(name)+"\n"), 0o600); err != nil {
			return err
		}
		f := face{Name: name, URL: s.provider.Face(name).URL(), Secret: secret}
		if strings.HasPrefix(name, "tls") {
			f.CA = ca
		}
		data.Faces = append(data.Faces, f)
	}
	if s.config == "" {
		s.config = filepath.Join(s.dir, "config.yaml")
	}
	port, err := s.listenerPort()
	if err != nil {
		return err
	}
	data.Port = port
	var out bytes.Buffer
	if err := configTemplate.Execute(&out, data); err != nil {
		return err
	}
	next := s.config + ".next"
	if err := os.WriteFile(next, out.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.config)
}

// listenerPort is a free port, or the one that the region already has.
func (s *stack) listenerPort() (int, error) {
	if s.ready.BaseURL != "" {
		_, port, ok := strings.Cut(strings.TrimPrefix(s.ready.BaseURL, "http://"), ":")
		var n int
		if _, err := fmt.Sscanf(port, "%d", &n); !ok || err != nil {
			return 0, fmt.Errorf("base_url %q has no port", s.ready.BaseURL)
		}
		return n, nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// configTemplate is the region of the tests. A request of the model "m" costs
// one micro-unit a token, so that money is easy to reckon.
var configTemplate = template.Must(template.New("config").Parse(`
region: test
listener: {address: 127.0.0.1, port: {{.Port}}}
limits: {lease: {{.Lease}}}
providers:
{{- range .Faces}}
  - name: {{.Name}}
    dialects: [openai, anthropic]
    base_url: {{.URL}}/v1
    first_byte_limit: 20s
    {{- if .CA}}
    ca_file: {{.CA}}
    {{- end}}
{{- end}}
  - name: hasty
    dialects: [openai, anthropic]
    base_url: {{(index .Faces 0).URL}}/v1
    first_byte_limit: 300ms
  - name: refusing
    dialects: [openai, anthropic]
    base_url: http://127.0.0.1:1/v1
    first_byte_limit: 300ms
  - name: brisk-a
    dialects: [openai, anthropic]
    base_url: {{(index .Faces 0).URL}}/v1
    first_byte_limit: 1s
  - name: brisk-b
    dialects: [openai, anthropic]
    base_url: {{(index .Faces 1).URL}}/v1
    first_byte_limit: 1s
channels:
{{- range .Faces}}
  - {name: {{.Name}}, provider: {{.Name}}, secret: "file:{{.Secret}}", priority: 1, slots: 5000, models: [{name: m, upstream: m-at-{{.Name}}}, {name: only-{{.Name}}, upstream: m}, {name: m-h2}]}
{{- end}}
  - {name: hasty, provider: hasty, secret: "file:{{(index .Faces 0).Secret}}", slots: 5000, models: [{name: m-silent, upstream: m-at-hasty}]}
  - {name: refusing, provider: refusing, secret: "file:{{(index .Faces 0).Secret}}", slots: 5000, models: [{name: m-refused, upstream: m-at-refusing}]}
  - {name: first, provider: a, secret: "file:{{(index .Faces 0).Secret}}", slots: 5000, models: [{name: two, upstream: m-first}]}
  - {name: second, provider: b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 5000, models: [{name: two, upstream: m-second-longer}, {name: m-silent, upstream: m-second-longer}, {name: m-refused, upstream: m-second-longer}]}
  - {name: narrow, provider: c, secret: "file:{{(index .Faces 2).Secret}}", slots: 2, models: [{name: narrow}]}
  - {name: first-tls, provider: tlsa, secret: "file:{{(index .Faces 3).Secret}}", slots: 5000, models: [{name: two-tls, upstream: m-first}]}
  - {name: second-tls, provider: tlsb, secret: "file:{{(index .Faces 4).Secret}}", priority: 1, slots: 5000, models: [{name: two-tls, upstream: m-second-longer}]}
  - {name: scoped, provider: c, secret: "file:{{(index .Faces 2).Secret}}", organization: org-of-the-channel, project: project-of-the-channel, models: [{name: m-scoped}]}
  - {name: failing, provider: a, secret: "file:{{(index .Faces 0).Secret}}", slots: 500, models: [{name: fail, upstream: m-failing}]}
  - {name: healthy, provider: b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 500, models: [{name: fail, upstream: m-healthy-longer}]}
  - {name: failing-h2, provider: tlsa, secret: "file:{{(index .Faces 3).Secret}}", slots: 500, models: [{name: fail-h2, upstream: m-failing}]}
  - {name: healthy-h2, provider: tlsb, secret: "file:{{(index .Faces 4).Secret}}", priority: 1, slots: 500, models: [{name: fail-h2, upstream: m-healthy-longer}]}
  - {name: brisk-a, provider: brisk-a, secret: "file:{{(index .Faces 0).Secret}}", slots: 500, models: [{name: silent, upstream: m-failing}]}
  - {name: brisk-b, provider: brisk-b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 500, models: [{name: silent, upstream: m-healthy-longer}]}
  - {name: tight, provider: a, secret: "file:{{(index .Faces 0).Secret}}", slots: 1, models: [{name: spill}]}
  - {name: sized, provider: b, secret: "file:{{(index .Faces 1).Secret}}", models: [{name: sized, upstream: m-sized}, {name: learned}]}
  - {name: spare, provider: b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 1, models: [{name: spill}]}
  - {name: priced, provider: c, secret: "file:{{(index .Faces 2).Secret}}", models: [{name: priced}]}
{{.ExtraChannels}}
models:
{{- range .Faces}}
  - {name: only-{{.Name}}, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
{{- end}}
  - {name: m, context_window: 200000, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m-h2, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: two, max_output: 64, prices: [{version: v1, input: "2", cache_read: "0.2", output: "8"}]}
  - {name: m-silent, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m-refused, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: narrow, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: two-tls, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m-scoped, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: fail, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: fail-h2, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: silent, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: spill, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: sized, max_output: 500, hidden_prompt_floor: 3000, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: learned, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - name: priced
    max_output: 64
    prices:
      - version: v2
        input: "2"
        cache_read: "0.2"
        cache_write: "2.5"
        cache_write_1h: "4"
        output: "8"
        reasoning: "9"
        input_audio: "20"
        output_audio: "40"
        tools: [{tool: web_search, per_thousand: "10"}]
        tiers: [{tier: priority, multiplier: "1.5"}]
        steps: [{above: 1000, input: "4", cache_read: "0.4", output: "16"}]
policies:
  - {name: budget1000, budget_day: "0.001"}
  - {name: rpm1, rpm: 1, in_flight: 1}
  - {name: flight1, in_flight: 1}
  - {name: wide, rpm: 1000000, tpm: 1000000000, in_flight: 100000, budget_day: "1000000", budget_month: "1000000"}
  - {name: tpm500, tpm: 500}
  - {name: metered, rpm: 6, tpm: 6000, in_flight: 6, budget_day: "1", budget_month: "10"}
  - {name: rpm2, rpm: 2, in_flight: 1}
  - {name: injected, budget_day: "1", cap: inject}
  - {name: trusted, budget_day: "1"}
  - {name: open, rpm: 80, on_store_down: open_window, open_window: 30s}
identities:
  - {id: capped, policy: budget1000}
  - {id: purse, policy: budget1000}
  - {id: wide, policy: wide}
  - {id: partner, policy: wide, price_multiplier: "0.9"}
`))

// key makes a virtual key with the CLI, as an operator would.
func (s *stack) key(t testing.TB, args ...string) (secret, id string) {
	t.Helper()
	out := s.cli(t, append([]string{"key", "create", "-o", "json", "--store", s.ready.RedisURL}, args...)...)
	var made struct{ ID, Secret, Key, KeyID string }
	var raw map[string]any
	require.NoError(t, json.Unmarshal(out, &raw), "%s", out)
	require.NoError(t, json.Unmarshal(out, &made), "%s", out)
	for _, name := range []string{"secret", "key", "api_key"} {
		if v, ok := raw[name].(string); ok && strings.HasPrefix(v, domain.KeyPrefix) {
			secret = v
		}
	}
	for _, name := range []string{"id", "key_id"} {
		if v, ok := raw[name].(string); ok {
			id = v
		}
	}
	require.NotEmpty(t, secret, "%s", out)
	require.NotEmpty(t, id, "%s", out)
	return secret, id
}

// cli runs the binary and returns what it printed.
func (s *stack) cli(t testing.TB, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(binary, args...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	require.NoError(t, err, "keyway %s: %s", strings.Join(args, " "), errOut.String())
	return out
}

// records waits until the ledger holds n rows of a key, and fails when it
// holds more a moment later.
func (s *stack) records(t testing.TB, keyID string, n int) []domain.UsageRecord {
	t.Helper()
	var got []domain.UsageRecord
	require.Eventually(t, func() bool {
		got = s.recordsNow(t, keyID)
		return len(got) >= n
	}, 3*lease, 50*time.Millisecond, "ledger rows of %s", keyID)
	require.Len(t, got, n)
	return got
}

func (s *stack) recordsNow(t testing.TB, keyID string) []domain.UsageRecord {
	t.Helper()
	var got []domain.UsageRecord
	err := s.ledger.Records(t.Context(), ledger.Query{KeyID: keyID}, func(r domain.UsageRecord) error {
		got = append(got, r)
		return nil
	})
	require.NoError(t, err)
	return got
}

// post sends a JSON body with a key and returns the whole answer.
func (s *stack) post(t testing.TB, path, key, body string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.ready.BaseURL+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, raw
}

// client keeps its connections apart from those of other tests' clients.
var client = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}

// chat is a chat body whose prompt carries a script for the provider.
func chat(model, script string, extra ...string) string {
	prompt := "Say something."
	if script != "" {
		prompt += " [[fake:" + script + "]]"
	}
	text, err := json.Marshal(prompt)
	if err != nil {
		panic(err) // a string always marshals
	}
	body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%s}]`, model, text)
	for _, e := range extra {
		body += "," + e
	}
	return body + "}"
}

// lockedBuffer collects the output of a process.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// jsonAt returns the raw value at a path of object keys.
func jsonAt(t testing.TB, raw []byte, path ...string) json.RawMessage {
	t.Helper()
	for _, key := range path {
		var object map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(raw, &object), "%s", raw)
		value, ok := object[key]
		require.True(t, ok, "no %q in %s", key, raw)
		raw = value
	}
	return raw
}
