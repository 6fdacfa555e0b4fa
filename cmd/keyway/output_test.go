package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/ledger"
)

func sampleLedger(t *testing.T) (dsn string) {
	t.Helper()
	dsn = "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
	book, err := ledger.Open(t.Context(), dsn)
	require.NoError(t, err)
	end := time.Now()
	record := func(id, model string, age time.Duration, micros int64) domain.UsageRecord {
		return domain.UsageRecord{
			RequestID: id, Attempt: 1, KeyID: "key_1", Identity: "acme", API: domain.APIChat, Model: model, Channel: "a",
			Attempts: []domain.Attempt{{Channel: "a", Status: 200}}, Outcome: domain.OutcomeSuccess, Source: domain.SourceUpstream,
			Status: 200, Usage: domain.Usage{InputUncached: 3, Output: 4}, CostMicros: micros, PriceVersion: "v1",
			RawUsage: []byte(`{"total_tokens":7}`), AdmittedAt: end.Add(-age - time.Second), EndedAt: end.Add(-age),
		}
	}
	_, err = book.Append(t.Context(), []domain.UsageRecord{
		record("old", "m1", 48*time.Hour, 1_234_567), record("new", "m2", time.Minute, 5),
	})
	require.NoError(t, err)
	require.NoError(t, book.Close())
	return dsn
}

func TestLedgerForms(t *testing.T) {
	t.Parallel()
	dsn := sampleLedger(t)

	out, errs, status := keyway(t, "ledger", "--ledger", dsn, "-o", "json")
	require.Zero(t, status, errs)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2)
	var first map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &first))
	assert.Equal(t, "new", first["request_id"], "the newest comes first")
	assert.EqualValues(t, 3, first["input_tokens"])
	assert.Equal(t, map[string]any{"total_tokens": 7.0}, first["raw_usage"])

	out, _, status = keyway(t, "ledger", "--ledger", dsn, "-o", "csv", "--since", "24h")
	require.Zero(t, status)
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 2, "a header and the one record of a day")
	assert.Equal(t, "request_id", rows[0][0])
	assert.Equal(t, "new", rows[1][0])

	out, _, status = keyway(t, "ledger", "--ledger", dsn, "--model", "m1")
	require.Zero(t, status)
	assert.Contains(t, out, "1.234567", "money is shown without rounding")
	assert.NotContains(t, out, "new")
}

func TestLedgerColumnsAreThoseOfJSON(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(ledger.Row{})
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(raw, &fields))
	delete(fields, "attempts")
	delete(fields, "raw_usage")
	for _, name := range columnNames() {
		assert.Contains(t, fields, name)
		delete(fields, name)
	}
	assert.Empty(t, fields, "every plain field has its column")
}

func TestCurrency(t *testing.T) {
	t.Parallel()
	for micros, want := range map[int64]string{0: "0.000000", 1234: "0.001234", 12_000_001: "12.000001", -5: "-0.000005"} {
		assert.Equal(t, want, currency(micros))
	}
}

func TestKeysAsPeopleSeeThem(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	key := domain.VirtualKey{ID: "key_1", Hash: "feed", Identity: "acme", State: domain.KeyActive, CreatedAt: now}
	assert.Equal(t, "active", show(key, now).State)
	key.ExpiresAt = now.Add(-time.Second)
	assert.Equal(t, "expired", show(key, now).State)
	key.State = domain.KeyDisabled
	assert.Equal(t, "disabled", show(key, now).State)
	assert.Nil(t, show(key, now).RotatedAt)
	key = key.Rotated(domain.KeyRotation{Hash: "beef", At: now, Grace: time.Hour})
	assert.Equal(t, now, *show(key, now).RotatedAt)
	assert.Equal(t, now.Add(time.Hour), *show(key, now).PreviousUntil)
	assert.Nil(t, show(key, now.Add(time.Hour)).PreviousUntil, "the grace is over")

	for _, form := range []string{"table", "json"} {
		var out bytes.Buffer
		require.NoError(t, printKeys(&out, form, []domain.VirtualKey{key}))
		assert.Contains(t, out.String(), "key_1")
		for _, hash := range []string{"feed", "beef"} {
			assert.NotContains(t, out.String(), hash, "hashes are not for people")
		}
	}
}

