package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// oddAnswer is an answer as no documentation has it, and what becomes of it.
type oddAnswer struct {
	name string
	ask
	// says is in the error event, or error body, that the client gets instead of
	// silence; "" is nothing but the provider's bytes.
	says string
	// status is the client's; 0 is 200.
	status  int
	outcome domain.Outcome
	// usage is what the provider reports; nil is an estimate.
	usage *domain.Usage
	// free: it costs nothing.
	free bool
}

const (
	oddHead = `data: {\"id\":\"c1\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}}]}\n\n`
	oddStop = `data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n`
	oddUsed = `data: {\"id\":\"c1\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5,\"total_tokens\":12}}\n\n`
	oddDone = `data: [DONE]\n\n`
	// oddDocument is a whole answer, oddError one that is an error.
	oddDocument = `{\"id\":\"c1\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"Hello\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5,\"total_tokens\":12}}`
	oddError    = `{\"error\":{\"message\":\"the card was declined\",\"type\":\"invalid_request_error\",\"code\":null}}`
	oddStream   = `"chunks":["` + oddHead + oddStop + `","` + oddUsed + oddDone + `"]`
)

func as(contentType string) string { return `,"headers":{"content-type":` + contentType + `}` }

func oddAnswers() []oddAnswer {
	used := &domain.Usage{InputUncached: 7, Output: 5}
	odd := func(name string, stream bool, script string) oddAnswer {
		return oddAnswer{name: name, ask: ask{api: domain.APIChat, stream: stream, script: `{` + script + `}`}}
	}
	good := func(name string, stream bool, script string) oddAnswer {
		a := odd(name, stream, script)
		a.outcome, a.usage = domain.OutcomeSuccess, used
		return a
	}
	told := func(name, script, says string) oddAnswer {
		a := odd(name, true, script)
		a.outcome, a.says = domain.OutcomeUpstreamCut, says
		return a
	}
	empty := func(name string, stream bool, script string) oddAnswer {
		a := odd(name, stream, script)
		a.outcome, a.free = domain.OutcomeFailed, true
		return a
	}
	but := func(a oddAnswer, change func(*oddAnswer)) oddAnswer {
		change(&a)
		return a
	}
	return []oddAnswer{
		good("a stream without a content type", true, oddStream+as(`[]`)),
		good("a stream as plain text", true, oddStream+as(`"text/plain; charset=utf-8"`)),
		good("a stream as bytes", true, oddStream+as(`"application/octet-stream"`)),
		good("a stream as JSON", true, oddStream+as(`"application/json"`)),
		good("a stream as JSON behind blank lines", true, `"chunks":["\n","\n`+oddHead+oddStop+oddUsed+oddDone+`"]`+as(`"application/json"`)),
		good("a stream in capitals", true, oddStream+as(`"Text/Event-Stream ;charset=UTF-8"`)),
		good("a stream with a length", true, oddStream+`,"content_length":"set"`),
		good("a stream as JSON with a length", true, oddStream+as(`"application/json"`)+`,"content_length":"set"`),
		good("a stream though none was asked", false, oddStream),
		good("a stream as JSON though none was asked", false, oddStream+as(`"application/json"`)+`,"content_length":"set"`),
		good("a document as a stream", false, `"body":"`+oddDocument+`"`+as(`"text/event-stream"`)),
		good("a document as a stream, byte by byte", false, `"body":"\n`+oddDocument+`","cut_every":1`+as(`"text/event-stream"`)),
		good("a document as plain text", false, `"body":"`+oddDocument+`"`+as(`"text/plain"`)),
		good("a document without a content type", false, `"body":"`+oddDocument+`","content_length":"none"`+as(`[]`)),
		good("a document behind a byte order mark", false, `"body":"\ufeff`+oddDocument+`"`),
		good("a document where a stream was asked", true, `"body":"`+oddDocument+`"`),
		but(good("a document that says it is the stream asked for", true, `"body":"`+oddDocument+`"`+as(`"text/event-stream"`)),
			func(a *oddAnswer) { a.says = "where a stream was asked for" }),
		but(good("an error that says it is the stream asked for", true, `"body":"`+oddError+`"`+as(`"text/event-stream"`)),
			func(a *oddAnswer) { a.says, a.outcome, a.free = "the card was declined", domain.OutcomeFailed, true }),
		but(empty("a page where a stream was asked", true, `"body":"<html>Welcome</html>"`+as(`"text/html; charset=utf-8"`)), func(a *oddAnswer) { a.status, a.says = 502, "web page" }),
		but(empty("a page where a document was asked", false, `"body":"<html>Welcome to the hotel</html>"`+as(`"Text/HTML"`)), func(a *oddAnswer) { a.status, a.says = 502, "web page" }),
		but(good("text that says it is JSON", false, `"body":"Welcome to the hotel"`), func(a *oddAnswer) { a.usage = nil }),
		but(told("a document cut short", `"body":"{\"id\":\"c1\",\"choices\":[{\"index\":0,","content_length":"none"`, ""), func(a *oddAnswer) { a.stream = false }),
		but(empty("nothing, with a length, for a document", false, `"body":""`), func(a *oddAnswer) { a.status, a.says = 502, "empty answer" }),
		but(empty("nothing, with a length, for a stream", true, `"chunks":[],"content_length":"set"`), func(a *oddAnswer) { a.status, a.says = 502, "empty answer" }),
		but(empty("nothing for a stream", true, `"chunks":[]`), func(a *oddAnswer) { a.says = "before the answer was complete" }),
		but(empty("nothing for a stream without a content type", true, `"chunks":[]`+as(`[]`)), func(a *oddAnswer) { a.says = "before the answer was complete" }),
		empty("nothing for a document", false, `"body":"","content_length":"none","delay_first_byte_ms":20`),
		but(empty("nothing for a stream of messages", true, `"chunks":[]`), func(a *oddAnswer) { a.api, a.says = domain.APIMessages, "before the answer was complete" }),
		but(good("an error that says it is the stream of a response", true, `"body":"`+oddError+`"`+as(`"text/event-stream"`)),
			func(a *oddAnswer) {
				a.api, a.says, a.outcome, a.free = domain.APIResponses, "the card was declined", domain.OutcomeFailed, true
			}),
		good("hints before it and trailers behind", true, oddStream+`,"early_hints":2,"trailers":{"x-checksum":"abc"}`),
		good("two end marks and more behind", true, `"chunks":["`+oddHead+oddStop+oddUsed+oddDone+oddDone+`: bye\n\n\n\n\n"]`),
		good("usage behind the end mark", true, `"chunks":["`+oddHead+oddStop+oddDone+`","`+oddUsed+`"]`),
		good("an end mark with blanks around", true, `"chunks":["`+oddHead+oddUsed+`data:  [DONE] \n\n"]`),
		good("bytes that are no text", true, `"chunks":[{"base64":"ZGF0YTogeyJjaG9pY2VzIjpbeyJpbmRleCI6MCwiZGVsdGEiOnsiY29udGVudCI6IgD//oD8In19XX0KCg=="},"`+oddStop+oddUsed+oddDone+`"]`),
		good("a status of 206", true, oddStream+`,"status":206`),
		good("an encoding that is none", true, oddStream+`,"headers":{"content-encoding":"Identity"}`),
	}
}

