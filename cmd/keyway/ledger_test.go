package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/ledger"
	"keyway/store"
	"keyway/store/storetest"
)

func TestProgressIsForLongOutput(t *testing.T) {
	t.Parallel()
	var (
		out bytes.Buffer
		now = time.Unix(0, 0)
	)
	p := newProgress(&out, func() time.Time { return now })
	for range 1000 {
		p.row()
	}
	p.end()
	assert.Empty(t, out.String(), "what is done at once needs no word")
	for range 4 {
		now = now.Add(time.Second)
		p.row()
	}
	p.end()
	assert.Equal(t, "keyway: 1002 records so far\nkeyway: 1004 records so far\nkeyway: 1004 records, all of them\n", out.String())
}

func TestPeriod(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	at := func(text string) time.Time {
		if text == "" {
			return time.Time{}
		}
		moment, err := time.Parse(time.RFC3339, text)
		require.NoError(t, err)
		return moment
	}
	for _, row := range []struct{ from, to, since, until string }{
		{"", "", "", ""},
		{"2026-11-01", "2026-11-30", "2026-11-01T00:00:00+01:00", "2026-12-01T00:00:00+01:00"},
		{"2026-10", "2026-10", "2026-10-01T00:00:00+02:00", "2026-11-01T00:00:00+01:00"}, // the clock goes back in between
		{"2026-03-29", "2026-03-29", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
	} {
		since, until, err := period(row.from, row.to, berlin)
		require.NoError(t, err)
		assert.True(t, at(row.since).Equal(since), "%s: %s", row.from, since)
		assert.True(t, at(row.until).Equal(until), "%s: %s", row.to, until)
	}
	_, _, err = period("2026-11-02", "2026-11-01", berlin)
	require.ErrorContains(t, err, "is after")
	_, _, err = period("yesterday", "", berlin)
	require.ErrorContains(t, err, "neither a day")
}

func TestStatementForms(t *testing.T) {
	t.Parallel()
	dsn := sampleLedger(t)
	out, errs, status := keyway(t, "ledger", "statement", "--ledger", dsn, "--by", "identity,model", "-o", "csv")
	require.Zero(t, status, errs)
	assert.Equal(t, "identity,model,requests,input_tokens,output_tokens,cost_micros\nacme,m1,1,3,4,1234567\nacme,m2,1,3,4,5\n", out)
	out, errs, status = keyway(t, "ledger", "statement", "--ledger", dsn, "--by", "key", "-o", "json")
	require.Zero(t, status, errs)
	assert.JSONEq(t, `{"key":"key_1","requests":2,"input_tokens":6,"output_tokens":8,"cost_micros":1234572}`, out)
	out, errs, status = keyway(t, "ledger", "statement", "--ledger", dsn, "--by", "key,day", "--to", "2001-01")
	require.Zero(t, status, errs)
	assert.Equal(t, "KEY  DAY  REQUESTS  INPUT  OUTPUT  COST\n", out)
	for args, want := range map[string]string{
		"--by colour": "is not one of day, month", "--zone Mars": "IANA time zone", "--from x": "read --from", "-o xml": "not known",
	} {
		_, errs, status = keyway(t, append([]string{"ledger", "statement", "--ledger", dsn}, strings.Fields(args)...)...)
		assert.Equal(t, 1, status, args)
		assert.Contains(t, errs, want)
	}
}

func TestCorrectRefusesHalfOrders(t *testing.T) {
	t.Parallel()
	dsn := sampleLedger(t)
	for args, want := range map[string]string{
		"new":                   "--reason",
		"new --reason x":        "nothing to correct",
		"new --reason x --void": "--store, or --ledger-only",
		"new --repeat --void":   "goes with no other",
		"new --reason x --cost 1e3 --ledger-only":       "is not a decimal",
		"nobody --reason x --void --ledger-only":        "no such request",
		"new --reason x --void --cost=-1 --ledger-only": "must not be negative",
		"nobody --repeat --store redis://127.0.0.1:1/0": "no such request",
	} {
		_, errs, status := keyway(t, append([]string{"ledger", "correct", "--ledger", dsn}, strings.Fields(args)...)...)
		assert.Equal(t, 1, status, args)
		assert.Contains(t, errs, want, args)
	}
}

func TestCorrectChangesOnlyWhatIsGiven(t *testing.T) {
	t.Parallel()
	rec := domain.UsageRecord{CostMicros: 9, Usage: domain.Usage{
		InputUncached: 10, InputAudio: 6, CacheWrite: 5, CacheWrite1h: 5, Output: 8, Reasoning: 3, OutputAudio: 4, Tier: "flex",
	}}
	given := correctFlags{cost: "0.000004", input: 4, cacheRead: 2, cacheWrite: -1, output: 5}
	require.NoError(t, given.change(&rec))
	assert.Equal(t, domain.UsageRecord{CostMicros: 4, Usage: domain.Usage{
		InputUncached: 4, InputAudio: 4, CacheRead: 2, CacheWrite: 5, CacheWrite1h: 5, Output: 5, Reasoning: 3, OutputAudio: 2, Tier: "flex",
	}}, rec, "parts stay within their wholes")
	void := correctFlags{void: true, input: -1, cacheRead: -1, cacheWrite: -1, output: -1}
	require.NoError(t, void.change(&rec))
	assert.Equal(t, domain.UsageRecord{Usage: domain.Usage{Tier: "flex"}}, rec)
}

// books is a store and a ledger in which one request was settled.
type books struct {
	url, dsn string
	store    *store.Store
	ledger   *ledger.Ledger
	counter  string // the budget's key in the store
}

func settledBooks(t *testing.T) books {
	t.Helper()
	server := storetest.Start(t)
	b := books{url: server.URL, dsn: "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")}
	var err error
	b.store, err = openStore(b.url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.store.Close()) })
	b.ledger, err = ledger.Open(t.Context(), b.dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.ledger.Close()) })

	lost, err := b.store.Advance(t.Context(), time.Time{})
	require.NoError(t, err)
	require.NoError(t, b.store.Rebuild(t.Context(), lost, func(ctx context.Context, requests []string) (domain.BudgetSums, error) {
		return b.ledger.BudgetSums(ctx, domain.RebuildBegin(time.Now()), requests)
	}))

	day := time.Now().UTC().Format(time.DateOnly)
	decide := func(id string) domain.Decision {
		return domain.Decision{
			RequestID: id, KeyID: "key_1", Identity: "acme", API: domain.APIChat, Model: "m", AdmittedAt: time.Now(),
			Candidates: []domain.Candidate{{Channel: "a"}}, Lease: domain.DefaultLease,
			Holds: []domain.Hold{{Kind: domain.LimitBudgetDay, Scope: domain.ScopeKey, ID: "key_1", Window: day, Limit: 1_000_000, Amount: 500}},
		}
	}
	for _, id := range []string{"in the ledger", "in the outbox", "open"} {
		d := decide(id)
		admission, err := b.store.Admit(t.Context(), d)
		require.NoError(t, err)
		require.Nil(t, admission.Refusal)
		if id == "open" {
			continue
		}
		_, err = b.store.Settle(t.Context(), domain.Settlement{Decision: d, Record: domain.UsageRecord{
			RequestID: id, KeyID: "key_1", Identity: "acme", API: domain.APIChat, Model: "m", ModelServed: "m-2026",
			Outcome: domain.OutcomeSuccess, Source: domain.SourceUpstream, Usage: domain.Usage{InputUncached: 100, Output: 20},
			CostMicros: 300, AdmittedAt: d.AdmittedAt, EndedAt: d.AdmittedAt,
		}})
		require.NoError(t, err)
	}
	entries, err := b.store.ReadOutbox(t.Context(), domain.OutboxRead{Consumer: "w", Max: 10})
	require.NoError(t, err)
	for _, e := range entries {
		if e.Record.RequestID == "in the ledger" {
			_, err := b.ledger.Append(t.Context(), []domain.UsageRecord{e.Record})
			require.NoError(t, err)
			require.NoError(t, b.store.AckOutbox(t.Context(), []domain.OutboxEntry{e}))
			b.counter = e.Record.Budgets[0]
		}
	}
	return b
}

