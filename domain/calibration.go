package domain

// ContentClass is what most of a prompt is, as far as it bears on how many
// tokens its characters make.
type ContentClass string

// The classes.
const (
	ContentText  ContentClass = "text"
	ContentCode  ContentClass = "code" // and JSON
	ContentCJK   ContentClass = "cjk"  // Chinese, Japanese, Korean
	ContentMedia ContentClass = "media"
)

// The rule of calibration: an estimate is multiplied so that it comes to
// CalibrationAim times what providers count. A hold that is a tenth too large
// is given back at the end; one that is too small lets a budget be overrun.
const (
	CalibrationAim = 1.1
	// CalibrationMin and CalibrationMax bound the factor, whatever was counted.
	CalibrationMin = 0.8
	CalibrationMax = 2.0
	// CalibrationFloor, in tokens: prompts below it are neither counted nor
	// corrected, because there the frame of a message outweighs its text.
	CalibrationFloor = 64
)

// CalibrationKey is what has a factor of its own. Model is the name clients use.
type CalibrationKey struct {
	Model string
	Class ContentClass
}

// CalibrationSample sums up requests that ended with the provider's own count.
type CalibrationSample struct {
	CalibrationKey
	// Requests is how many there were, Estimated and Actual are the sums of
	// their prompt tokens: as first estimated, and as the provider counted.
	Requests, Estimated, Actual int64
}

// Factor is what the estimates of s should have been multiplied by; 1 when it
// holds none.
func (s CalibrationSample) Factor() float64 {
	if s.Estimated <= 0 {
		return 1
	}
	return ClampCalibration(CalibrationAim * float64(s.Actual) / float64(s.Estimated))
}

// ClampCalibration brings a factor within its bounds; what is no number becomes
// the lower one.
func ClampCalibration(factor float64) float64 {
	if !(factor > CalibrationMin) { // NaN too
		return CalibrationMin
	}
	return min(factor, CalibrationMax)
}

// Calibration holds the factors that are known. It is shared by readers and
// must not be changed.
type Calibration map[CalibrationKey]float64

// Correct applies the factor of key to an estimate of prompt tokens.
func (c Calibration) Correct(key CalibrationKey, estimate int64) int64 {
	factor, ok := c[key]
	if !ok || estimate < CalibrationFloor {
		return estimate
	}
	return int64(float64(estimate)*ClampCalibration(factor) + 0.5)
}
