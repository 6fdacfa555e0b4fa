package store

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"keyway/domain"
)

// The numbers of the guard. A frozen server is found after about
// (silentTicks+1) × tick = 60 ms, within the 100 ms that the specification
// promises; beside a crowd of threads, where a server that only waits for its
// turn looks the same, it takes up to maxSilentTicks.
const (
	tick = 10 * time.Millisecond
	// silentTicks in a row, each run on time and without one byte from the
	// server, are a verdict. Ticks are counted, not time: a process that gets no
	// CPU ticks less, and so does not take its own starvation for the store's.
	silentTicks    = 5
	maxSilentTicks = 30
	// promptReply is what a server that was down must keep, promptReplies times
	// in a row, to be up again: one that is merely slow does not flap.
	promptReply   = 50 * time.Millisecond
	promptReplies = 2
	redialEvery   = 50 * time.Millisecond
	probeDial     = 50 * time.Millisecond
	// pingPatience is how long a ping to a server that is down may stay
	// unanswered before its connection is taken for dead. It is long, because a
	// frozen server still accepts connections and queues them up.
	pingPatience = time.Second
	// forgetAfter is when an address without connections and dials is dropped.
	forgetAfter = time.Minute
)

// guard knows whether the servers answer. It dials every connection, so that
// it hears every byte that comes back, and can end the waiting of all calls at
// once when a server freezes: TCP alone would let them hang.
//
//	up ── silentTicks without a byte ──► down ── promptReplies ──► up
//	      close its connections                  allow dials
type guard struct {
	log      *slog.Logger
	tls      *tls.Config
	dialer   net.Dialer
	onChange func()

	probers sync.WaitGroup

	mu sync.Mutex // guards all below
	// ctx bounds the probers; nil before Start and after Close.
	ctx    context.Context
	cancel context.CancelFunc
	nodes  map[string]*node
	// epoch is cancelled, with domain.ErrStoreDown as the cause, when the last
	// server that was up goes down.
	epoch    context.Context
	endEpoch context.CancelCauseFunc
}

func newGuard(o Options) *guard {
	g := &guard{
		log:      o.Log,
		dialer:   net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second},
		onChange: o.OnChange,
		nodes:    map[string]*node{},
	}
	g.epoch, g.endEpoch = context.WithCancelCause(context.Background())
	return g
}

// start begins to probe every address dialled so far and later, until ctx ends
// or close is called.
func (g *guard) start(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx != nil {
		return
	}
	g.ctx, g.cancel = context.WithCancel(ctx)
	for _, n := range g.nodes {
		g.probe(n)
	}
}

// close stops the probers and waits for them.
func (g *guard) close() {
	g.mu.Lock()
	if g.cancel != nil {
		g.cancel()
	}
	g.mu.Unlock()
	g.probers.Wait()
}

// probe runs the prober of n. The caller holds mu.
func (g *guard) probe(n *node) {
	ctx := g.ctx
	if ctx == nil || ctx.Err() != nil {
		return
	}
	g.probers.Go(func() { n.watch(ctx) })
}

// enter is the gate of every call: it fails at once while the store is down,
// and the context it returns ends when the store goes down. leave must be called.
func (g *guard) enter(ctx context.Context) (entered context.Context, leave func(), err error) {
	g.mu.Lock()
	epoch := g.epoch
	g.mu.Unlock()
	if epoch.Err() != nil {
		return ctx, func() {}, domain.ErrStoreDown
	}
	entered, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(epoch, func() { cancel(domain.ErrStoreDown) })
	return entered, func() { stop(); cancel(nil) }, nil
}

// alive reports whether any server is up; true as long as nothing is known.
func (g *guard) alive() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.epoch.Err() == nil
}

// dial makes a connection for the client. What fails becomes a connection that
// fails: the client's pool answers a number of failed dials with a pause of a
// second, which would outlast the return of the store.
func (g *guard) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := g.connect(ctx, network, addr)
	if err != nil {
		return deadConn{fmt.Errorf("connect to %s: %w", addr, err)}, nil
	}
	return conn, nil
}

// connect fails at once when the address is down.
func (g *guard) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	n := g.node(network, addr)
	if n.isDown() {
		return nil, domain.ErrStoreDown
	}
	raw, err := g.dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	conn := &trackedConn{Conn: raw, node: n}
	if !n.add(conn) {
		_ = raw.Close()
		return nil, domain.ErrStoreDown
	}
	return g.secure(ctx, conn, addr)
}

// secure puts TLS on conn where the URL asks for it.
func (g *guard) secure(ctx context.Context, conn net.Conn, addr string) (net.Conn, error) {
	if g.tls == nil {
		return conn, nil
	}
	cfg := g.tls.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secured := tls.Client(conn, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("shake hands: %w", err)
	}
	return secured, nil
}

func (g *guard) node(network, addr string) *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[addr]
	if n == nil {
		n = &node{guard: g, network: network, addr: addr, conns: map[*trackedConn]struct{}{}}
		g.nodes[addr] = n
		g.probe(n)
	}
	n.touch()
	return n
}

// judge recomputes the verdict on the store from those on its servers. The
// caller holds mu.
func (g *guard) judge() {
	anyUp := len(g.nodes) == 0
	for _, each := range g.nodes {
		anyUp = anyUp || !each.isDown()
	}
	switch up := g.epoch.Err() == nil; {
	case up && !anyUp:
		g.endEpoch(domain.ErrStoreDown)
	case !up && anyUp:
		g.epoch, g.endEpoch = context.WithCancelCause(context.Background())
	}
}

// turned takes in that the verdict on a node changed.
func (g *guard) turned() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.judge()
}

// announce tells people and the owner, once for each change.
func (g *guard) announce(n *node) {
	if n.isDown() {
		g.log.Warn("store does not answer, calls fail at once until it does", "addr", n.addr)
	} else {
		g.log.Info("store answers again", "addr", n.addr, "away", time.Since(n.downSince))
	}
	if g.onChange != nil {
		g.onChange()
	}
}

// forget drops n when nothing has used its address for long, such as a node
// that left its cluster. The last address stays: it is what Alive speaks of.
func (g *guard) forget(n *node) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.nodes) < 2 || !n.idle(forgetAfter) {
		return false
	}
	delete(g.nodes, n.addr)
	g.judge()
	return true
}
