package wire

import (
	"bytes"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// noise is text without language: base64 of a hash chain.
func noise(n int) []byte {
	var raw []byte
	sum := sha512.Sum512([]byte("noise"))
	for len(raw) < n {
		raw = append(raw, sum[:]...)
		sum = sha512.Sum512(sum[:])
	}
	return raw[:n]
}

func TestEstimateTokens(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		// The band is what the o200k vocabulary gives, widened to the 0.9 to 1.3
		// that a reservation may be off; counted outside of this test.
		low, high int64
	}{
		{"nothing", "", 0, 0},
		{"a word", "hello", 1, 1},
		{"a sentence", "The quick brown fox jumps over the lazy dog.", 9, 13},
		{"a long word", "internationalization", 2, 5},
		{"camel case", "getUserNameFromDatabase", 4, 7},
		{"digits", "1234567890", 4, 6},
		{"indent", "\n        return", 2, 3},
		{"punctuation", "})});", 1, 3},
		{"han", "今天天气很好我们去公园", 6, 10},
		{"kana", "こんにちは", 2, 5},
		{"emoji", "🙂🙂🙂🙂", 4, 8},
		{"cyrillic", "Привет мир", 3, 7},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := EstimateTokens([]byte(tt.text))
			assert.GreaterOrEqual(t, n, tt.low)
			assert.LessOrEqual(t, n, tt.high)
		})
	}
}

func TestEstimateOpaqueText(t *testing.T) {
	t.Parallel()
	b64 := base64.StdEncoding.EncodeToString(noise(3000))
	assert.InEpsilon(t, float64(len(b64))/1.4, float64(EstimateTokens([]byte(b64))), 0.01)
	digits := hex.EncodeToString(noise(32))
	assert.InEpsilon(t, float64(len(digits))/1.4, float64(EstimateTokens([]byte(digits))), 0.05)
}

func TestBreakEndsARun(t *testing.T) {
	t.Parallel()
	var e Estimator
	e.Feed([]byte("data"))
	e.Break()
	e.Feed([]byte("base"))
	assert.Equal(t, int64(2), e.Tokens())
	assert.Equal(t, int64(1), EstimateTokens([]byte("database")))
}

func TestFamilyFactor(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]float64{
		"gpt-4o-mini": 1, "gpt-4.1": 1, "gpt-4-turbo": 1.25, "gpt-3.5-turbo": 1.25,
		"claude-opus-4-7": 1.2, "vendor/claude-x": 1.2, "qwen-max": 1, "": 1,
	} {
		assert.InDelta(t, want, FamilyFactor(model), 0, model)
	}
}

// FuzzEstimator: the count does not depend on how a text is cut, nor does it
// ever fall behind one token in 40 bytes.
func FuzzEstimator(f *testing.F) {
	f.Add([]byte("Hello, 中文 🙂 aGVsbG8rd29ybGQ/aGVsbG8= x=1;"), uint16(7))
	f.Add([]byte("\xf0\x9f\x99\xf0\xe4\xb8a\xff"), uint16(2))
	f.Fuzz(func(t *testing.T, text []byte, cut uint16) {
		want := EstimateTokens(text)
		k := int(cut) % (len(text) + 1)
		var halves, bytewise Estimator
		halves.Feed(text[:k])
		halves.Feed(text[k:])
		require.Equal(t, want, halves.Tokens())
		for i := range text {
			bytewise.Feed(text[i : i+1])
		}
		require.Equal(t, want, bytewise.Tokens())
		require.GreaterOrEqual(t, want+1, int64(len(text)/40))
	})
}

func BenchmarkEstimator(b *testing.B) {
	for name, text := range hostileTexts() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				EstimateTokens(text)
			}
		})
	}
}

func hostileTexts() map[string][]byte {
	const size = 1 << 20
	fill := func(s string) []byte { return bytes.Repeat([]byte(s), size/len(s)) }
	return map[string][]byte{
		"english":    fill("The quick brown fox jumps over the lazy dog, and runs away. "),
		"code":       fill("\tif err := r.readAll(ctx, buf[:n]); err != nil {\n\t\treturn fmt.Errorf(\"x: %w\", err)\n\t}\n"),
		"emoji":      fill("🙂"),
		"han":        fill("今天天气很好，"),
		"one letter": fill("a"),
		"base64":     []byte(base64.StdEncoding.EncodeToString(noise(size))),
		"flips":      fill("aA1+"),
		"newlines":   fill("\n"),
	}
}

// TestEstimateGrowsWithTheText holds that no long text of one kind becomes
// cheaper per byte than a short one.
func TestEstimateGrowsWithTheText(t *testing.T) {
	t.Parallel()
	for name, text := range hostileTexts() {
		whole := EstimateTokens(text)
		part := EstimateTokens(text[:len(text)/4])
		assert.InEpsilon(t, 4*part, whole, 0.01, name)
	}
}
