package e2e

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// The region's ceiling holds for all identities together. It refuses in the
// client's dialect, keeps nothing of what it refused, and has room again when
// somebody ends.
func drillCeiling(t *testing.T, s *stack) {
	const places = 4
	one, two := s.caller(t, newNonce(), "--policy", "wide"), s.caller(t, newNonce(), "--policy", "wide")
	holding := ask{model: "m", script: holdsOpen, stream: true}
	require.NoError(t, s.writeConfig(configValues{Ceiling: "{in_flight: 4}"}))
	asked := 0
	var running []*live
	begin := func(c *caller) {
		asked++
		l, err := c.over(eitherClient(asked)).open(t.Context(), holding)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, l.StatusCode)
		running = append(running, l)
	}
	quit := func() {
		running[len(running)-1].quit()
		running = running[:len(running)-1]
	}
	eventually(t, func() bool {
		begin(one)
		if s.ofRegion(t) == 1 {
			return true
		}
		quit()
		return false
	}, patience, 50*time.Millisecond, "the ceiling does not come")
	for len(running) < places {
		begin(two)
	}
	before := []map[string]int64{one.charges(t), two.charges(t)}
	for _, c := range []*caller{one, two} {
		for api, want := range map[domain.API]refusal{
			domain.APIChat:     {dialect: domain.DialectOpenAI, status: 429, kind: "rate_limit_error", code: "rate_limit_exceeded"},
			domain.APIMessages: {dialect: domain.DialectAnthropic, status: 429, kind: "rate_limit_error"},
		} {
			got := c.ask(t, ask{api: api, model: "m"})
			requireRefusal(t, want, got)
			assert.Contains(t, string(got.body), "for everyone together")
			assert.Equal(t, "1", got.Header.Get("Retry-After"))
			assert.Equal(t, "1000", got.Header.Get("Retry-After-Ms"))
		}
	}
	inParallel(20, 60, func(i int) {
		got, err := []*caller{one, two}[i%2].open(t.Context(), holding)
		if assert.NoError(t, err) {
			assert.Equal(t, http.StatusTooManyRequests, got.StatusCode)
			got.quit()
		}
	})
	assert.Equal(t, before, []map[string]int64{one.charges(t), two.charges(t)}, "the identities' own limits")
	assert.EqualValues(t, places, s.ofRegion(t))

	quit()
	eventually(t, func() bool { return s.ofRegion(t) == places-1 }, patience, 20*time.Millisecond)
	begin(one)
	for len(running) > 0 {
		quit()
	}
	eventually(t, func() bool { return s.ofRegion(t) == 0 }, patience, 20*time.Millisecond, "places of ended streams")
	s.requireNothingOpen(t)
	assert.Equal(t, asked, len(s.recordsNow(t, one.keyID))+len(s.recordsNow(t, two.keyID)))
	drillCeilingOfRates(t, s)
}

// drillCeilingOfRates: of many requests at once by many keys, those of a minute go out.
func drillCeilingOfRates(t *testing.T, s *stack) {
	const fit = 3
	require.NoError(t, s.writeConfig(configValues{Ceiling: "{rpm: 3}"}))
	probe := s.caller(t, newNonce(), "--policy", "wide")
	eventually(t, func() bool {
		require.Equal(t, http.StatusOK, probe.ask(t, ask{model: "m"}).StatusCode)
		return s.ofRegion(t) > 0
	}, patience, 50*time.Millisecond, "the ceiling does not come")
	began, callers := time.Now(), make([]*caller, 5)
	for i := range callers {
		callers[i] = s.caller(t, newNonce(), "--policy", "wide")
	}
	var served atomic.Int64
	inParallel(20, 40, func(i int) {
		l, err := callers[i%len(callers)].open(t.Context(), ask{model: "m"})
		if !assert.NoError(t, err) {
			return
		}
		body, err := l.rest()
		assert.NoError(t, err)
		if l.StatusCode == http.StatusOK {
			served.Add(1)
			return
		}
		assert.Equal(t, http.StatusTooManyRequests, l.StatusCode, "%s", body)
		assert.NotEmpty(t, l.Header.Get("Retry-After"))
	})
	drained := int64(time.Since(began)/(20*time.Second)) + 1
	assert.GreaterOrEqual(t, served.Load(), int64(fit-1), "the probe took one")
	assert.LessOrEqual(t, served.Load(), fit-1+drained)
	s.requireNothingOpen(t)
	rows := 0
	for _, c := range callers {
		rows += len(c.requireOneRowEach(t, len(s.recordsNow(t, c.keyID))))
		c.requireIdle(t)
		c.requireBalanced(t, s.recordsNow(t, c.keyID))
	}
	assert.EqualValues(t, served.Load(), rows)

	require.NoError(t, s.writeConfig(configValues{}))
	eventually(t, func() bool { return probe.ask(t, ask{model: "m"}).StatusCode == http.StatusOK }, patience, 50*time.Millisecond)
}

// ofRegion is what the region's own buckets count together.
func (s *stack) ofRegion(t *testing.T) (sum int64) {
	t.Helper()
	all, err := s.store.Counters(t.Context(), "nobody")
	require.NoError(t, err)
	for name, value := range all {
		if strings.Contains(name, ":region:") {
			sum += value
		}
	}
	return sum
}
