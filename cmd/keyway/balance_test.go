package main

import (
	"encoding/csv"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/ledger"
)

func TestBalanceCommands(t *testing.T) {
	t.Parallel()
	dsn := "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
	balance := func(args ...string) string {
		t.Helper()
		out, errs, status := keyway(t, append([]string{"balance"}, append(args, "--ledger", dsn)...)...)
		require.Zero(t, status, errs)
		return out
	}
	out := balance("topup", "acme", "25.00", "--reference", "invoice-1", "--note", "thanks")
	assert.Equal(t, "manual invoice-1 added entry 1: 25.000000 for acme\nthe balance of acme is 25.000000\n", out)
	out = balance("topup", "acme", "25.00", "--reference", "invoice-1")
	assert.Equal(t, "manual invoice-1 was there already as entry 1: 25.000000 for acme\nthe balance of acme is 25.000000\n", out)

	var entry map[string]any
	require.NoError(t, json.Unmarshal([]byte(balance("deduct", "acme", "0.5", "--reference", "case-9", "--source", "support", "-o", "json")), &entry))
	assert.EqualValues(t, -500_000, entry["amount_micros"])
	assert.Equal(t, "support", entry["source"])
	balance("topup", "other", "1", "--reference", "invoice-2")

	book, err := ledger.Open(t.Context(), dsn)
	require.NoError(t, err)
	_, err = book.Append(t.Context(), []domain.UsageRecord{{
		RequestID: "req_1", Identity: "acme", Outcome: domain.OutcomeSuccess, Source: domain.SourceUpstream, CostMicros: 4_500_000,
		Budgets: []string{domain.BalanceCounter("acme")}, AdmittedAt: time.Now(), EndedAt: time.Now(),
	}})
	require.NoError(t, err)
	require.NoError(t, book.Close())

	assert.Equal(t, `IDENTITY  OPENING   PAID IN    SPENT     BALANCE
acme      0.000000  24.500000  4.500000  20.000000
other     0.000000  1.000000   0.000000  1.000000
`, balance("show"))
	var line ledger.BalanceLine
	require.NoError(t, json.Unmarshal([]byte(balance("show", "acme", "-o", "json")), &line))
	assert.Equal(t, ledger.BalanceLine{Identity: "acme", PaidInMicros: 24_500_000, SpentMicros: 4_500_000, ClosingMicros: 20_000_000}, line)
	rows, err := csv.NewReader(strings.NewReader(balance("show", "-o", "csv", "--to", "2020-01"))).ReadAll()
	require.NoError(t, err)
	assert.Len(t, rows, 1, "nothing was there at that time")

	rows, err = csv.NewReader(strings.NewReader(balance("list", "-o", "csv", "--identity", "acme"))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 3)
	assert.Equal(t, []string{"acme", "-500000", "support", "case-9", ""}, rows[1][2:], "the newest comes first")
	assert.Equal(t, []string{"acme", "25000000", "manual", "invoice-1", "thanks"}, rows[2][2:])
	assert.Contains(t, balance("list"), "25.000000")
	assert.Equal(t, 3, strings.Count(balance("list", "-o", "json"), "\n"))

	for _, bad := range []struct{ want, args string }{
		{"the reference belongs to another entry", "topup acme 26 --reference invoice-1"},
		{"no reference", "topup acme 26"},
		{"the amount is 0", "topup acme 0 --reference x"},
		{"is not a decimal", "topup acme much --reference x"},
		{"beyond", "topup acme 1000000001 --reference x"},
		{"accepts 2 arg", "topup acme --reference x"},
		{`output form "xml" is not known`, "show -o xml"},
		{`output form "xml" is not known`, "list -o xml"},
		{`output form "csv" is not known`, "deduct acme 1 --reference x -o csv"},
		{"is after", "show --from 2026-02 --to 2026-01"},
	} {
		_, errs, status := keyway(t, append([]string{"balance"}, append(strings.Fields(bad.args), "--ledger", dsn)...)...)
		assert.Equal(t, 1, status, bad.args)
		assert.Contains(t, errs, bad.want, bad.args)
	}
}
