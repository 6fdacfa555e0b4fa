package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// TestCase040: an event of 12 MB passes byte for byte, and what it used, which
// comes behind it, is found.
func TestCase040(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	const script = `{"delta_bytes":12582912,"count":2,"usage":{"input_uncached":31,"output":11}}`
	for _, api := range streamAPIs {
		for proto, by := range clientsByProto {
			c := s.caller(t, newNonce(), "--policy", "wide").over(by)
			a := ask{api: api, model: "m", script: script, stream: true, nonce: newNonce()}
			got := c.ask(t, a)
			what := string(api) + " " + proto
			require.Equal(t, http.StatusOK, got.StatusCode, what)
			require.Greater(t, len(got.body), 12<<20, what)
			if api != domain.APIChat { // a chat lacks the chunk that was asked for by us
				require.Equal(t, s.seen(t, a.nonce)[0].SentSHA256, got.digest(), what)
			}
			r := s.records(t, c.keyID, 1)[0]
			require.Equal(t, domain.SourceUpstream, r.Source, what)
			require.Equal(t, domain.Usage{InputUncached: 31, Output: 11}, r.Usage, what)
			require.Equal(t, domain.OutcomeSuccess, r.Outcome, what)
		}
	}
}

// TestCase078: neither a request of 5 MB nor a reply of 12 MB meets a message limit.
func TestCase078(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "wide")
	nonce := newNonce()
	// The vectors of an input have as many numbers as are asked for, each of about 9 bytes.
	inputs := `"` + strings.Repeat("word ", 5<<20/5) + `"` + strings.Repeat(`,"x"`, 800)
	body := fmt.Sprintf(`{"model":"only-a","dimensions":3072,"encoding_format":"float","input":[%s]}`, inputs)
	got := s.send(t, sending{path: "/v1/embeddings", key: c.secret, nonce: nonce, body: []byte(body)})
	require.Equal(t, http.StatusOK, got.StatusCode, "%.300s", got.body)
	require.Greater(t, len(got.body), 12_000_000)
	sent := s.seen(t, nonce)[0]
	require.Equal(t, sent.SentSHA256, got.digest())
	row := s.rowOf(t, got.Header.Get("X-Request-Id"))
	require.NotNil(t, sent.Usage)
	require.Equal(t, domain.Usage(*sent.Usage), row.Usage)
	require.Equal(t, domain.SourceUpstream, row.Source)
}

// A body that would grow when it is unpacked is refused before anybody unpacks
// it, on every path and in every encoding.
func TestCase079Everywhere(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "metered")
	var packed bytes.Buffer
	zw := gzip.NewWriter(&packed)
	_, err := zw.Write([]byte(`{"model":"m","messages":[{"role":"user","content":"`))
	require.NoError(t, err)
	for range 100 {
		_, err = zw.Write(bytes.Repeat([]byte("a"), 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, zw.Close())
	require.Less(t, packed.Len(), 1<<20)
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/audio/transcriptions", "/v1/images/edits", "/v1/messages/count_tokens", "/v1/files"} {
		for _, encoding := range []string{"gzip", "deflate", "br", "zstd", "gzip, identity"} {
			dialect := domain.DialectForPath(path)
			want := refusal{dialect: dialect, status: 415, kind: "invalid_request_error", hopeless: true}
			if dialect == domain.DialectOpenAI {
				want.code = "unsupported_media_type"
			}
			r := sending{path: path, key: c.secret, nonce: newNonce(), body: packed.Bytes(), header: http.Header{"Content-Encoding": {encoding}}}
			requireRefusal(t, want, s.send(t, r))
			require.Empty(t, s.seen(t, r.nonce), path)
		}
	}
	require.Empty(t, s.held(t, c.identity, c.keyID))
}
