package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"keyway/domain"
	"keyway/envoy"
	"keyway/telemetry"
)

const (
	// relayStreams is how many requests one connection of Envoy's may carry;
	// Envoy sends before it has heard of a smaller number.
	relayStreams = 2000
	// relayReceive bounds what one stream holds of an answer that its client does
	// not take, in bytes. A hundred of them, all that a connection carries, fit
	// into relayReceiveAll, so that stalled streams leave room for others.
	relayReceive    = 32 << 10
	relayReceiveAll = 4<<20 - 1
	// relayBodies bounds the request bodies that wait for a channel's answer.
	relayBodies = 256 << 20
	// relayHeadLimit bounds the wait for a request's headers and body, which
	// Envoy has in full before it calls.
	relayHeadLimit = 10 * time.Second
)

// errRelayFull refuses a body for which there is no room.
var errRelayFull = &domain.Error{
	Code: domain.CodeUnavailable, RetryAfter: time.Second,
	Message: "The gateway holds too many request bodies at the moment; try again in a second.",
}

// relay answers streams of models that think in silence. It is the second door
// to the watch: it can send heartbeats before a channel has answered at all,
// and go to the next channel as long as nothing of an answer has reached the
// client.
type relay struct {
	server *Server
	// egress calls channels through Envoy's egress listener.
	egress *http.Client
	bodies *semaphore.Weighted
}

// newEgressClient makes a client that calls channels at address, "unix:/path".
func newEgressClient(address string) (*http.Client, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return nil, fmt.Errorf("%q is not the address of an egress listener, unix:/path", address)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Protocols: &protocols, DisableCompression: true,
			HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: relayReceive, MaxReceiveBufferPerConnection: relayReceiveAll},
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", path)
			},
		},
	}, nil
}

// run serves Envoy on ln until stopping is closed, and then lets streams run for
// limit. It closes ln.
func (r *relay) run(ln net.Listener, stopping <-chan struct{}, limit time.Duration) error {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: r, Protocols: &protocols, ReadHeaderTimeout: relayHeadLimit,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: relayStreams, MaxReceiveBufferPerConnection: relayReceiveAll},
		ErrorLog: slog.NewLogLogger(r.server.logger.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve relay: %w", err)
	case <-stopping:
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		// What still runs is cut, and settled by its handler.
		r.server.logger.Warn("relay cuts its last streams", telemetry.Err(errors.Join(err, server.Close())))
	}
	<-ended
	r.egress.CloseIdleConnections()
	return nil
}

// ServeHTTP implements http.Handler for Envoy's relay route.
func (r *relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.server.watches.Add(1)
	defer r.server.watches.Done()
	decision, err := envoy.DecodeDecision(req.Header.Get(envoy.HeaderDecision))
	if err != nil {
		r.server.logger.Error("relay was called without a readable decision", telemetry.Err(err))
		http.Error(w, `{"error":{"message":"no decision","type":"server_error"}}`, http.StatusInternalServerError)
		return
	}
	x := &relayed{relay: r, server: r.server, decision: decision, request: req, client: w}
	x.pulse = newPulse(x, decision)
	size := min(max(decision.BodyLen, 1), relayBodies)
	if !r.bodies.TryAcquire(size) {
		x.fail(errRelayFull)
		return
	}
	x.freeBody = func() { r.bodies.Release(size) }
	defer x.dropBody()
	if x.body, err = io.ReadAll(io.LimitReader(req.Body, decision.BodyLen+1)); err != nil || int64(len(x.body)) != decision.BodyLen {
		// Envoy has the whole body before it calls, so the client has left.
		x.leave()
		return
	}
	x.run()
}
