package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func costs(micros int64) func(*domain.UsageRecord) error {
	return func(r *domain.UsageRecord) error { r.CostMicros = micros; return nil }
}

func TestCorrectionsAreFurtherEntries(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		settled := full("req_1")
		settled.CostMicros = 100
		_, err := l.Append(t.Context(), []domain.UsageRecord{settled, least("req_2")})
		require.NoError(t, err)

		later := noon.Add(48 * time.Hour)
		entries, err := l.Correct(t.Context(), Correction{RequestID: "req_1", Reason: "the provider's bill says so", At: later, Change: func(r *domain.UsageRecord) error {
			r.Usage.Output, r.CostMicros = 30, 70
			return nil
		}})
		require.NoError(t, err)
		back, now := settled, settled
		back.Usage = domain.Usage{
			InputUncached: -10, CacheRead: -20, CacheWrite: -30, CacheWrite1h: -5, Output: -40, Reasoning: -7,
			CacheWrite30m: -3, CacheWrite12h: -2, InputAudio: -1, InputImage: -4, OutputAudio: -6, OutputImage: -8,
			Tools: [domain.ToolKinds]int64{domain.ToolWebSearch: -2, domain.ToolMCP: -1}, Tier: "flex",
		}
		back.CostMicros, back.PromptTokensEstimate = -100, -58
		now.Usage.Output, now.CostMicros = 30, 70
		for i, e := range []*domain.UsageRecord{&back, &now} {
			e.EntryNo, e.Reason, e.EndedAt = i+1, "the provider's bill says so", later
		}
		assert.Equal(t, []domain.UsageRecord{back, now}, entries)
		assert.Equal(t, []domain.UsageRecord{settled, back, now}, all(t, l, Query{RequestID: "req_1"}), "the settlement stays as it was")

		_, err = l.Correct(t.Context(), Correction{RequestID: "req_1", Reason: "and again", At: later, Change: costs(71)})
		require.NoError(t, err)
		lines, err := l.Statement(t.Context(), Query{RequestID: "req_1"}, []Dimension{ByDay})
		require.NoError(t, err)
		assert.Equal(t, []Line{{Labels: []string{"2026-11-29"}, Requests: 1, InputTokens: 60, OutputTokens: 30, CostMicros: 71}}, lines,
			"every sum is that of the last correction, on the day of the settlement")
	})
}

func TestCorrectionsThatCannotBe(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		_, err := l.Append(t.Context(), []domain.UsageRecord{full("req_1")})
		require.NoError(t, err)
		_, err = l.Correct(t.Context(), Correction{RequestID: "req_9", Reason: "x", Change: costs(1), At: noon})
		require.ErrorIs(t, err, ErrUnknownRequest)
		_, err = l.Correct(t.Context(), Correction{RequestID: "req_1", Reason: " ", Change: costs(1), At: noon})
		require.ErrorContains(t, err, "reason is missing")
		no := errors.New("no")
		_, err = l.Correct(t.Context(), Correction{RequestID: "req_1", Reason: "x", At: noon, Change: func(*domain.UsageRecord) error { return no }})
		require.ErrorIs(t, err, no)
		assert.Len(t, all(t, l, Query{}), 1)
	})
}

// Whoever wins, the entries of a request always add up to its last correction.
func TestCorrectionsAtTheSameMoment(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		_, err := l.Append(t.Context(), []domain.UsageRecord{full("req_1")})
		require.NoError(t, err)
		var (
			wg   sync.WaitGroup
			done atomic.Int64
		)
		for i := range 8 {
			wg.Go(func() {
				_, err := l.Correct(t.Context(), Correction{RequestID: "req_1", Reason: fmt.Sprint(i), At: noon, Change: costs(int64(i))})
				if err == nil {
					done.Add(1)
				}
			})
		}
		wg.Wait()
		entries := all(t, l, Query{RequestID: "req_1"})
		require.Len(t, entries, int(1+2*done.Load()))
		require.Positive(t, done.Load())
		var (
			sum  int64
			last domain.UsageRecord
		)
		for _, e := range entries {
			sum += e.CostMicros
			if e.EntryNo >= last.EntryNo {
				last = e
			}
		}
		assert.Equal(t, last.CostMicros, sum)
	})
}

