package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestReadQuota(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name    string
		headers map[string]string
		want    Quota
		ok      bool
	}{
		{name: "none", headers: map[string]string{"retry-after": "3"}},
		{"requests", map[string]string{
			"x-ratelimit-limit-requests": "100", "x-ratelimit-remaining-requests": "75", "x-ratelimit-reset-requests": "12ms",
		}, Quota{0.75, 12 * time.Millisecond}, true},
		{"the scarcer one", map[string]string{
			"x-ratelimit-limit-requests": "100", "x-ratelimit-remaining-requests": "75", "x-ratelimit-reset-requests": "1s",
			"x-ratelimit-limit-tokens": "1000", "x-ratelimit-remaining-tokens": "100", "x-ratelimit-reset-tokens": "6m0s",
		}, Quota{0.1, 6 * time.Minute}, true},
		{"a point in time", map[string]string{
			"anthropic-ratelimit-input-tokens-limit": "1000", "anthropic-ratelimit-input-tokens-remaining": "1000",
			"anthropic-ratelimit-input-tokens-reset": "2026-12-01T12:00:30Z",
		}, Quota{1, 30 * time.Second}, true},
		{"more than the limit", map[string]string{
			"x-ratelimit-limit-tokens": "10", "x-ratelimit-remaining-tokens": "20", "x-ratelimit-reset-tokens": "1s",
		}, Quota{1, time.Second}, true},
		{name: "negative", headers: map[string]string{
			"x-ratelimit-limit-tokens": "10", "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0",
		}},
		{name: "over already", headers: map[string]string{
			"x-ratelimit-limit-tokens": "10", "x-ratelimit-remaining-tokens": "1", "x-ratelimit-reset-tokens": "0s",
		}},
		{name: "no numbers", headers: map[string]string{
			"x-ratelimit-limit-tokens": "many", "x-ratelimit-remaining-tokens": "1", "x-ratelimit-reset-tokens": "1s",
		}},
		{name: "half of it", headers: map[string]string{"x-ratelimit-limit-tokens": "10", "x-ratelimit-remaining-tokens": "1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			headers := map[string][]string{}
			for name, value := range tc.headers {
				headers[name] = []string{value}
			}
			got, ok := ReadQuota(headers, now)
			assert.Equal(t, tc.ok, ok)
			assert.Equal(t, tc.want, got)
		})
	}
}
