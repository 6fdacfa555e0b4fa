package fakeprovider_test

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyway/e2e/fakeprovider"
)

// BenchmarkRequest is the cost of one request without the network: the fake
// provider shares its cores with what a load test measures. Compare two
// branches by benchstat over -count=10 of each.
func BenchmarkRequest(b *testing.B) {
	for _, row := range []struct{ name, path, body string }{
		{"chat", "/v1/chat/completions", chatPlain},
		{"chat stream", "/v1/chat/completions", chatStream},
		{"responses stream", "/v1/responses", responseStream},
	} {
		b.Run(row.name, func(b *testing.B) {
			s, err := fakeprovider.New(fakeprovider.Options{Faces: []fakeprovider.FaceOptions{{Name: "a"}}})
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest("POST", row.path, strings.NewReader(row.body))
				w := httptest.NewRecorder()
				s.Face("a").ServeHTTP(w, r)
				_, _ = io.Copy(io.Discard, w.Body)
			}
		})
	}
}
