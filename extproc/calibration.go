package extproc

import (
	"context"
	"sync"
	"time"

	"keyway/domain"
)

// Calibrator takes what was learned about the estimates of prompts.
type Calibrator interface {
	Calibrate(ctx context.Context, samples []domain.CalibrationSample) error
}

// calibrationPeriod is how long samples are summed up before the store gets them.
const calibrationPeriod = time.Second

// calibration sums up, by model and class, how the estimates of prompts
// compare with what providers counted. Its size is that of the configured
// models. What the store does not take is dropped: it is about the next
// requests, and these teach the same.
type calibration struct {
	to   Calibrator
	mu   sync.Mutex
	sums map[domain.CalibrationKey]domain.CalibrationSample
}

func newCalibration(to Calibrator) *calibration {
	return &calibration{to: to, sums: map[domain.CalibrationKey]domain.CalibrationSample{}}
}

// learn notes that the prompt of d had actual tokens by its provider's count.
func (c *calibration) learn(d domain.Decision, actual int64) {
	if d.Class == "" || d.PromptEstimate < domain.CalibrationFloor || actual <= 0 {
		return
	}
	key := domain.CalibrationKey{Model: d.Model, Class: d.Class}
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := c.sums[key]
	sum.CalibrationKey = key
	sum.Requests++
	sum.Estimated += d.PromptEstimate
	sum.Actual += actual
	c.sums[key] = sum
}

// take empties the sums.
func (c *calibration) take() []domain.CalibrationSample {
	c.mu.Lock()
	defer c.mu.Unlock()
	samples := make([]domain.CalibrationSample, 0, len(c.sums))
	for _, sum := range c.sums {
		samples = append(samples, sum)
	}
	clear(c.sums)
	return samples
}

// run hands the sums to the store until ctx ends.
func (c *calibration) run(ctx context.Context) {
	ticker := time.NewTicker(calibrationPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.flush(ctx)
		}
	}
}

func (c *calibration) flush(ctx context.Context) {
	samples := c.take()
	if len(samples) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, calibrationPeriod)
	defer cancel()
	// A store that is away is told of elsewhere, and nothing is lost by it here.
	_ = c.to.Calibrate(ctx, samples)
}
