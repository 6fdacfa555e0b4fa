package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
)

// unixPrefix begins an address that is a Unix socket's path.
const unixPrefix = "unix:"

// listen opens "host:port" or "unix:/path". A Unix socket is made under another
// name and renamed into place, and never removed: so the successor of a running
// or a killed process takes the path over in one step, and a predecessor that
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
	if err := os.Rename(next, path); err != nil {
		ln.Close()
		return nil, fmt.Errorf("put socket in place: %w", err)
	}
	return ln, nil
}