func TestStatement(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		var recs []domain.UsageRecord
		for i := range 40 {
			r := full(fmt.Sprintf("req_%d", i))
			r.AdmittedAt = time.Date(2026, 11, 28+i/20, 22, 30, 0, 0, time.UTC).Add(time.Duration(i%2) * time.Hour)
			r.KeyID, r.Model, r.CostMicros = []string{"key_a", "key_b"}[i%2], []string{"m", "n"}[i/10%2], 3
			if i%4 == 0 {
				r.ModelServed = ""
			}
			recs = append(recs, r)
		}
		_, err := l.Append(t.Context(), recs)
		require.NoError(t, err)
		berlin, err := time.LoadLocation("Europe/Berlin")
		require.NoError(t, err)
		line := func(n int64, labels ...string) Line {
			return Line{Labels: labels, Requests: n, InputTokens: 60 * n, OutputTokens: 40 * n, CostMicros: 3 * n}
		}
		for _, tt := range []struct {
			name string
			q    Query
			by   []Dimension
			want []Line
		}{
			{"everything", Query{}, nil, []Line{line(40, []string{}...)}},
			{"nothing", Query{KeyID: "key_c"}, nil, nil},
			{"days in UTC", Query{}, []Dimension{ByDay}, []Line{line(20, "2026-11-28"), line(20, "2026-11-29")}},
			{"days in Berlin", Query{Zone: berlin}, []Dimension{ByDay}, []Line{line(10, "2026-11-28"), line(20, "2026-11-29"), line(10, "2026-11-30")}},
			{"key, model, month", Query{}, []Dimension{ByKey, ByModel, ByMonth}, []Line{
				line(10, "key_a", "m", "2026-11"), line(10, "key_a", "n", "2026-11"), line(10, "key_b", "m", "2026-11"), line(10, "key_b", "n", "2026-11"),
			}},
			{"identity and channel of one key", Query{KeyID: "key_a"}, []Dimension{ByIdentity, ByChannel}, []Line{line(20, "acme", "b")}},
			{"model served, or asked for", Query{KeyID: "key_a"}, []Dimension{ByModelServed}, []Line{line(10, "gpt-x-2026"), line(6, "m"), line(4, "n")}},
			{"since", Query{Since: time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)}, []Dimension{ByKey}, []Line{line(10, "key_b")}},
		} {
			got, err := l.Statement(t.Context(), tt.q, tt.by)
			require.NoError(t, err, tt.name)
			assert.Equal(t, tt.want, got, tt.name)
		}
		_, err = l.Statement(t.Context(), Query{}, []Dimension{"colour"})
		require.ErrorContains(t, err, "no such dimension")
	})
}

// Case 100: the page of usage and the page of budgets show one money. Ten
// thousand requests, some of them corrected, summed in every way there is.
func TestCase100EveryViewSumsTheSameLedger(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, dsn string) {
		l := open(t, dsn)
		const requests, budget = 10_000, "budget:month:identity:acme:2026-11"
		random := rand.New(rand.NewPCG(1, 100))
		recs := make([]domain.UsageRecord, requests)
		var want int64
		for i := range recs {
			r := full(fmt.Sprintf("req_%05d", i))
			if i%3 == 0 {
				r = least(r.RequestID)
			}
			r.AdmittedAt = noon.Add(-time.Duration(random.Int64N(int64(28 * 24 * time.Hour))))
			r.KeyID, r.Model = fmt.Sprintf("key_%d", random.IntN(7)), fmt.Sprintf("m%d", random.IntN(5))
			r.CostMicros, r.Budgets = random.Int64N(1_000_000), []string{budget, "budget:day:key:" + r.KeyID + ":" + r.AdmittedAt.Format(time.DateOnly)}
			recs[i] = r
			want += r.CostMicros
		}
		_, err := l.Append(t.Context(), recs)
		require.NoError(t, err)
		for i := 0; i < requests; i += 1000 {
			_, err := l.Correct(t.Context(), Correction{RequestID: recs[i].RequestID, Reason: "bill", At: noon, Change: costs(recs[i].CostMicros / 2)})
			require.NoError(t, err)
			want += recs[i].CostMicros/2 - recs[i].CostMicros
		}

		var listed int64
		require.NoError(t, l.Records(t.Context(), Query{}, func(r domain.UsageRecord) error { listed += r.CostMicros; return nil }))
		assert.Equal(t, want, listed, "the list")
		totals, err := l.Totals(t.Context(), Query{})
		require.NoError(t, err)
		byKeyDay := map[string]int64{}
		var summed int64
		for _, total := range totals {
			summed += total.CostMicros
			byKeyDay["budget:day:key:"+total.KeyID+":"+total.Day] += total.CostMicros
		}
		assert.Equal(t, want, summed, "the totals")
		for _, by := range [][]Dimension{nil, {ByKey, ByModel, ByDay}, {ByMonth}, {ByChannel}, {ByModelServed, ByIdentity}} {
			lines, err := l.Statement(t.Context(), Query{}, by)
			require.NoError(t, err)
			var sum, count int64
			for _, line := range lines {
				sum += line.CostMicros
				count += line.Requests
			}
			assert.Equal(t, want, sum, "the statement by %v", by)
			assert.EqualValues(t, requests, count, "a corrected request counts once, by %v", by)
		}
		sums, err := l.BudgetSums(t.Context(), time.Time{}, []string{"req_00000", "req_nope"})
		require.NoError(t, err)
		assert.Equal(t, map[string]bool{"req_00000": true}, sums.Settled)
		assert.Equal(t, want, sums.Spent[budget], "the budget of the month")
		none, err := l.BudgetSums(t.Context(), noon.Add(time.Minute), nil)
		require.NoError(t, err)
		assert.Equal(t, domain.BudgetSums{Since: noon.Add(time.Minute), Spent: map[string]int64{}, Owner: map[string]string{}, Settled: map[string]bool{}}, none,
			"nothing was admitted since")
		delete(sums.Spent, budget)
		assert.Equal(t, byKeyDay, sums.Spent, "the budgets of the days are the totals of the days")
	})
}
