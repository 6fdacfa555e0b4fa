package store

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"keyway/domain"
	"keyway/lua"
)

const (
	// keepCalibration is how long factors outlive the last request that taught any.
	keepCalibration = 30 * 24 * time.Hour
	// calibrationInertia is for how many requests a factor stands: after three
	// times as many, 95 % of a change has arrived.
	calibrationInertia = 64
	// maxCalibrationWeight bounds what one call may do to a factor: it moves it by
	// a fifth of the way at most, however many requests are behind it.
	maxCalibrationWeight = 16
	// millionths is the unit in which factors are kept.
	millionths = 1_000_000
)

// Calibrate moves the region's correction factors towards what samples show.
func (s *Store) Calibrate(ctx context.Context, samples []domain.CalibrationSample) error {
	args := []any{keepCalibration.Milliseconds(), calibrationInertia}
	for _, sample := range samples {
		if sample.Requests <= 0 || sample.Estimated <= 0 {
			continue
		}
		factor := int64(math.Round(sample.Factor() * millionths))
		args = append(args, calibrationField(sample.CalibrationKey), factor, min(sample.Requests, maxCalibrationWeight))
	}
	if len(args) == 2 {
		return nil
	}
	return s.run(ctx, []call{{script: lua.Calibrate, keys: []string{calibrationKey}, args: args}})[0].Err()
}

// Calibration reads the region's correction factors, each within its bounds.
func (s *Store) Calibration(ctx context.Context) (domain.Calibration, error) {
	known := domain.Calibration{}
	err := s.do(ctx, "read calibration", func(ctx context.Context) error {
		fields, err := s.client.HGetAll(ctx, calibrationKey).Result()
		for field, value := range fields {
			class, model, ok := strings.Cut(field, ":")
			factor, parseErr := strconv.ParseFloat(value, 64)
			if !ok || parseErr != nil {
				continue // what cannot be read corrects nothing
			}
			key := domain.CalibrationKey{Model: model, Class: domain.ContentClass(class)}
			known[key] = domain.ClampCalibration(factor / millionths)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return known, nil
}

// calibrationField begins with the class, which has no colon; a model's name may have any.
func calibrationField(key domain.CalibrationKey) string {
	return string(key.Class) + ":" + key.Model
}
