package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// portClaim is one port that `keyway up` needs on this machine.
type portClaim struct {
	// wants says who, for a clash's message.
	wants string
	// change says how to choose another.
	change string
	// address is the IP it listens on; "" is loopback.
	address string
	// port is filled in when it is 0.
	port *int
}

const loopback = "127.0.0.1"

// Free ports are taken from below the range from which the kernel gives out
// ports for connections; one of that range could be gone before its owner
// starts.
const (
	freeFrom  = 10_000
	freeTo    = 32_000
	freeTries = 200
)

// settlePorts checks every fixed port and finds one for each 0, before anything
// is started. All clashes are reported at once.
func settlePorts(claims []portClaim) error {
	taken := map[int]string{}
	var errs []error
	for _, c := range claims {
		if *c.port == 0 {
			continue
		}
		other, twice := taken[*c.port]
		switch {
		case *c.port < 0 || *c.port > 65535:
			errs = append(errs, fmt.Errorf("%s wants port %d, which does not exist: choose another with %s", c.wants, *c.port, c.change))
			continue
		case twice:
			errs = append(errs, fmt.Errorf("port %d is wanted by %s and by %s: choose another with %s", *c.port, other, c.wants, c.change))
		case !available(c.address, *c.port):
			errs = append(errs, fmt.Errorf("port %d is in use, and %s wants it: choose another with %s", *c.port, c.wants, c.change))
		}
		taken[*c.port] = c.wants
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, c := range claims {
		if *c.port != 0 {
			continue
		}
		port, err := freePort(taken)
		if err != nil {
			return fmt.Errorf("find a port for %s: %w", c.wants, err)
		}
		*c.port = port
		taken[port] = c.wants
	}
	return nil
}

func freePort(taken map[int]string) (int, error) {
	for range freeTries {
		port := freeFrom + rand.IntN(freeTo-freeFrom)
		if _, used := taken[port]; !used && available(loopback, port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port in %d-%d after %d tries", freeFrom, freeTo, freeTries)
}

func available(address string, port int) bool {
	if address == "" {
		address = loopback
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return ln.Close() == nil
}

func localURL(port int) string { return "http://" + localAddr(port) }

func localAddr(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