func TestExpiryOfAKey(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	for when, want := range map[string]time.Time{
		"now": now, "never": {}, "720h": now.Add(720 * time.Hour), "1ms": now.Add(time.Millisecond),
		"2026-12-31T01:00:00+01:00": time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC),
	} {
		got, err := expiryOf(when, now)
		require.NoError(t, err, when)
		assert.True(t, want.Equal(got), when)
	}
	for _, bad := range []string{"", "0", "0s", "-1h", "2026-12-01T12:00:00Z", "Now", "30d"} {
		_, err := expiryOf(bad, now)
		require.Error(t, err, bad)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	ready := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(`{"ready":"perhaps"}`))
	}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		ready.Close()
	})
	out, _, status := keyway(t, "health", "--url", ready.URL+"/readyz")
	assert.Zero(t, status)
	assert.Contains(t, out, "perhaps")
	_, errs, status := keyway(t, "health", "--url", ready.URL+"/other")
	assert.Equal(t, 1, status)
	assert.Contains(t, errs, "not ready (503")

	dir := t.TempDir()
	r := readiness{Services: map[string]service{"authz": {ReadyURL: ready.URL + "/readyz"}, "xds": {ReadyURL: ready.URL + "/x"}}}
	require.NoError(t, r.write(filepath.Join(dir, "ready.json")))
	out, errs, status = keyway(t, "health", "--dir", dir)
	assert.Equal(t, 1, status, "one of them is not ready")
	assert.Contains(t, out, "authz: {")
	assert.Contains(t, out, "xds: not ready")
	assert.Empty(t, errs, "everything has been said")
	_, _, status = keyway(t, "health", "--dir", dir, "--service", "authz")
	assert.Zero(t, status)
	_, errs, _ = keyway(t, "health", "--dir", dir, "--service", "nope")
	assert.Contains(t, errs, "known: authz, xds")
}

func TestCheckPrintsAllProblems(t *testing.T) {
	t.Parallel()
	path, v := demoIn(t.TempDir())
	require.NoError(t, placeDemo(path, v))
	out, errs, status := keyway(t, "check", "--no-envoy", path)
	require.Zero(t, status, errs)
	assert.Contains(t, out, "is valid (Envoy was not asked)")

	text, err := os.ReadFile(path)
	require.NoError(t, err)
	bad := strings.NewReplacer("provider: fake", "provider: nope", "rpm: 100000", "rpm: -1").Replace(string(text))
	require.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
	out, errs, status = keyway(t, "check", "--no-envoy", path)
	assert.Equal(t, 1, status)
	assert.Empty(t, errs)
	for _, field := range []string{"channels[0].provider", "channels[1].provider", "policies[0].rpm"} {
		assert.Contains(t, out, path+": "+field+": ")
	}
}

func TestBootstrapForms(t *testing.T) {
	t.Parallel()
	yamlText, _, status := keyway(t, "bootstrap", "--authz", "unix:/run/a.sock")
	require.Zero(t, status)
	assert.Contains(t, yamlText, "/run/a.sock")
	jsonText, _, status := keyway(t, "bootstrap", "--authz", "unix:/run/a.sock", "-o", "json")
	require.Zero(t, status)
	assert.True(t, json.Valid([]byte(jsonText)))
}

func TestInvitationCanBePasted(t *testing.T) {
	t.Parallel()
	r := &region{layout: layout{Root: "/my dir/it's", Ready: "/x/ready.json", Logs: "/x/log"}, binary: "/opt/keyway"}
	text := r.invitation(readiness{BaseURL: "http://127.0.0.1:1", APIKey: "kw_x", Model: "demo"})
	assert.Contains(t, text, `/opt/keyway ledger --dir '/my dir/it'\''s'`)
	assert.Contains(t, text, "curl -N http://127.0.0.1:1/v1/chat/completions -H 'authorization: Bearer kw_x'")
	assert.Contains(t, text, "curl http://127.0.0.1:1/v1/messages -H 'x-api-key: kw_x'")
}
