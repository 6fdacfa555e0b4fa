package fakeprovider

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a Server.
type Options struct {
	// Faces must be at least one, with distinct names.
	Faces []FaceOptions
	// ControlAddr is where the control paths are served besides the faces; "" is nowhere.
	ControlAddr string
}

// FaceOptions configure one face.
type FaceOptions struct {
	Name string
	// Addr to listen on; "" is a free port of 127.0.0.1.
	Addr string
	// WantKey is the credential that a request must carry; "" asks for none.
	WantKey string
	// TLS serves TLS; nil is cleartext.
	TLS *TLSOptions
	// Script is the sticky script at start; nil is the plain answer.
	Script *Script
}

// TLSOptions configure a face's TLS.
type TLSOptions struct {
	// Names are what the certificate is for, besides localhost and 127.0.0.1.
	Names []string
	// HandshakeDelay passes on every connection before its first byte is read.
	HandshakeDelay time.Duration
	// OnlyHTTP1 offers http/1.1 alone by ALPN; otherwise h2 comes first.
	OnlyHTTP1 bool
}

// Server is a fake provider. Its methods may be called from any goroutine;
// Start and Close once each.
type Server struct {
	faces   []*Face
	control *listenerServer
	log     recordLog
	ca      *authority
	// base is the context of every request; stop ends it.
	base context.Context
	stop context.CancelFunc
	// serving are the accept loops; failed gets the first error of one.
	serving sync.WaitGroup
	failed  chan error
}

// Face is one upstream of a Server.
type Face struct {
	server  *Server
	options FaceOptions
	listenerServer
	handshakeDelay atomic.Int64

	mu     sync.Mutex
	sticky *Script
	queue  []Script
	// kept are stored responses, keptIDs their ids, the oldest first.
	kept    map[string]kept
	keptIDs []string
}

// listenerServer is an HTTP server with its listener.
type listenerServer struct {
	http     *http.Server
	addr     string
	listener net.Listener
}

// New checks options and makes the authority; it listens on nothing yet.
func New(options Options) (*Server, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, fmt.Errorf("make fake provider's authority: %w", err)
	}
	s := &Server{ca: ca, failed: make(chan error, len(options.Faces)+1)}
	s.base, s.stop = context.WithCancel(context.Background())
	if len(options.Faces) == 0 {
		return nil, errors.New("make fake provider: no face")
	}
	for _, o := range options.Faces {
		if s.Face(o.Name) != nil {
			return nil, fmt.Errorf("make fake provider: face %q twice", o.Name)
		}
		f := &Face{server: s, options: o, sticky: o.Script}
		f.listenerServer = listenerServer{addr: o.Addr, http: s.newHTTP(f)}
		if o.TLS != nil {
			f.http.TLSConfig, err = ca.config(*o.TLS)
			if err != nil {
				return nil, fmt.Errorf("make certificate of face %q: %w", o.Name, err)
			}
			f.http.Protocols.SetHTTP2(!o.TLS.OnlyHTTP1)
			f.handshakeDelay.Store(int64(o.TLS.HandshakeDelay))
		}
		s.faces = append(s.faces, f)
	}
	if options.ControlAddr != "" {
		s.control = &listenerServer{addr: options.ControlAddr, http: s.newHTTP(s.controlHandler(nil))}
	}
	return s, nil
}

// maxStreams is the concurrent streams of one HTTP/2 connection, enough for a
// load test through a single one.
const maxStreams = 8192

func (s *Server) newHTTP(h http.Handler) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:     h,
		Protocols:   &protocols,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		BaseContext: func(net.Listener) context.Context { return s.base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		// Broken connections are this server's business, not news.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
}

// Start listens on every address and serves until Close.
func (s *Server) Start() error {
	all := make([]*listenerServer, 0, len(s.faces)+1)
	for _, f := range s.faces {
		all = append(all, &f.listenerServer)
	}
	if s.control != nil {
		all = append(all, s.control)
	}
	for _, ls := range all {
		if err := ls.listen(); err != nil {
			s.Close()
			return err
		}
	}
	for _, f := range s.faces {
		s.serve(&f.listenerServer, func(l net.Listener) error {
			if f.options.TLS == nil {
				return f.http.Serve(l)
			}
			return f.http.ServeTLS(slowListener{Listener: l, face: f}, "", "")
		})
	}
	if s.control != nil {
		s.serve(s.control, s.control.http.Serve)
	}
	return nil
}

func (ls *listenerServer) listen() error {
	addr := ls.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for fake provider on %s: %w", addr, err)
	}
	ls.listener = l
	return nil
}

func (s *Server) serve(ls *listenerServer, accept func(net.Listener) error) {
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		if err := accept(ls.listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serve fake provider on %s: %w", ls.listener.Addr(), err)
		}
	}()
}

// Run starts the server and blocks until ctx ends or an accept loop fails.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Start(); err != nil {
		return err
	}
	defer s.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.failed:
		return err
	}
}

