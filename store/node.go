package store

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// node is one server address under the guard.
type node struct {
	guard   *guard
	network string
	addr    string

	// heard counts reads that brought bytes, on any connection.
	heard atomic.Uint64

	// Confined to watch.
	pinger    pinger
	seen      uint64
	silent    int
	crowds    float64 // sum of crowd() over the silent ticks
	prompt    int
	downSince time.Time

	mu    sync.Mutex // guards all below
	down  bool
	conns map[*trackedConn]struct{}
	used  time.Time
}

// trackedConn is a connection whose bytes are counted and which its node can close.
type trackedConn struct {
	net.Conn
	node *node
}

// Read counts every success as a sign of life.
func (c *trackedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.node.heard.Add(1)
	}
	return n, err
}

// Close also forgets the connection.
func (c *trackedConn) Close() error {
	c.node.mu.Lock()
	delete(c.node.conns, c)
	c.node.mu.Unlock()
	return c.Conn.Close()
}

// SyscallConn lets the client's pool see that an idle connection was closed.
func (c *trackedConn) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, syscall.EINVAL
}

// deadConn is a connection that could not be made. SyscallConn lets the client's
// pool see that, should one have come to lie there because its caller had left.
type deadConn struct{ err error }

func (c deadConn) Read([]byte) (int, error)         { return 0, c.err }
func (c deadConn) Write([]byte) (int, error)        { return 0, c.err }
func (c deadConn) Close() error                     { return nil }
func (c deadConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c deadConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c deadConn) SetDeadline(time.Time) error      { return nil }
func (c deadConn) SetReadDeadline(time.Time) error  { return nil }
func (c deadConn) SetWriteDeadline(time.Time) error { return nil }

func (c deadConn) SyscallConn() (syscall.RawConn, error) { return nil, c.err }

func (n *node) isDown() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.down
}

// add registers c; false when the node went down meanwhile.
func (n *node) add(c *trackedConn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return false
	}
	n.conns[c] = struct{}{}
	return true
}

func (n *node) touch() {
	n.mu.Lock()
	n.used = time.Now()
	n.mu.Unlock()
}

func (n *node) idle(since time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns) == 0 && time.Since(n.used) > since
}

// watch probes the node until ctx ends or the node is forgotten.
func (n *node) watch(ctx context.Context) {
	defer n.pinger.close()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		onTime := now.Sub(last) < 2*tick
		last = now
		if n.guard.forget(n) {
			return
		}
		if n.isDown() {
			n.tickDown(ctx)
		} else if n.tickUp(ctx, onTime) {
			n.turnDown()
		}
	}
}

// tickUp reports whether the server has been silent for so many ticks in a row
// that it counts as down.
func (n *node) tickUp(ctx context.Context, onTime bool) bool {
	answered := n.pinger.poll() == pingAnswered
	if heard := n.heard.Load(); answered || heard != n.seen {
		n.silent, n.crowds, n.seen = 0, 0, heard
	} else if onTime {
		n.silence(1)
	}
	began := time.Now()
	n.pinger.send(ctx, n)
	// A dial that hung took ticks with it; they count unless somebody heard something.
	n.silence(int(time.Since(began) / tick))
	if n.silent < silentTicks || n.heard.Load() != n.seen {
		return false
	}
	return n.silent >= patience(n.crowds/float64(n.silent))
}

func (n *node) silence(ticks int) {
	if ticks > 0 {
		n.silent += ticks
		n.crowds += float64(ticks) * crowd()
	}
}

// tickDown turns the node up when the server answers promptly again.
func (n *node) tickDown(ctx context.Context) {
	waited := time.Since(n.pinger.sentAt)
	switch n.pinger.poll() {
	case pingAnswered:
		n.prompt++
		if waited > promptReply {
			n.prompt = 0
		}
		if n.prompt >= promptReplies {
			n.turnUp()
			return
		}
	case pingWaiting:
		if waited < pingPatience {
			return
		}
		n.pinger.close()
	case pingNone:
		if waited < redialEvery {
			return
		}
	}
	n.pinger.send(ctx, n)
}

// turnDown ends every waiting call: first those that wait for a connection,
// then, by closing theirs, those that wait for an answer.
func (n *node) turnDown() {
	n.mu.Lock()
	n.down = true
	conns := n.conns
	n.conns = map[*trackedConn]struct{}{}
	n.mu.Unlock()
	n.prompt, n.downSince = 0, time.Now()
	n.guard.turned()
	for c := range conns {
		_ = c.Conn.Close()
	}
	n.guard.announce(n)
}

func (n *node) turnUp() {
	n.mu.Lock()
	n.down = false
	n.mu.Unlock()
	n.silent, n.crowds, n.seen = 0, 0, n.heard.Load()
	n.guard.turned()
	n.guard.announce(n)
}
