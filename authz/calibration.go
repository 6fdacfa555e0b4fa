package authz

import (
	"context"
	"sync/atomic"
	"time"

	"keyway/domain"
)

// Calibrations are the correction factors that the region has learned.
type Calibrations interface {
	// Calibration reads all of them.
	Calibration(ctx context.Context) (domain.Calibration, error)
}

// The factors move over minutes, so they are read now and then, and never on
// the way of a request.
const (
	calibrationPeriod  = 2 * time.Second
	calibrationTimeout = time.Second
)

// calibration is the last set of factors that could be read: without a store
// it stays what it was.
type calibration struct {
	from Calibrations
	last atomic.Pointer[domain.Calibration]
}

// load returns the last factors; none are known before the first read.
func (c *calibration) load() domain.Calibration {
	if known := c.last.Load(); known != nil {
		return *known
	}
	return nil
}

// run reads the factors at once and then every period, until ctx ends.
func (c *calibration) run(ctx context.Context) {
	ticker := time.NewTicker(calibrationPeriod)
	defer ticker.Stop()
	for {
		c.refresh(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (c *calibration) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, calibrationTimeout)
	defer cancel()
	if known, err := c.from.Calibration(ctx); err == nil {
		c.last.Store(&known)
	}
}
