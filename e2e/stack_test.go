package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
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
	// lossy is a path to the face tlsb.
	lossy  *lossyPath
	store  *store.Store
	ledger *ledger.Ledger
	up     *exec.Cmd
	output *lockedBuffer
	done   chan struct{}
}

// metric reads one value without labels from a service.
func (s *stack) metric(t testing.TB, service, name string) float64 {
	t.Helper()
	answer, err := http.Get(s.ready.Services[service].MetricsURL)
	require.NoError(t, err)
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			number, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			return number
		}
	}
	require.NoError(t, lines.Err())
	require.Fail(t, "no such metric", "%s of %s", name, service)
	return 0
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
		os.RemoveAll(s.dir)
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
	if s.lossy, err = startLossyPath(s.provider.Face("tlsb").Addr()); err != nil {
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
	s.up.Env = append(os.Environ(), "KEYWAY_PPROF=true")
	s.up.SysProcAttr = ownGroup()
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
	if s.lossy != nil {
		s.lossy.close()
		s.lossy = nil
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
	eventually(t, func() bool {
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
