package e2e

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// manyStreams is above 1024, where Envoy's breakers stop by default.
const manyStreams = 1100

// All of 1100 streams that run at once are served to their ends, over HTTP/1.1
// with a connection each and over HTTP/2 with few, to providers of both kinds.
func TestManyStreamsAtOnce(t *testing.T) {
	s := ownStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	// The first event comes at once, and the rest when every stream has begun,
	// whatever the machine takes for that.
	const script = `{"count":6,"pauses_ms":{"1":6000},"delay_between_ms":400}`
	var (
		wg   sync.WaitGroup
		good atomic.Int64
		peak int
	)
	began := time.Now()
	for i := range manyStreams {
		wg.Go(func() {
			a := ask{model: []string{"only-a", "only-tlsa"}[i/2%2], script: script, stream: true}
			l, err := c.over(eitherClient(i)).open(t.Context(), a)
			if !assert.NoError(t, err) {
				return
			}
			body, err := l.rest()
			if assert.NoError(t, err) && assert.Equal(t, http.StatusOK, l.StatusCode, "%s", body) &&
				assert.Equal(t, 1, strings.Count(body, "data: [DONE]"), "%s", body) {
				good.Add(1)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for open := true; open; {
		select {
		case <-done:
			open = false
		case <-time.After(20 * time.Millisecond):
			peak = max(peak, s.provider.Open())
		}
	}
	t.Logf("%d of %d streams served in %s; %d at once", good.Load(), manyStreams, time.Since(began).Round(10*time.Millisecond), peak)
	require.EqualValues(t, manyStreams, good.Load())
	assert.EqualValues(t, manyStreams, peak, "the streams did not all run at the same time")
	rows := c.requireOneRowEach(t, manyStreams)
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: manyStreams}, counted(rows))
	for _, r := range rows {
		assert.Equal(t, domain.SourceUpstream, r.Source)
	}
	c.requireIdle(t, "a", "tlsa")
	c.requireBalanced(t, rows)
	s.requireNothingOpen(t)
}
