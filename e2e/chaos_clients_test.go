package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"
)

// hangLimit is how long a request may take beyond the faults it met and the
// time that its own client dawdled.
const hangLimit = 30 * time.Second

// clients are the connections that all share: requests of every temper meet
// on the same HTTP/2 connections.
type clients struct {
	list []*http.Client
	// last is, by its local address, what an HTTP/1.1 connection carried last.
	last sync.Map
}

func newClients() *clients {
	var h2c http.Protocols
	h2c.SetUnencryptedHTTP2(true)
	list := []*http.Client{{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: chaosClients}}}
	for _, window := range []int{64 << 10, 1 << 20} {
		list = append(list, &http.Client{Transport: &http.Transport{
			DisableCompression: true, Protocols: &h2c,
			// A reader that rests lets the gateway wait: nothing large is taken ahead of it.
			HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: 1 << 30},
		}})
	}
	return &clients{list: list}
}

func (l *clients) close() {
	for _, c := range l.list {
		c.CloseIdleConnections()
	}
}

// pick is one of the clients, and the context in which it notes in s which
// request the connection carried before.
func (l *clients) pick(ctx context.Context, rng *rand.Rand, s *seen) (*http.Client, context.Context) {
	n := rng.IntN(len(l.list))
	if n > 0 { // HTTP/2: what one stream does is not felt by the next.
		return l.list[n], ctx
	}
	return l.list[n], httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		before, _ := l.last.Swap(info.Conn.LocalAddr().String(), s.req.id)
		if info.Reused {
			s.before, _ = before.(string)
		}
	}})
}

// temper is how a client behaves.
type temper int

const (
	// steady sends and reads as fast as it can.
	steady temper = iota
	// slow reads all, a little at a time.
	slow
	// stalled stops reading for a while, then reads on.
	stalled
	// leavesEarly goes soon after it has sent, whatever has come by then.
	leavesEarly
	// leavesMidway goes after a part of the body.
	leavesMidway
	// leavesStalled stops reading, then goes.
	leavesStalled
	// leavesSending goes while its own body is under way.
	leavesSending
)

func pickTemper(rng *rand.Rand) temper {
	switch n := rng.IntN(20); {
	case n < 11:
		return steady
	case n < 12:
		return slow
	case n < 14:
		return stalled
	case n < 15:
		return leavesEarly
	case n < 17:
		return leavesMidway
	case n < 19:
		return leavesStalled
	}
	return leavesSending
}

func (t temper) stays() bool { return t <= stalled }

// seen is one request as its client saw it.
type seen struct {
	req    *chaosRequest
	temper temper
	// before is the id of the request whose HTTP/1.1 connection this one took over.
	before string
	from   time.Time
	to     time.Time
	// dawdled is how long the client itself held the answer up.
	dawdled time.Duration
	// status is 0 when no headers came.
	status     int
	requestID  string
	upstreamID string
	events     bool
	// body is the answer when it came whole; it is dropped once judged.
	body []byte
	size int
	err  error
}

// play is one client: request after request until ctx ends.
func (c *chaos) play(ctx context.Context, rng *rand.Rand) {
	for rest(ctx, upTo(rng, 60*time.Millisecond)) {
		req := c.compose(rng)
		c.judge.saw(c.send(rng, req))
	}
}

// send makes one request and lives through its answer.
func (c *chaos) send(rng *rand.Rand, r *chaosRequest) *seen {
	s := &seen{req: r, temper: pickTemper(rng), from: time.Now()}
	defer func() { s.to = time.Now() }()
	// Twice the limit, so that a hang is seen as one and still ends.
	ctx, leave := context.WithTimeout(context.Background(), 2*hangLimit)
	defer leave()
	body, length := r.reader()
	switch s.temper {
	case leavesEarly:
		time.AfterFunc(upTo(rng, 80*time.Millisecond), leave)
	case leavesSending:
		body = &brokenUpload{Reader: body, left: rng.Int64N(length + 1), pause: upTo(rng, 500*time.Millisecond), leave: leave}
	}
	client, ctx := c.clients.pick(ctx, rng, s)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.stack.ready.BaseURL+r.path, io.NopCloser(body))
	if err != nil {
		s.err = err
		return s
	}
	req.ContentLength = length
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("Idempotency-Key", r.id)
	resp, err := client.Do(req)
	if err != nil {
		s.err = err
		return s
	}
	defer resp.Body.Close()
	s.status = resp.StatusCode
	s.requestID = resp.Header.Get("X-Request-Id")
	s.upstreamID = resp.Header.Get("X-Keyway-Upstream-Request-Id")
	s.events = strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	s.read(rng, resp.Body)
	return s
}

// brokenUpload sends a part of a body, rests, and leaves.
type brokenUpload struct {
	io.Reader
	left  int64
	pause time.Duration
	once  sync.Once
	leave func()
}

// Read implements io.Reader.
func (b *brokenUpload) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.once.Do(func() {
			time.Sleep(b.pause)
			b.leave()
		})
		return 0, context.Canceled
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// read reads the body as the client's temper is.
func (s *seen) read(rng *rand.Rand, body io.Reader) {
	var got bytes.Buffer
	wait := func(d time.Duration) {
		time.Sleep(d)
		s.dawdled += d
	}
	switch s.temper {
	case slow:
		// Past a bound even a slow one hurries: the run must end.
		for range 100 {
			if _, err := io.CopyN(&got, body, 2048+rng.Int64N(16<<10)); err != nil {
				s.finish(&got, err)
				return
			}
			wait(upTo(rng, 20*time.Millisecond))
		}
	case stalled:
		if _, err := io.CopyN(&got, body, rng.Int64N(32<<10)); err != nil {
			s.finish(&got, err)
			return
		}
		wait(upTo(rng, 3*time.Second))
	case leavesMidway:
		_, s.err = io.CopyN(io.Discard, body, rng.Int64N(256<<10))
		return
	case leavesStalled:
		_, s.err = io.CopyN(io.Discard, body, rng.Int64N(32<<10))
		wait(upTo(rng, 3*time.Second))
		return
	}
	_, err := io.Copy(&got, body)
	if err == nil {
		err = io.EOF
	}
	s.finish(&got, err)
}

// finish takes the end of the body: io.EOF is the good one.
func (s *seen) finish(got *bytes.Buffer, err error) {
	if !errors.Is(err, io.EOF) {
		s.err = err
		return
	}
	s.size, s.body = got.Len(), got.Bytes()
}

// upTo is a random duration below d.
func upTo(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
