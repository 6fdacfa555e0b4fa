package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
	"keyway/ledger"
)

// patience is how long a test waits for what must come; only a failure reaches it.
const patience = 20 * time.Second

// caller is one virtual key and the way its requests go in.
type caller struct {
	s        *stack
	http     *http.Client
	secret   string
	keyID    string
	identity string
}

// caller makes a key; its requests go in over HTTP/1.1 unless http is set.
func (s *stack) caller(t testing.TB, identity string, args ...string) *caller {
	t.Helper()
	secret, id := s.key(t, append([]string{"--identity", identity}, args...)...)
	return &caller{s: s, http: client, secret: secret, keyID: id, identity: identity}
}

// over is c with another client.
func (c caller) over(http *http.Client) *caller {
	c.http = http
	return &c
}

// ask is one request in any dialect. The zero API is chat.
type ask struct {
	api   domain.API
	model string
	// script is what the provider does, JSON without the marker.
	script string
	stream bool
	// cap is the output cap; 0 is 64.
	cap int
	// nonce tells the request in the provider's records; "" makes one.
	nonce string
	// background asks for a response that goes on when its request is over.
	background bool
}

func (a ask) withDefaults() ask {
	if a.api == "" {
		a.api = domain.APIChat
	}
	if a.cap == 0 {
		a.cap = 64
	}
	if a.nonce == "" {
		a.nonce = newNonce()
	}
	return a
}

func (a ask) body() string {
	extra := []string{fmt.Sprintf(`"stream":%t`, a.stream)}
	switch a.api {
	case domain.APIResponses:
		extra = append(extra, fmt.Sprintf(`"max_output_tokens":%d`, a.cap))
		if a.background {
			extra = append(extra, `"background":true`)
		}
		return strings.Replace(chat(a.model, a.script, extra...), `"messages"`, `"input"`, 1)
	default:
		return chat(a.model, a.script, append(extra, fmt.Sprintf(`"max_tokens":%d`, a.cap))...)
	}
}

// live is an answer that is being read.
type live struct {
	*http.Response
	// asked is when the request went out.
	asked time.Time
	// leave ends the request as a client that goes away does.
	leave  context.CancelFunc
	reader *bufio.Reader
}

// open sends a and returns once the headers of its answer are there.
func (c *caller) open(ctx context.Context, a ask) (*live, error) {
	a = a.withDefaults()
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.s.ready.BaseURL+a.api.Path(), strings.NewReader(a.body()))
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", a.nonce)
	if a.api == domain.APIMessages {
		req.Header.Set("X-Api-Key", c.secret)
		req.Header.Set("Anthropic-Version", "2023-06-01")
	} else {
		req.Header.Set("Authorization", "Bearer "+c.secret)
	}
	asked := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	return &live{Response: resp, asked: asked, leave: cancel, reader: bufio.NewReader(resp.Body)}, nil
}

// event reads up to the next blank line.
func (l *live) event() (string, error) {
	var event strings.Builder
	for {
		line, err := l.reader.ReadString('\n')
		event.WriteString(line)
		if err != nil || line == "\n" {
			return event.String(), err
		}
	}
}

// events reads n of them.
func (l *live) events(t testing.TB, n int) {
	t.Helper()
	for range n {
		_, err := l.event()
		require.NoError(t, err)
	}
}

// rest reads to the end and closes; the error is that of a broken answer.
func (l *live) rest() (string, error) {
	defer l.leave()
	defer l.Body.Close()
	raw, err := io.ReadAll(l.reader)
	return string(raw), err
}

// quit goes away without reading on.
func (l *live) quit() {
	l.leave()
	_ = l.Body.Close() // the request is cancelled; there is nothing to know
}

// ask sends a and reads the whole answer, which must not break.
func (c *caller) ask(t testing.TB, a ask) received {
	t.Helper()
	l, err := c.open(t.Context(), a)
	require.NoError(t, err)
	body, err := l.rest()
	require.NoError(t, err, "%s", body)
	return received{Response: l.Response, body: []byte(body), trace: string(a.withDefaults().api)}
}

// attempts are the provider's records of the request with a nonce, running
// ones too, oldest first.
func (s *stack) attempts(nonce string) []fakeprovider.Record {
	return recordsOf(s.provider.Records(), nonce)
}

func recordsOf(all []fakeprovider.Record, nonce string) []fakeprovider.Record {
	var out []fakeprovider.Record
	for _, r := range all {
		if r.Header.Get("User-Agent") == nonce {
			out = append(out, r)
		}
	}
	return out
}

// awaitUpstream waits until the last attempt of a request is as wanted.
func (s *stack) awaitUpstream(t testing.TB, nonce string, wanted func(fakeprovider.Record) bool) fakeprovider.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, err := s.provider.WaitRecords(ctx, func(all []fakeprovider.Record) bool {
		mine := recordsOf(all, nonce)
		return len(mine) > 0 && wanted(mine[len(mine)-1])
	})
	mine := recordsOf(all, nonce)
	require.NoError(t, err, "what the provider saw: %+v", mine)
	return mine[len(mine)-1]
}

