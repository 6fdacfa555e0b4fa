package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
)

// unixPrefix begins an address that is a Unix socket's path.
const unixPrefix = "unix:"

// listen opens "host:port" or "unix:/path". A Unix socket is made under another
// name and renamed into place with the first Accept, and never removed: so the
// successor of a running or a killed process takes the path over in one step, one
// that fails at its start leaves it to the predecessor, and a predecessor that
// ends late does not delete the successor's socket.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	path, isUnix := strings.CutPrefix(address, unixPrefix)
	if !isUnix {
		ln, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		return ln, nil
	}
	next := path + ".next"
	if err := os.Remove(next); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	ln, err := config.Listen(ctx, "unix", next)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if socket, ok := ln.(*net.UnixListener); ok {
		socket.SetUnlinkOnClose(false)
	}
	return &unixListener{Listener: ln, next: next, path: path}, nil
}

// unixListener is a socket that gets its name when it is served.
type unixListener struct {
	net.Listener
	next, path string
	onName     func() // nil for nobody
	named      sync.Once
	err        error
}

// Accept implements net.Listener.
func (l *unixListener) Accept() (net.Conn, error) {
	l.named.Do(func() {
		if err := os.Rename(l.next, l.path); err != nil {
			l.err = fmt.Errorf("put socket in place: %w", err)
		} else if l.onName != nil {
			l.onName()
		}
	})
	if l.err != nil {
		return nil, l.err
	}
	return l.Listener.Accept()
}

// Close implements net.Listener.
func (l *unixListener) Close() error {
	var unused error
	l.named.Do(func() { unused, l.err = os.Remove(l.next), net.ErrClosed })
	return errors.Join(l.Listener.Close(), unused)
}

var errNotListening = errors.New("it does not listen yet")

// listen is listen for a service: one that takes a socket over is not ready before
// it has it, so that nobody stops its predecessor too early.
func (p *process) listen(ctx context.Context, check, address string) (net.Listener, error) {
	ln, err := listen(ctx, address)
	if socket, ok := ln.(*unixListener); ok {
		p.health.Set(check, errNotListening)
		socket.onName = func() { p.health.Set(check, nil) }
	}
	return ln, err
}
