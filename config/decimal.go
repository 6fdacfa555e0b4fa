package config

import (
	"errors"
	"math"
	"strings"
)

// The reasons why ParseMicros refuses a text.
var (
	errDecimalForm      = errors.New(`is not a decimal such as "2.50"`)
	errDecimalNegative  = errors.New("must not be negative")
	errDecimalPrecision = errors.New("has more than 6 decimals; the smallest amount is 0.000001")
	errDecimalRange     = errors.New("is too large")
)

const (
	microsPerUnit = 1_000_000
	microsDigits  = 6
)

// ParseMicros reads a decimal such as "2.50" as an exact number of millionths.
// Only digits with one optional point are allowed: no sign, exponent, blank or
// separator; more than six decimals are refused rather than rounded. The error
// is a predicate ("has more than 6 decimals…") and does not repeat text.
func ParseMicros(text string) (int64, error) {
	if strings.HasPrefix(text, "-") {
		return 0, errDecimalNegative
	}
	whole, fraction, point := strings.Cut(text, ".")
	if whole == "" || (point && fraction == "") {
		return 0, errDecimalForm
	}
	units, err := parseDigits(whole)
	if err != nil {
		return 0, err
	}
	micros, err := parseDigits(fraction)
	switch {
	case errors.Is(err, errDecimalForm):
		return 0, err
	case len(fraction) > microsDigits:
		return 0, errDecimalPrecision
	}
	for range microsDigits - len(fraction) {
		micros *= 10
	}
	if units > (math.MaxInt64-micros)/microsPerUnit {
		return 0, errDecimalRange
	}
	return units*microsPerUnit + micros, nil
}

// parseDigits reads only ASCII digits; "" is 0.
func parseDigits(text string) (int64, error) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, errDecimalForm
		}
	}
	var n int64
	for _, c := range []byte(text) {
		digit := int64(c - '0')
		if n > (math.MaxInt64-digit)/10 {
			return 0, errDecimalRange
		}
		n = n*10 + digit
	}
	return n, nil
}
