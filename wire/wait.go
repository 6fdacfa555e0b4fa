package wire

import (
	"strconv"
	"strings"
	"time"
)

// longestWait bounds every wait that is read, so that sums and products of it
// stay in range; whoever cools by it has a smaller bound of their own.
const longestWait = 30 * 24 * time.Hour

// Numbers from these on are points in time: as seconds, and as milliseconds,
// since 1970. They are September 2001, and 31 years as a wait.
const (
	epochSeconds = 1e9
	epochMillis  = 1e12
)

// ParseWait reads how long to wait in any form that providers use: seconds, a
// duration (6m30s, 1d2h), an HTTP date, RFC 3339, or seconds or milliseconds
// since 1970. It is at least 0 and at most 30 days; ok is false for anything else.
func ParseWait(text string, now time.Time) (wait time.Duration, ok bool) {
	text = strings.TrimSpace(text)
	if n, ok := decimal(text); ok {
		switch {
		case n >= epochMillis:
			return clampWait(time.UnixMilli(int64(min(n, maxExact))).Sub(now)), true
		case n >= epochSeconds:
			return clampWait(time.Unix(int64(n), 0).Sub(now)), true
		}
		return seconds(n), true
	}
	if wait, ok := duration(text); ok {
		return wait, true
	}
	for _, layout := range dateLayouts {
		if at, err := time.Parse(layout, text); err == nil {
			return clampWait(at.Sub(now)), true
		}
	}
	return 0, false
}

// dateLayouts are the three forms of an HTTP date, the one in use first, and
// that of RFC 3339. Those without a zone are in UTC.
var dateLayouts = []string{"Mon, 02 Jan 2006 15:04:05 GMT", time.RFC850, time.ANSIC, time.RFC3339Nano}

// maxExact is the largest whole number that a float64 is sure to hold.
const maxExact = 1 << 53

// parseMillis reads a number of milliseconds.
func parseMillis(text string) (time.Duration, bool) {
	n, ok := decimal(strings.TrimSpace(text))
	return seconds(n / 1000), ok
}

// decimal reads digits with at most one point; it knows no sign, exponent,
// infinity or other base.
func decimal(text string) (float64, bool) {
	digits := strings.Trim(text, "0123456789.") == "" && strings.Count(text, ".") <= 1
	n, err := strconv.ParseFloat(text, 64)
	return n, digits && err == nil
}

// seconds is n seconds within the bounds.
func seconds(n float64) time.Duration {
	return time.Duration(min(n, longestWait.Seconds()) * float64(time.Second))
}

func clampWait(wait time.Duration) time.Duration { return min(max(wait, 0), longestWait) }

// duration reads the durations of Go, with days besides.
func duration(text string) (time.Duration, bool) {
	days := time.Duration(0)
	if number, rest, ok := strings.Cut(text, "d"); ok {
		n, ok := decimal(number)
		if !ok {
			return 0, false
		}
		if days, text = seconds(n*24*3600), rest; text == "" {
			return days, true
		}
	}
	rest, err := time.ParseDuration(text)
	if err != nil || rest < 0 {
		return 0, false
	}
	return clampWait(days + min(rest, longestWait)), true
}

// waitPhrases come before the time in providers' messages.
var waitPhrases = []string{"try again in ", "retry in ", "retry after "}

// units are those that messages spell out.
var units = map[string]time.Duration{
	"ms": time.Millisecond, "millisecond": time.Millisecond, "s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute, "h": time.Hour, "hour": time.Hour, "day": 24 * time.Hour,
}

// waitInMessage finds "try again in 6m30s" or "in 20 seconds" in a text.
func waitInMessage(message string) (time.Duration, bool) {
	lower := strings.ToLower(message)
	for _, phrase := range waitPhrases {
		_, rest, found := strings.Cut(lower, phrase)
		if !found {
			continue
		}
		words := strings.Fields(rest[:min(len(rest), 64)])
		if len(words) == 0 {
			continue
		}
		first := strings.TrimRight(words[0], ".,;:)!")
		if wait, ok := duration(first); ok {
			return wait, true
		}
		if n, ok := decimal(first); ok && len(words) > 1 {
			word := strings.TrimRight(words[1], ".,;:)!")
			unit, known := units[word]
			if !known {
				unit, known = units[strings.TrimSuffix(word, "s")]
			}
			if known {
				return seconds(n * unit.Seconds()), true
			}
		}
	}
	return 0, false
}
