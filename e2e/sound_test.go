package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// begin sends r with the caller's key and client, and returns once the headers of
// its answer are there.
func (c *caller) begin(t testing.TB, r sending) *live {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.s.ready.BaseURL+r.path, bytes.NewReader(r.body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	for name, values := range r.header {
		req.Header[name] = values
	}
	req.Header.Set("User-Agent", r.nonce)
	req.Header.Set("Authorization", "Bearer "+c.secret)
	asked := time.Now()
	resp, err := c.http.Do(req)
	require.NoError(t, err)
	return &live{Response: resp, asked: asked, leave: cancel, reader: bufio.NewReader(resp.Body)}
}

// spokenText is what a voice is asked to say; the provider obeys the script in it.
func spokenText(script string) string { return "¡Olé! [[fake:" + script + "]]" }

// saying asks a voice to say a script.
func saying(t testing.TB, model, script string) sending {
	t.Helper()
	body, err := json.Marshal(map[string]string{"model": model, "voice": "alloy", "input": spokenText(script)})
	require.NoError(t, err)
	return sending{path: "/v1/audio/speech", nonce: newNonce(), body: body}
}

// spokenMicros is what a script costs to say, a microunit for each of 15 to a character.
func spokenMicros(script string) int64 { return 15 * int64(len([]rune(spokenText(script)))) }

// lasting is a script of a sound that takes d, of less than ten seconds.
func lasting(d time.Duration) string {
	const format = `{"cut_every":300,"delay_between_ms":%d}`
	writes := len(fakeprovider.Sound(int64(len([]rune(spokenText(fmt.Sprintf(format, 100))))))) / 300
	return fmt.Sprintf(format, int(d/time.Millisecond)/writes)
}

// voices are channels that speak HTTP/1.1 and HTTP/2.
var voices = []string{"a", "tlsa"}

// eachVoice runs a test for both protocols on both sides; version is the client's.
func eachVoice(t *testing.T, test func(t *testing.T, c *caller, face, version string)) {
	s := sharedStack(t)
	for proto, by := range clientsByProto {
		for _, face := range voices {
			t.Run(proto+" to "+face, func(t *testing.T) {
				t.Parallel()
				test(t, s.caller(t, newNonce(), "--policy", "wide").over(by), face, proto[len("HTTP/"):len("HTTP/1")])
			})
		}
	}
}

// A sound counts as in flight, and its limits are held, until its last byte has
// gone out, for how long it may take.
func TestSoundIsHeldUntilItsEnd(t *testing.T) {
	t.Parallel()
	eachVoice(t, func(t *testing.T, c *caller, face, _ string) {
		script := lasting(lease + 2*time.Second)
		r := saying(t, "voice-"+face, script)
		l := c.begin(t, r)
		require.Equal(t, http.StatusOK, l.StatusCode)
		require.Equal(t, "audio/mpeg", l.Header.Get("Content-Type"))
		type result struct {
			body string
			err  error
		}
		ended := make(chan result, 1)
		go func() {
			body, err := l.rest()
			ended <- result{body, err}
		}()
		// The last second is left out: a busy machine may be late to read the end.
		for time.Since(l.asked) < lease+time.Second {
			require.Equal(t, int64(1), c.inFlight(t), "not held %s after the start", time.Since(l.asked))
			require.Empty(t, c.s.recordsNow(t, c.keyID), "settled %s after the start", time.Since(l.asked))
			time.Sleep(50 * time.Millisecond)
		}
		got := <-ended
		require.Greater(t, time.Since(l.asked), lease, "it was too short to prove anything")
		require.NoError(t, got.err)
		assert.Equal(t, c.s.seen(t, r.nonce)[0].SentSHA256, digestOf([]byte(got.body)))
		eventually(t, func() bool { return c.inFlight(t) == 0 }, time.Second, 5*time.Millisecond, "held beyond its end")
		row := c.requireOneRowEach(t, 1)[0]
		assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
		assert.Equal(t, spokenMicros(script), row.CostMicros)
		assert.Equal(t, c.s.seen(t, r.nonce)[0].RequestID, row.UpstreamRequestID)
		assert.Equal(t, []domain.Attempt{{Channel: "voice-" + face, Status: http.StatusOK}}, row.Attempts)
		assert.WithinDuration(t, time.Now(), row.EndedAt, patience)
		assert.Greater(t, row.EndedAt.Sub(row.AdmittedAt), lease)
		c.requireBalanced(t, []domain.UsageRecord{row})
	})
}

// A client that leaves in the middle of a sound is charged for what the provider
// was sent, and is no evidence against the channel.
func TestLeavingASoundIsSettledOnce(t *testing.T) {
	t.Parallel()
	eachVoice(t, func(t *testing.T, c *caller, face, _ string) {
		const script = `{"cut_every":500,"hang_after":{"bytes":2000}}`
		const leaving = 3
		for range leaving {
			r := saying(t, "voice-"+face, script)
			l := c.begin(t, r)
			require.Equal(t, http.StatusOK, l.StatusCode)
			_, err := io.CopyN(io.Discard, l.reader, 1500)
			require.NoError(t, err)
			require.Equal(t, int64(1), c.inFlight(t))
			l.quit()
			rec := c.s.awaitUpstream(t, r.nonce, func(r fakeprovider.Record) bool { return r.End != fakeprovider.EndRunning })
			require.Equal(t, fakeprovider.EndPeerLeft, rec.End)
			eventually(t, func() bool { return c.inFlight(t) == 0 }, time.Second, 5*time.Millisecond, "held though the client has left")
		}
		rows := c.requireOneRowEach(t, leaving)
		for _, row := range rows {
			assert.Equal(t, domain.OutcomeCancelled, row.Outcome)
			assert.Equal(t, http.StatusOK, row.Status)
			assert.Equal(t, spokenMicros(script), row.CostMicros)
		}
		c.requireBalanced(t, rows)
		assert.Nil(t, c.s.cooldown(t, "voice-"+face, "voice-"+face))
	})
}

// A sound that its provider breaks off breaks for the client too, is told apart
// from one whose client left, and is evidence against the channel.
func TestBrokenSoundIsSettledOnce(t *testing.T) {
	t.Parallel()
	eachVoice(t, func(t *testing.T, c *caller, face, version string) {
		ends := []string{"reset_after", "drop_after", "reset_after"}
		cost, model := int64(0), "hoarse-"+version+"-"+face
		for _, end := range ends {
			script := `{"cut_every":500,"delay_between_ms":20,"` + end + `":{"bytes":2000}}`
			cost += spokenMicros(script)
			l := c.begin(t, saying(t, model, script))
			require.Equal(t, http.StatusOK, l.StatusCode)
			body, err := l.rest()
			require.True(t, isBroken(err), "%s: %d bytes, %v", end, len(body), err)
		}
		rows := c.requireOneRowEach(t, len(ends))
		for _, row := range rows {
			assert.Equal(t, domain.OutcomeUpstreamCut, row.Outcome)
			cost -= row.CostMicros
		}
		assert.Zero(t, cost)
		c.requireBalanced(t, rows)
		c.requireIdle(t)
		assert.Equal(t, domain.ReasonUnanswered, c.s.awaitCooldown(t, model, model).Reason)
	})
}

// Every answer that nobody reads ends so, not sound alone.
func TestUnreadAnswersAreHeldUntilTheirEnd(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	const script = `[[fake:{"count":40,"delay_first_byte_ms":100,"cut_every":20,"hang_after":{"bytes":60}}]]`
	for _, tc := range []struct {
		name string
		r    func(t *testing.T) sending
		cost func(row domain.UsageRecord) bool
	}{
		{"a transcript as text", func(t *testing.T) sending {
			return asForm(t, sending{path: "/v1/audio/transcriptions"}, formPart{"file", "a.mp3", "ID3"},
				formPart{name: "prompt", value: script}, formPart{name: "response_format", value: "srt"}, formPart{name: "model", value: "heard"})
		}, func(row domain.UsageRecord) bool { return row.Usage.Tools[domain.ToolAudioSecond] == 1 }},
		{"a count", func(t *testing.T) sending {
			return sending{path: "/v1/messages/count_tokens", body: []byte(messages("m", `{"body":"{\"input_tokens\":  1234567}","cut_every":5,"hang_after":{"bytes":20}}`))}
		}, func(row domain.UsageRecord) bool { return row.CostMicros == 0 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, newNonce(), "--policy", "wide")
			r := tc.r(t)
			r.nonce = newNonce()
			l := c.begin(t, r)
			require.Equal(t, http.StatusOK, l.StatusCode)
			_, err := io.CopyN(io.Discard, l.reader, 15)
			require.NoError(t, err)
			time.Sleep(200 * time.Millisecond) // more than the access log keeps an entry back
			require.Empty(t, s.recordsNow(t, c.keyID), "it is settled")
			l.quit()
			row := c.requireOneRowEach(t, 1)[0]
			assert.Equal(t, domain.OutcomeCancelled, row.Outcome)
			assert.True(t, tc.cost(row), "%+v", row)
			c.requireIdle(t)
		})
	}
}