// Close ends every connection at once and waits for the handlers to return.
func (s *Server) Close() {
	s.stop()
	for _, f := range s.faces {
		f.close()
	}
	if s.control != nil {
		s.control.close()
	}
	s.serving.Wait()
	for {
		open, changed := s.log.openCount()
		if open == 0 {
			return
		}
		<-changed
	}
}

func (ls *listenerServer) close() {
	_ = ls.http.Close() // closing is all that is wanted
	if ls.listener != nil {
		_ = ls.listener.Close() // where Serve never took it
	}
}

func (s *Server) stopping() bool { return s.base.Err() != nil }

// Face returns the face of that name; nil when there is none.
func (s *Server) Face(name string) *Face {
	for _, f := range s.faces {
		if f.options.Name == name {
			return f
		}
	}
	return nil
}

// Faces returns all faces in the order of the options.
func (s *Server) Faces() []*Face { return s.faces }

// ControlURL is the base of the control paths: the control address, else the first face.
func (s *Server) ControlURL() string {
	if s.control != nil {
		return "http://" + s.control.listener.Addr().String()
	}
	return s.faces[0].URL()
}

// CAPEM is the certificate that signs every TLS face, in PEM.
func (s *Server) CAPEM() []byte { return s.ca.pem }

// Records returns what was recorded, oldest first.
func (s *Server) Records() []Record {
	records, _ := s.log.snapshot()
	return records
}

// ClearRecords forgets what was recorded.
func (s *Server) ClearRecords() { s.log.clear() }

// WaitRecords returns the records as soon as done is true of them. When ctx
// ends first, the error is its error and the records are the last ones.
func (s *Server) WaitRecords(ctx context.Context, done func([]Record) bool) ([]Record, error) {
	return s.log.wait(ctx, done)
}

// Open is how many requests now run.
func (s *Server) Open() int {
	n, _ := s.log.openCount()
	return n
}

// Name of the face.
func (f *Face) Name() string { return f.options.Name }

// Addr is host:port; only after Start.
func (f *Face) Addr() string { return f.listener.Addr().String() }

// URL is scheme and address, without a path; only after Start.
func (f *Face) URL() string {
	if f.options.TLS != nil {
		return "https://" + f.Addr()
	}
	return "http://" + f.Addr()
}

// Script answers every request of the face by s from now on.
func (f *Face) Script(s Script) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sticky = &s
}

// Enqueue answers the next requests by scripts, one each.
func (f *Face) Enqueue(scripts ...Script) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = append(f.queue, scripts...)
}

// Reset forgets the sticky script and the queue.
func (f *Face) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sticky, f.queue = nil, nil
}

// SetHandshakeDelay changes the delay for new connections of a TLS face.
func (f *Face) SetHandshakeDelay(d time.Duration) { f.handshakeDelay.Store(int64(d)) }

// Records returns the face's records, oldest first.
func (f *Face) Records() []Record {
	var out []Record
	for _, r := range f.server.Records() {
		if r.Face == f.options.Name {
			out = append(out, r)
		}
	}
	return out
}

// next takes the queue's first script, else the sticky one, if it is wanted.
func (f *Face) next(wanted func(Script) bool) (s Script, source string, found bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) > 0 {
		if s = f.queue[0]; wanted(s) {
			f.queue = f.queue[1:]
			return s, "queue", true
		}
		return Script{}, "", false
	}
	if f.sticky != nil && wanted(*f.sticky) {
		return *f.sticky, "sticky", true
	}
	return Script{}, "", false
}

// ServeHTTP implements http.Handler: the control paths and the operations.
func (f *Face) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if isControlPath(r.URL.Path) {
		f.server.controlHandler(f).ServeHTTP(w, r)
		return
	}
	x := &exchange{face: f, w: w, r: r, entry: f.server.log.begin(f.options.Name, r)}
	stop := x.watch()
	end := x.run()
	stop()
	x.entry.finish(end)
	switch end {
	case EndReset:
		resetStream(r)
	case EndDropped:
		dropConn(r)
	case EndPeerLeft, EndStopped:
		panic(http.ErrAbortHandler) // a body that is not complete must not look so
	}
}

type connKey struct{}

// resetStream breaks the answer so that the peer sees a reset: of the stream
// on HTTP/2, of the connection on HTTP/1.1.
func resetStream(r *http.Request) {
	if r.ProtoMajor == 1 {
		if tcp := tcpConn(r); tcp != nil {
			_ = tcp.SetLinger(0) // the close below resets only if this works, and tests see it
			_ = tcp.Close()
		}
	}
	panic(http.ErrAbortHandler)
}

// dropConn closes the connection under the answer.
func dropConn(r *http.Request) {
	if tcp := tcpConn(r); tcp != nil {
		_ = tcp.Close()
	}
	panic(http.ErrAbortHandler)
}

// tcpConn is the TCP connection below TLS and the slow handshake.
func tcpConn(r *http.Request) *net.TCPConn {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if s, ok := c.(*slowConn); ok {
		c = s.Conn
	}
	tcp, _ := c.(*net.TCPConn)
	return tcp
}