// requireIdle waits until the key holds no lease, and none of channels a slot.
func (c *caller) requireIdle(t testing.TB, channels ...string) {
	t.Helper()
	var held map[string]int64
	eventually(t, func() bool {
		held = c.leases(t, channels...)
		return len(held) == 0
	}, 3*lease, 20*time.Millisecond, "still held")
	require.Empty(t, held)
}

// counters are all that the store counts in the shard of the key's identity.
func (c *caller) counters(t testing.TB, channels ...string) map[string]int64 {
	t.Helper()
	all, err := c.s.store.Counters(t.Context(), c.identity, channels...)
	require.NoError(t, err)
	return all
}

// leases are what the key has in flight and the slots that are taken.
func (c *caller) leases(t testing.TB, channels ...string) map[string]int64 {
	t.Helper()
	all := c.counters(t, channels...)
	for name := range all {
		if !strings.Contains(name, ":slot:") && !strings.HasSuffix(name, ":inflight:key:"+c.keyID) {
			delete(all, name)
		}
	}
	return all
}

// charges are the counters of the key's own limits that are above zero.
func (c *caller) charges(t testing.TB) map[string]int64 {
	t.Helper()
	all := c.counters(t)
	for name := range all {
		if !strings.Contains(name, ":key:"+c.keyID) {
			delete(all, name)
		}
	}
	return all
}

// requireBalanced: what the day budget of the key counts as spent is what the
// rows of the ledger cost.
func (c *caller) requireBalanced(t testing.TB, rows []domain.UsageRecord) {
	t.Helper()
	var cost, spent int64
	for _, r := range rows {
		cost += r.CostMicros
	}
	for name, value := range c.charges(t) {
		if strings.Contains(name, ":budget:day:") {
			spent += value
		}
	}
	assert.Equal(t, cost, spent, "the key's day budget and its ledger rows")
}

// requireOneRowEach waits for n rows of the key and checks that each is of
// another request.
func (c *caller) requireOneRowEach(t testing.TB, n int) []domain.UsageRecord {
	t.Helper()
	rows := c.s.records(t, c.keyID, n)
	ids := make(map[string]bool, n)
	for _, r := range rows {
		ids[r.RequestID] = true
	}
	require.Len(t, ids, n, "a request has two rows")
	return rows
}

// counted sorts rows by outcome.
func counted(rows []domain.UsageRecord) map[domain.Outcome]int {
	out := map[domain.Outcome]int{}
	for _, r := range rows {
		out[r.Outcome]++
	}
	return out
}

// terminalOf is how a good stream of an API ends.
func terminalOf(api domain.API) string {
	switch api {
	case domain.APIMessages:
		return "event: message_stop"
	case domain.APIResponses:
		return "event: response.completed"
	}
	return "data: [DONE]"
}

// streamAPIs are the operations that stream.
var streamAPIs = []domain.API{domain.APIChat, domain.APIMessages, domain.APIResponses}

// isBroken reports whether err is that of an answer cut short, as opposed to
// the test's own time running out.
func isBroken(err error) bool {
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// errorTypeOf is the type in the dialect's error object.
func errorTypeOf(t testing.TB, body []byte) string {
	t.Helper()
	return string(bytes.Trim(jsonAt(t, body, "error", "type"), `"`))
}

// rowsOf are the rows of one request as the ledger has them now.
func (s *stack) rowsOf(t testing.TB, requestID string) []domain.UsageRecord {
	t.Helper()
	var rows []domain.UsageRecord
	err := s.ledger.Records(t.Context(), ledger.Query{RequestID: requestID}, func(r domain.UsageRecord) error {
		rows = append(rows, r)
		return nil
	})
	require.NoError(t, err)
	return rows
}

// rowOf waits for the ledger row of one request.
func (s *stack) rowOf(t testing.TB, requestID string) domain.UsageRecord {
	t.Helper()
	require.NotEmpty(t, requestID)
	var rows []domain.UsageRecord
	eventually(t, func() bool {
		rows = s.rowsOf(t, requestID)
		return len(rows) > 0
	}, patience, 50*time.Millisecond, "no row of request %s", requestID)
	require.Len(t, rows, 1)
	return rows[0]
}

// withCancel is the test's context with an end of its own.
func withCancel(t testing.TB) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return ctx, cancel
}

// untilTerminal reads through the stream's end mark.
func (l *live) untilTerminal(t testing.TB, api domain.API) {
	t.Helper()
	for {
		event, err := l.event()
		require.NoError(t, err)
		if strings.HasPrefix(event, terminalOf(api)) {
			return
		}
	}
}

// requireErrorEvent: the last event of a stream is an error in the dialect of api.
func requireErrorEvent(t testing.TB, api domain.API, body string) {
	t.Helper()
	events := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	last := events[len(events)-1]
	name, data, found := strings.Cut(last, "data: ")
	require.True(t, found, "%s", last)
	if api == domain.APIChat {
		assert.Empty(t, name)
	} else {
		assert.Equal(t, "event: error\n", name)
	}
	if api == domain.APIResponses {
		jsonAt(t, []byte(data), "message")
		return
	}
	jsonAt(t, []byte(data), "error", "message")
}
