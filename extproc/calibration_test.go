package extproc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// fakeCalibrator keeps what it is told.
type fakeCalibrator struct {
	mu   sync.Mutex
	err  error
	told []domain.CalibrationSample
}

func (f *fakeCalibrator) Calibrate(_ context.Context, samples []domain.CalibrationSample) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, samples...)
	return f.err
}

func TestCalibrationSumsUp(t *testing.T) {
	t.Parallel()
	store := &fakeCalibrator{}
	c := newCalibration(store)
	c.flush(t.Context())
	require.Empty(t, store.told, "nothing to tell is no call")

	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			c.learn(domain.Decision{Model: "m", Class: domain.ContentCode, PromptEstimate: 100, PromptTokens: 999}, 150)
		})
	}
	all.Wait()
	for _, d := range []domain.Decision{
		{Model: "m", PromptEstimate: 100}, // not all of it was seen
		{Model: "m", Class: domain.ContentCode, PromptEstimate: domain.CalibrationFloor - 1}, // mostly frame
	} {
		c.learn(d, 150)
	}
	c.learn(domain.Decision{Model: "m", Class: domain.ContentCode, PromptEstimate: 100}, 0) // the provider counted nothing
	c.flush(t.Context())
	key := domain.CalibrationKey{Model: "m", Class: domain.ContentCode}
	require.Equal(t, []domain.CalibrationSample{{CalibrationKey: key, Requests: 10, Estimated: 1000, Actual: 1500}}, store.told)

	store.told, store.err = nil, errors.New("away")
	c.learn(domain.Decision{Model: "m", Class: domain.ContentText, PromptEstimate: 64}, 64)
	c.flush(t.Context())
	c.flush(t.Context())
	require.Len(t, store.told, 1, "what was not taken is not kept")
}

// Only an answer with the provider's own count teaches.
func TestWatchLearnsFromTheProvidersCount(t *testing.T) {
	t.Parallel()
	const body = `{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]%s}`
	for usage, want := range map[string]int{
		`,"usage":{"prompt_tokens":220,"completion_tokens":1,"total_tokens":221}`: 1,
		``: 0,
	} {
		s, _ := newServer(t)
		d := decisionOf(domain.APIChat)
		d.Stream, d.Class, d.PromptEstimate, d.PromptTokens = false, domain.ContentText, 200, 240
		a := sseAnswer()
		a.headers["content-type"] = []string{"application/json"}
		w, plan := s.begin(d, a)
		require.True(t, plan.body)
		w.chunk([]byte(fmt.Sprintf(body, usage)))
		w.finish()
		w.end()
		samples := s.calibration.take()
		require.Len(t, samples, want)
		if want > 0 {
			require.EqualValues(t, 200, samples[0].Estimated)
			require.EqualValues(t, 220, samples[0].Actual)
		}
	}
}
