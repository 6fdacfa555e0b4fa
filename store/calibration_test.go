package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// sample is what requests of one model came to: their estimate was off by ratio.
func sample(key domain.CalibrationKey, requests int64, ratio float64) domain.CalibrationSample {
	return domain.CalibrationSample{
		CalibrationKey: key, Requests: requests, Estimated: 1000 * requests, Actual: int64(1000 * ratio * float64(requests)),
	}
}

func factor(t *testing.T, s *Store, key domain.CalibrationKey) float64 {
	t.Helper()
	known, err := s.Calibration(context.Background())
	require.NoError(t, err)
	f, ok := known[key]
	require.True(t, ok, "%v is not among %d factors", key, len(known))
	return f
}

func TestCalibrationConverges(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, tt := range []struct {
		ratio, want float64
	}{{1, 1.1}, {1.5, 1.65}, {0.5, domain.CalibrationMin}, {9, domain.CalibrationMax}} {
		// A model's name may hold anything, a colon too.
		key := domain.CalibrationKey{Model: "team/model:" + unique("m"), Class: domain.ContentCJK}
		other := domain.CalibrationKey{Model: key.Model, Class: domain.ContentText}
		require.NoError(t, s.Calibrate(context.Background(), []domain.CalibrationSample{sample(other, 1, 1)}))
		for range 40 {
			require.NoError(t, s.Calibrate(context.Background(), []domain.CalibrationSample{sample(key, 10, tt.ratio)}))
		}
		assert.InDelta(t, tt.want, factor(t, s, key), 0.01, "ratio %v", tt.ratio)
		assert.Less(t, factor(t, s, other), 1.01, "another class is another factor")
	}
}

// However many and however wrong the requests of one call are, they move a
// factor by a fifth of the way.
func TestCalibrationMovesByABoundedShare(t *testing.T) {
	t.Parallel()
	s := shared(t)
	key := domain.CalibrationKey{Model: unique("m"), Class: domain.ContentText}
	require.NoError(t, s.Calibrate(context.Background(), []domain.CalibrationSample{sample(key, 1_000_000, 1000)}))
	assert.InDelta(t, 1.2, factor(t, s, key), 0.0001)
	one := domain.CalibrationKey{Model: unique("m"), Class: domain.ContentText}
	require.NoError(t, s.Calibrate(context.Background(), []domain.CalibrationSample{sample(one, 1, 1000)}))
	assert.InDelta(t, 1+1.0/65, factor(t, s, one), 0.0001)
}

func TestCalibrationIgnoresWhatTeachesNothing(t *testing.T) {
	t.Parallel()
	s := shared(t)
	key := domain.CalibrationKey{Model: unique("m"), Class: domain.ContentText}
	require.NoError(t, s.Calibrate(context.Background(), []domain.CalibrationSample{{CalibrationKey: key, Requests: 1}, {CalibrationKey: key, Estimated: 1}}))
	known, err := s.Calibration(context.Background())
	require.NoError(t, err)
	assert.NotContains(t, known, key)
}

func TestCalibrationReadsWhateverStandsThere(t *testing.T) {
	t.Parallel()
	s := shared(t)
	model := unique("m")
	for field, value := range map[string]any{"text:" + model: "NaN", "code:" + model: "1e300", "cjk:" + model: "much", model: 1} {
		require.NoError(t, s.client.HSet(context.Background(), calibrationKey, field, value).Err())
	}
	assert.InDelta(t, domain.CalibrationMin, factor(t, s, domain.CalibrationKey{Model: model, Class: domain.ContentText}), 0)
	assert.InDelta(t, domain.CalibrationMax, factor(t, s, domain.CalibrationKey{Model: model, Class: domain.ContentCode}), 0)
	known, err := s.Calibration(context.Background())
	require.NoError(t, err)
	assert.NotContains(t, known, domain.CalibrationKey{Model: model, Class: domain.ContentCJK})
}
