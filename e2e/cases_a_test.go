package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// read is an answer, what the provider knows of it and what the ledger says.
type read struct {
	received
	sent fakeprovider.Record
	row  domain.UsageRecord
}

// read asks and waits for the books.
func (c *caller) read(t testing.TB, a ask) read {
	t.Helper()
	a = a.withDefaults()
	got := c.ask(t, a)
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	sent := c.s.awaitUpstream(t, a.nonce, func(r fakeprovider.Record) bool { return r.End != fakeprovider.EndRunning })
	return read{got, sent, c.s.rowOf(t, got.Header.Get("X-Request-Id"))}
}

// requireUntouched: the client got what the provider sent, byte for byte.
func (r read) requireUntouched(t testing.TB) {
	t.Helper()
	require.Equal(t, r.sent.SentSHA256, r.digest(), "%.500s", r.body)
}

// usageCase is an answer of a known form and what it must be counted as.
type usageCase struct {
	name, script string
	api          domain.API
	document     bool
	want         domain.Usage
}

// Sections A and C: where usage stands, and what it means.
var usageCases = []usageCase{
	{name: "case_001 usage in a chunk without choices", script: `{"usage":{"input_uncached":7,"output":5}}`, want: domain.Usage{InputUncached: 7, Output: 5}},
	{name: "case_001 usage in a chunk that lacks choices", script: `{"usage_form":"no_choices","usage":{"input_uncached":7,"output":5}}`, want: domain.Usage{InputUncached: 7, Output: 5}},
	{name: "case_005 usage in every chunk grows", script: `{"usage_form":"every","count":20,"usage":{"input_uncached":20,"output":20}}`, want: domain.Usage{InputUncached: 20, Output: 20}},
	{
		name: "case_024 message_delta replaces message_start", api: domain.APIMessages,
		script: `{"usage":{"input_uncached":25,"output":15}}`, want: domain.Usage{InputUncached: 25, Output: 15},
	},
	{
		name: "case_025 cache tokens in both events", api: domain.APIMessages,
		script: `{"usage_form":"repeat","usage":{"input_uncached":100,"cache_read":900,"output":15}}`,
		want:   domain.Usage{InputUncached: 100, CacheRead: 900, Output: 15},
	},
	{
		name: "case_030 an incomplete response", api: domain.APIResponses,
		script: `{"terminal":"incomplete","usage":{"input_uncached":10,"output":64}}`, want: domain.Usage{InputUncached: 10, Output: 64},
	},
	{
		name: "case_031 usage in response.completed alone", api: domain.APIResponses,
		script: `{"usage":{"input_uncached":11,"cache_read":22,"output":33,"reasoning":30}}`,
		want:   domain.Usage{InputUncached: 11, CacheRead: 22, Output: 33, Reasoning: 30},
	},
	{
		name: "case_034 raw usage beside the normalised one", api: domain.APIResponses, document: true,
		script: `{"usage":{"input_uncached":100,"cache_read":900,"output":50,"reasoning":40}}`,
		want:   domain.Usage{InputUncached: 100, CacheRead: 900, Output: 50, Reasoning: 40},
	},
}

func TestUsageIsReadWhereverItStands(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, tc := range usageCases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, model := range []string{"only-a", "only-tlsa"} {
				c := s.caller(t, newNonce(), "--policy", "trusted")
				got := c.readAsked(t, ask{api: tc.api, model: model, script: tc.script, stream: !tc.document})
				got.requireUntouched(t)
				assert.Equal(t, tc.want, got.row.Usage)
				assert.Equal(t, domain.SourceUpstream, got.row.Source)
				assert.Equal(t, domain.OutcomeSuccess, got.row.Outcome)
				require.NotEmpty(t, got.row.RawUsage)
				if tc.api != domain.APIMessages { // there it is put together of two events
					assert.Contains(t, string(got.body), string(got.row.RawUsage), "as it came")
				}
				c.requireBalanced(t, []domain.UsageRecord{got.row})
			}
		})
	}
}

// readAsked is read with a client that asks for usage itself, so that nothing
// is taken out of its stream.
func (c *caller) readAsked(t testing.TB, a ask) read {
	t.Helper()
	a = a.withDefaults()
	body := a.body()
	if a.stream && a.api == domain.APIChat {
		body = strings.TrimSuffix(body, "}") + `,"stream_options":{"include_usage":true}}`
	}
	got := c.s.send(t, sending{path: a.api.Path(), key: c.secret, nonce: a.nonce, body: []byte(body)})
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	sent := c.s.awaitUpstream(t, a.nonce, func(r fakeprovider.Record) bool { return r.End != fakeprovider.EndRunning })
	return read{got, sent, c.s.rowOf(t, got.Header.Get("X-Request-Id"))}
}