// send asks for a over a model and compares what the client gets.
func (a oddAnswer) send(t *testing.T, c *caller, model string, nonce string) (received, error) {
	a.model, a.nonce = model, nonce
	q := a.withDefaults()
	body := q.body()
	if a.stream && a.api == domain.APIChat {
		body = strings.TrimSuffix(body, "}") + `,"stream_options":{"include_usage":true}}`
	}
	got, err := c.s.trySend(t, sending{path: q.api.Path(), key: c.secret, nonce: nonce, http: c.http, body: []byte(body)})
	if err != nil {
		return got, err
	}
	if a.status != 0 && got.StatusCode != a.status || a.status == 0 && got.StatusCode >= http.StatusMultipleChoices {
		return got, fmt.Errorf("status %d: %.300s", got.StatusCode, got.body)
	}
	return got, nil
}

// check compares what the client got with what the provider sent.
func (a oddAnswer) check(t *testing.T, what string, got received, sent fakeprovider.Record) {
	tail := got.body
	if a.status == 0 {
		require.GreaterOrEqual(t, int64(len(got.body)), sent.SentBytes, "%s: %q", what, got.body)
		assert.Equal(t, sent.SentSHA256, digestOf(got.body[:sent.SentBytes]), "%s: %q", what, got.body)
		tail = got.body[sent.SentBytes:]
	}
	if a.says == "" {
		assert.Empty(t, string(tail), what)
		return
	}
	assert.Contains(t, string(tail), a.says, what)
	if a.status == 0 {
		requireErrorEvent(t, a.withDefaults().api, strings.TrimLeft(string(tail), "\n"))
	}
}

func (a oddAnswer) checkRow(t *testing.T, what string, row domain.UsageRecord) {
	assert.Equal(t, a.outcome, row.Outcome, what)
	switch {
	case a.free:
		assert.Zero(t, row.Usage, what)
		assert.Zero(t, row.CostMicros, what)
	case a.usage != nil:
		assert.Equal(t, *a.usage, row.Usage, what)
		assert.Equal(t, domain.SourceUpstream, row.Source, what)
	default:
		assert.Equal(t, domain.SourceEstimate, row.Source, what)
		assert.Positive(t, row.Usage.Input(), what)
		assert.Equal(t, a.outcome == domain.OutcomeSuccess, row.Usage.Output > 0, what)
	}
}

// Answers that are mislabelled, empty, cut or otherwise odd pass byte for byte,
// are read all the same, and never look like an answer that they are not.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, way := range []struct{ name, model, proto string }{
		{"HTTP/1.1", "only-a", "HTTP/1.1"},
		{"HTTP/2", "only-tlsa", "HTTP/2.0"},
		{"native", "native", "HTTP/1.1"},
		{"the relay", "muse-tlsa", "HTTP/2.0"},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, "wide", "--policy", "wide").over(clientsByProto[way.proto])
			list := oddAnswers()
			got, nonces := make([]received, len(list)), make([]string, len(list))
			var group errgroup.Group
			group.SetLimit(8)
			for i, a := range list {
				nonces[i] = newNonce()
				group.Go(func() (err error) {
					if got[i], err = a.send(t, c, way.model, nonces[i]); err != nil {
						return fmt.Errorf("%s: %w", a.name, err)
					}
					return nil
				})
			}
			require.NoError(t, group.Wait())
			rows := map[string]domain.UsageRecord{}
			for _, row := range c.requireOneRowEach(t, len(list)) {
				rows[row.RequestID] = row
			}
			for i, a := range list {
				sent := s.seen(t, nonces[i])
				require.Len(t, sent, 1, a.name)
				a.check(t, a.name, got[i], sent[0])
				a.checkRow(t, a.name, rows[got[i].Header.Get("X-Request-Id")])
			}
			c.requireIdle(t)
		})
	}
}