// Sounds run on while extproc is killed or replaced under them: none is cut, each
// has one row, and nothing stays held. Whoever gets the entry of an end settles it.
func TestSoundsOutliveExtproc(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	start := func(t *testing.T, c *caller, n int, d time.Duration) (ends func() int) {
		var (
			reading sync.WaitGroup
			mu      sync.Mutex
			whole   int
		)
		for i := range n {
			r := saying(t, "voice-"+voices[i/2%2], lasting(d))
			l := c.over(eitherClient(i)).begin(t, r)
			require.Equal(t, http.StatusOK, l.StatusCode)
			reading.Go(func() {
				body, err := l.rest()
				if assert.NoError(t, err) && assert.Equal(t, s.seen(t, r.nonce)[0].SentSHA256, digestOf([]byte(body))) {
					mu.Lock()
					defer mu.Unlock()
					whole++
				}
			})
		}
		return func() int { reading.Wait(); return whole }
	}
	const (
		n     = 20
		lasts = 2*lease + 1500*time.Millisecond
	)
	t.Run("killed", func(t *testing.T) {
		c := s.caller(t, newNonce(), "--policy", "wide")
		ends := start(t, c, n, lease+2*time.Second)
		require.Equal(t, int64(n), c.inFlight(t))
		t.Logf("back after %s", s.kill(t, "extproc"))
		assert.Equal(t, n, ends())
		rows := c.requireOneRowEach(t, n)
		t.Logf("outcomes: %v", counted(rows))
		for _, row := range rows {
			assert.Equal(t, spokenMicros(lasting(lease+2*time.Second)), row.CostMicros, "%s", row.Outcome)
		}
		c.requireIdle(t, "voice-a", "voice-tlsa")
		c.requireBalanced(t, rows)
	})
	t.Run("replaced", func(t *testing.T) {
		c := s.caller(t, newNonce(), "--policy", "wide")
		ends := start(t, c, n, lasts)
		old := s.ready.PIDs["extproc"]
		begun := time.Now()
		stopSuccessor := s.succeed(t, "extproc")
		s.signal(t, "extproc", syscall.SIGTERM)
		s.awaitSuccessor(t, "extproc", old)
		t.Logf("the first was gone after %s", time.Since(begun))
		stopSuccessor()
		require.Less(t, time.Since(begun), lasts-time.Second, "the stops waited for the sounds")
		require.Equal(t, int64(n), c.inFlight(t), "they run and are held")
		assert.Equal(t, n, ends())
		rows := c.requireOneRowEach(t, n)
		assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: n}, counted(rows))
		c.requireIdle(t, "voice-a", "voice-tlsa")
		c.requireBalanced(t, rows)
	})
	s.requireNothingOpen(t)
}