// case_003: a client that did not ask for usage is billed by it all the same,
// hidden reasoning included, and sees nothing of it.
func TestCase003(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "trusted")
	got := c.read(t, ask{model: "only-a", stream: true, script: `{"usage":{"input_uncached":10,"output":1000,"reasoning":900}}`})
	assert.Contains(t, string(got.sent.Body), `"include_usage":true`)
	assert.NotContains(t, string(got.body), `usage`)
	assert.Contains(t, string(got.body), "data: [DONE]")
	assert.Equal(t, domain.Usage{InputUncached: 10, Output: 1000, Reasoning: 900}, got.row.Usage)
	assert.Equal(t, domain.SourceUpstream, got.row.Source)
}

// case_008: an error inside a 200 is a failure, and its text is no output.
func TestCase008(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, api := range []domain.API{domain.APIChat, domain.APIMessages, domain.APIResponses} {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", "trusted")
			script := `{"error":{"type":"server_error","message":"` + strings.Repeat("no such luck ", 160) + `"}}`
			got := c.read(t, ask{api: api, model: "only-a", stream: true, script: script})
			assert.Equal(t, domain.OutcomeFailed, got.row.Outcome)
			assert.Zero(t, got.row.Usage.Output)
			assert.Zero(t, got.row.CostMicros)
			c.requireBalanced(t, []domain.UsageRecord{got.row})
			c.requireIdle(t)
		})
	}
}

// case_010: closing right after the end marker loses no charge, and the hold is
// not left to lapse.
func TestCase010(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "trusted")
	const tries = 20
	for range tries {
		l, err := c.open(t.Context(), ask{model: "only-a", stream: true, script: `{"usage":{"input_uncached":7,"output":5}}`})
		require.NoError(t, err)
		l.untilTerminal(t, domain.APIChat)
		l.quit()
	}
	rows := c.requireOneRowEach(t, tries)
	for _, r := range rows {
		assert.Equal(t, domain.Usage{InputUncached: 7, Output: 5}, r.Usage)
	}
	c.requireIdle(t)
	time.Sleep(lease + time.Second) // the holds' own end would come now
	c.requireBalanced(t, c.requireOneRowEach(t, tries))
}

// case_011 and case_014: a client that leaves in the middle stops the provider,
// and pays for the prompt and for about what it was sent.
func TestCase011And014(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, model := range []string{"only-a", "only-tlsa"} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", "trusted")
			nonce := newNonce()
			l, err := c.open(t.Context(), ask{model: model, stream: true, nonce: nonce, cap: 1000, script: `{"count":100,"delay_between_ms":50}`})
			require.NoError(t, err)
			l.events(t, 3)
			left := time.Now()
			l.quit()
			sent := s.awaitUpstream(t, nonce, func(r fakeprovider.Record) bool { return r.End == fakeprovider.EndPeerLeft })
			assert.Less(t, sent.PeerLeftAt.Sub(left), time.Second)
			assert.Less(t, sent.SentFrames, int64(40), "it does not run to its end")
			row := c.requireOneRowEach(t, 1)[0]
			assert.Equal(t, domain.OutcomeCancelled, row.Outcome)
			assert.Equal(t, domain.SourceEstimate, row.Source)
			assert.Positive(t, row.Usage.Input())
			assert.Positive(t, row.Usage.Output)
			assert.LessOrEqual(t, row.Usage.Output, 4*sent.SentFrames)
			c.requireBalanced(t, []domain.UsageRecord{row})
			c.requireIdle(t)
		})
	}
}

// case_013: a client that leaves before the headers stops the provider at once,
// and pays for no answer.
func TestCase013(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "trusted")
	nonce := newNonce()
	a := ask{model: "only-tlsa", stream: true, nonce: nonce, cap: 300, script: `{"delay_headers_ms":3000,"count":300,"delay_between_ms":100}`}
	opened := make(chan error, 1)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		_, err := c.open(ctx, a)
		opened <- err
	}()
	s.awaitUpstream(t, nonce, func(fakeprovider.Record) bool { return true })
	left := time.Now()
	leave()
	require.Error(t, <-opened)
	sent := s.awaitUpstream(t, nonce, func(r fakeprovider.Record) bool { return r.End == fakeprovider.EndPeerLeft })
	assert.Less(t, sent.PeerLeftAt.Sub(left), time.Second)
	row := c.requireOneRowEach(t, 1)[0]
	assert.Equal(t, domain.OutcomeCancelled, row.Outcome)
	assert.Zero(t, row.Usage.Output)
	c.requireBalanced(t, []domain.UsageRecord{row})
	c.requireIdle(t)
}
