package e2e

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// lossyPing is the http2_ping of the provider behind a lossy path.
const lossyPing = 3 * time.Second

// lossyPath passes TCP connections on until it loses them, as a balancer in the
// way does: both sides' packets are still acknowledged, nothing arrives, and
// nobody hears of it.
type lossyPath struct {
	listener net.Listener
	target   string

	mu sync.Mutex
	// links are all connections there were; a lost one passes nothing on.
	links []*link
}

type link struct {
	near, far net.Conn
	mu        sync.Mutex
	lost      bool
}

func startLossyPath(target string) (*lossyPath, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &lossyPath{listener: ln, target: target}
	go p.serve()
	return p, nil
}

// serve ends when the listener closes.
func (p *lossyPath) serve() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		l := &link{near: near, far: far}
		p.mu.Lock()
		p.links = append(p.links, l)
		p.mu.Unlock()
		go l.pass(near, far)
		go l.pass(far, near)
	}
}

func (l *link) pass(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		l.mu.Lock()
		lost := l.lost
		l.mu.Unlock()
		switch {
		case lost && err != nil:
			return
		case lost:
		case err != nil:
			_ = to.Close()
			return
		default:
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

// lose makes every connection of now a dead one, and returns how many there were.
func (p *lossyPath) lose() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		l.mu.Lock()
		l.lost = true
		l.mu.Unlock()
	}
	return len(p.links)
}

// connections is how many there were so far.
func (p *lossyPath) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

func (p *lossyPath) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		_, _ = l.near.Close(), l.far.Close()
	}
}

// A connection to a provider that dies without a word is found by its PING: what
// streams on it ends as cut, a request that waits on it for its headers is served
// by the next channel, and the one after goes over a new connection.
func TestCase093DeadConnection(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	// One connection of the client is one worker of Envoy, which has one
	// connection to the provider.
	transport := clientHTTP2.Transport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	c := s.caller(t, "wide", "--policy", "wide").over(&http.Client{Transport: transport})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	running, err := c.open(ctx, ask{model: "lossy", stream: true, script: `{"count":40,"pauses_ms":{"11":600000}}`})
	require.NoError(t, err)
	running.events(t, 11)
	require.Equal(t, 1, s.lossy.lose())
	lost := time.Now()

	waiting := ask{model: "lossy", nonce: newNonce()}
	got := c.ask(t, waiting)
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	assert.Equal(t, "b", s.facesOf(waiting.nonce), "the first attempt is lost on the way")
	body, err := running.rest()
	assert.True(t, isBroken(err), "the stream seems whole: %v", err)
	assert.NotContains(t, body, "[DONE]")
	found := time.Since(lost)
	t.Logf("found after %s", found.Round(10*time.Millisecond))
	// The PING comes within its interval and a jitter of 15 %; its answer has a third of that.
	assert.Less(t, found, lossyPing*115/100+lossyPing/3+2*time.Second)

	next := ask{model: "lossy", nonce: newNonce()}
	got = c.ask(t, next)
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	assert.Equal(t, "tlsb", s.facesOf(next.nonce))
	assert.Equal(t, 2, s.lossy.connections())

	cut := s.rowOf(t, running.Header.Get("X-Request-Id"))
	assert.Equal(t, domain.OutcomeUpstreamCut, cut.Outcome)
	assert.Equal(t, domain.SourceEstimate, cut.Source)
	assert.Positive(t, cut.Usage.Output)
	rows := c.requireOneRowEach(t, 3)
	assert.Equal(t, map[domain.Outcome]int{domain.OutcomeSuccess: 2, domain.OutcomeUpstreamCut: 1}, counted(rows))
	c.requireIdle(t, "lossy", "lossy-b")
	c.requireBalanced(t, rows)
}
