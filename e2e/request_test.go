package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// clientHTTP2 speaks cleartext HTTP/2 with prior knowledge.
var clientHTTP2 = func() *http.Client {
	var only http.Protocols
	only.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: &only, DisableCompression: true}}
}()

// clientsByProto are the two ways in.
var clientsByProto = map[string]*http.Client{"HTTP/1.1": client, "HTTP/2.0": clientHTTP2}

// sending is one request as a test words it. Method "" is POST.
type sending struct {
	method string
	path   string
	key    string
	// header is added to what send sets itself; a nil value takes one away.
	header http.Header
	body   []byte
	// chunked sends the body without content-length.
	chunked bool
	// nonce goes to the provider as the user agent, so that its records tell this request.
	nonce string
	http  *http.Client
}

// received is a whole answer.
type received struct {
	*http.Response
	body []byte
	// trace is the request, for messages.
	trace string
}

// digest is what was got, as the provider's records say what was sent.
func (r received) digest() string { return digestOf(r.body) }

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func newNonce() string { return "kw-test-" + strings.ToLower(rand.Text()) }

// send sends r and reads the whole answer.
func (s *stack) send(t testing.TB, r sending) received {
	t.Helper()
	answer, err := s.trySend(t, r)
	require.NoError(t, err)
	return answer
}

func (s *stack) trySend(t testing.TB, r sending) (received, error) {
	t.Helper()
	if r.method == "" {
		r.method = http.MethodPost
	}
	var body io.Reader = bytes.NewReader(r.body)
	if r.chunked {
		body = struct{ io.Reader }{body}
	}
	req, err := http.NewRequestWithContext(t.Context(), r.method, s.ready.BaseURL+r.path, body)
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", r.nonce)
	if r.key != "" {
		req.Header.Set("Authorization", "Bearer "+r.key)
	}
	for name, values := range r.header {
		req.Header.Del(name)
		for _, v := range values {
			req.Header.Add(name, v)
		}
	}
	if r.http == nil {
		r.http = client
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return received{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return received{Response: resp, body: raw, trace: r.method + " " + r.path + " over " + resp.Proto}, err
}

// seen are the provider's records of the requests with a nonce, oldest first.
// All of them are complete: the provider ends a record when it has sent.
func (s *stack) seen(t testing.TB, nonce string) []fakeprovider.Record {
	t.Helper()
	var out []fakeprovider.Record
	eventually(t, func() bool {
		out = nil
		for _, r := range s.provider.Records() {
			if r.Header.Get("User-Agent") != nonce {
				continue
			}
			if r.End == fakeprovider.EndRunning {
				return false
			}
			out = append(out, r)
		}
		return true
	}, 5*time.Second, 2*time.Millisecond, "the provider does not end")
	return out
}

// held are the counters above zero of an identity that is nobody else's, and of keys of it.
func (s *stack) held(t testing.TB, identity string, keyIDs ...string) map[string]int64 {
	t.Helper()
	all, err := s.store.Counters(t.Context(), identity)
	require.NoError(t, err)
	for name := range all {
		ours := strings.Contains(name, ":identity:"+identity)
		for _, id := range keyIDs {
			ours = ours || strings.Contains(name, ":key:"+id)
		}
		if !ours {
			delete(all, name)
		}
	}
	return all
}

// messages is a messages body whose prompt carries a script for the provider.
func messages(model, script string, extra ...string) string {
	return chat(model, script, append(extra, `"max_tokens":64`)...)
}

// refusal is how an answer of Keyway's own must look.
type refusal struct {
	dialect domain.Dialect
	status  int
	// kind is the type of the error, code its code (OpenAI; "" is null).
	kind, code string
	// hopeless: waiting does not help, and the SDKs are told.
	hopeless bool
	// early: Envoy answered before it had read the request, so it has no id.
	early bool
	// secrets must stand nowhere in the answer.
	secrets []string
}

// requireRefusal checks the shape and the headers of an answer that Keyway wrote itself.
func requireRefusal(t *testing.T, want refusal, got received) {
	t.Helper()
	require.Equal(t, want.status, got.StatusCode, "%s: %s", got.trace, got.body)
	assert.Equal(t, "application/json", got.Header.Get("Content-Type"), got.trace)
	assert.Equal(t, int64(len(got.body)), got.ContentLength, "%s: content-length", got.trace)
	assert.Equal(t, want.early, got.Header.Get("X-Request-Id") == "", "%s: x-request-id", got.trace)
	if want.dialect == domain.DialectAnthropic {
		requireAnthropicError(t, want, got)
	} else {
		requireOpenAIError(t, want, got)
	}
	if want.hopeless {
		assert.Equal(t, "false", got.Header.Get("X-Should-Retry"), got.trace)
		assert.Empty(t, got.Header.Get("Retry-After"), got.trace)
		assert.Empty(t, got.Header.Get("Retry-After-Ms"), got.trace)
	}
	requireNoInsides(t, got, want.secrets...)
}

func requireOpenAIError(t *testing.T, want refusal, got received) {
	t.Helper()
	var body struct {
		Error *struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    *string `json:"code"`
		} `json:"error"`
	}
	decodeStrictly(t, got, &body)
	require.NotNil(t, body.Error, got.trace)
	assert.NotEmpty(t, body.Error.Message, got.trace)
	assert.Equal(t, want.kind, body.Error.Type, "%s: %s", got.trace, got.body)
	if want.code == "" {
		assert.Nil(t, body.Error.Code, "%s: %s", got.trace, got.body)
	} else if assert.NotNil(t, body.Error.Code, "%s: %s", got.trace, got.body) {
		assert.Equal(t, want.code, *body.Error.Code, "%s: %s", got.trace, got.body)
	}
	for _, key := range []string{"param", "code"} {
		jsonAt(t, got.body, "error", key) // present, null or not
	}
}

func requireAnthropicError(t *testing.T, want refusal, got received) {
	t.Helper()
	var body struct {
		Type  string `json:"type"`
		Error *struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
		RequestID string `json:"request_id"`
	}
	decodeStrictly(t, got, &body)
	require.NotNil(t, body.Error, got.trace)
	assert.Equal(t, "error", body.Type, got.trace)
	assert.NotEmpty(t, body.Error.Message, got.trace)
	assert.Equal(t, want.kind, body.Error.Type, "%s: %s", got.trace, got.body)
	assert.Equal(t, got.Header.Get("X-Request-Id"), body.RequestID, got.trace)
	assert.Equal(t, body.RequestID, got.Header.Get("Request-Id"), got.trace)
}

func decodeStrictly(t *testing.T, got received, into any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(got.body))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(into), "%s: %s", got.trace, got.body)
}

// insides are words of the machinery that no client may read.
var insides = []string{"127.0.0.1", "ch_", "cluster", "upstream connect", "ext_authz", "ext_proc", "x-envoy", "x-keyway-retry", "x-keyway-decision", "authz", "redis"}

func requireNoInsides(t *testing.T, got received, secrets ...string) {
	t.Helper()
	var head bytes.Buffer
	require.NoError(t, got.Header.Write(&head))
	whole := strings.ToLower(head.String() + string(got.body))
	for _, word := range insides {
		assert.NotContains(t, whole, word, got.trace)
	}
	for _, secret := range secrets {
		assert.NotContains(t, whole, strings.ToLower(secret), got.trace)
	}
}