func (b books) run(t *testing.T, args ...string) (out, errs string, status int) {
	t.Helper()
	return keyway(t, append(args, "--ledger", b.dsn, "--store", b.url)...)
}

// value is what the store's counter says.
func (b books) value(t *testing.T) int64 {
	t.Helper()
	book, err := b.store.Budgets(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	require.Len(t, book.Counters, 1)
	return book.Counters[0].Micros
}

func TestReconcileNamesTheRowThatDiffers(t *testing.T) {
	t.Parallel()
	b := settledBooks(t)
	out, errs, status := b.run(t, "reconcile")
	require.Zero(t, status, out+errs)
	assert.Empty(t, out)
	assert.Contains(t, errs, "compared 1 budgets: 0 differences")

	// A correction keeps them together.
	out, errs, status = b.run(t, "ledger", "correct", "in the ledger", "--cost", "0.0001", "--reason", "bill")
	require.Zero(t, status, errs)
	assert.Contains(t, out, "from 0.000300 to 0.000100 by entries 1 and 2\n1 budget counters followed")
	assert.EqualValues(t, 100+300+500, b.value(t))
	out, errs, status = b.run(t, "ledger", "correct", "in the ledger", "--repeat")
	require.Zero(t, status, errs)
	assert.Contains(t, out, "0 budget counters followed", "a correction counts once")
	out, errs, status = b.run(t, "reconcile")
	require.Zero(t, status, out+errs)

	// Money that the ledger has and the counter has not.
	_, errs, status = keyway(t, "ledger", "correct", "in the ledger", "--cost", "0.00017", "--reason", "bill",
		"--ledger", b.dsn, "--store", "redis://127.0.0.1:1/0")
	assert.Equal(t, 1, status)
	assert.Contains(t, errs, "repeat with --repeat")
	out, errs, status = b.run(t, "reconcile")
	assert.Equal(t, 1, status)
	assert.Contains(t, out, b.counter)
	assert.Contains(t, out, "0.000400  0.000470  -0.000070")
	assert.Contains(t, errs, "1 differences")
	out, _, status = b.run(t, "reconcile", "-o", "json")
	assert.Equal(t, 1, status)
	assert.JSONEq(t, fmt.Sprintf(`{"books":"counter, ledger","row":%q,"what":"cost_micros","first":400,"second":470}`, b.counter), out)
	_, _, status = b.run(t, "ledger", "correct", "in the ledger", "--repeat")
	require.Zero(t, status)
	_, errs, status = b.run(t, "reconcile")
	require.Zero(t, status, errs)
}

// What was paid in has to be the same in both books, too.
func TestReconcileNamesABalanceThatDiffers(t *testing.T) {
	t.Parallel()
	b := settledBooks(t)
	_, errs, status := keyway(t, "balance", "topup", "acme", "2.5", "--reference", "1", "--ledger", b.dsn)
	require.Zero(t, status, errs)
	out, errs, status := b.run(t, "reconcile")
	assert.Equal(t, 1, status)
	assert.Regexp(t, `credit:acme +cost_micros +0.000000 +2.500000 +-2.500000`, out)
	assert.Contains(t, errs, "compared 2 budgets: 1 differences")

	credits, err := b.ledger.Credits(t.Context(), 0)
	require.NoError(t, err)
	require.NoError(t, b.store.SetCredits(t.Context(), credits, credits[0].Entry))
	out, errs, status = b.run(t, "reconcile")
	require.Zero(t, status, out+errs)

	d := domain.Decision{
		RequestID: "prepaid", Identity: "acme", Holds: []domain.Hold{domain.BalanceHold("acme", 100)},
		Candidates: []domain.Candidate{{Channel: "a"}}, Lease: domain.DefaultLease,
	}
	admission, err := b.store.Admit(t.Context(), d)
	require.NoError(t, err)
	require.Nil(t, admission.Refusal)
	_, errs, status = b.run(t, "reconcile")
	require.Zero(t, status, "what is held is no difference: %s", errs)
	require.NoError(t, b.store.Refund(t.Context(), d))
}

func TestReconcileABill(t *testing.T) {
	t.Parallel()
	b := settledBooks(t)
	day := time.Now().UTC().Format(time.DateOnly)
	file := filepath.Join(t.TempDir(), "bill.csv")
	for _, row := range []struct {
		name, bill string
		args       []string
		want       []string
	}{
		{"the same", "date,model,input_tokens,output_tokens,cost\nDAY,m-2026,60,20,0.0002\nDAY,m-2026,40,0,0.0001\n", nil, nil},
		{"other columns, order and case", "\ufeffModel,Region,Date,Cost\nm-2026,eu,DAY,0.0003\n", nil, nil},
		{"by the name asked for", "date,model,input_tokens\nDAY,m,100\n", []string{"--bill-model", "asked"}, nil},
		{"tokens and money", "date,model,input_tokens,output_tokens,cost\nDAY,m-2026,101,20,0.00031\n", nil, []string{
			"bill, ledger  DAY m-2026  cost_micros   0.000310  0.000300  0.000010", "bill, ledger  DAY m-2026  input_tokens  101       100       1",
		}},
		{"within the tolerance", "date,model,cost\nDAY,m-2026,0.00031\n", []string{"--tolerance", "0.00001"}, nil},
		{"beyond the tolerance, below", "date,model,cost\nDAY,m-2026,0.00028\n", []string{"--tolerance", "0.00001"}, []string{
			"bill, ledger  DAY m-2026  cost_micros  0.000280  0.000300  -0.000020",
		}},
		{"rows of one side", "date,model,output_tokens\nDAY,other,7\n", nil, []string{
			"DAY m-2026  output_tokens  0      20      -20", "DAY other   output_tokens  7      0       7",
		}},
		{"another channel", "date,model,output_tokens\nDAY,m-2026,0\n", []string{"--channel", "b"}, nil},
	} {
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(row.bill, "DAY", day)), 0o600))
		out, errs, status := keyway(t, append([]string{"reconcile", "--ledger", b.dsn, "--bill", file}, row.args...)...)
		assert.Equal(t, min(len(row.want), 1), status, "%s: %s%s", row.name, out, errs)
		for _, line := range row.want {
			assert.Contains(t, out, strings.ReplaceAll(line, "DAY", day), row.name)
		}
	}
	for bill, want := range map[string]string{
		"":                                   "it is empty",
		"model,cost\n":                       `no column "date"`,
		"date,model\n":                       "names none of",
		"date,model,cost\n":                  "it has no rows",
		"date,model,cost\n29.11.26,m,1\n":    "line 2: date",
		"date,model,cost\n2026-11-29,m,-1\n": `line 2: cost "-1"`,
	} {
		require.NoError(t, os.WriteFile(file, []byte(bill), 0o600))
		_, errs, status := keyway(t, "reconcile", "--ledger", b.dsn, "--bill", file)
		assert.Equal(t, 1, status)
		assert.Contains(t, errs, want)
	}
	_, errs, _ := keyway(t, "reconcile", "--ledger", b.dsn)
	assert.Contains(t, errs, "--store, --bill or both")
}
