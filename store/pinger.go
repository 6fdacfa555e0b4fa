package store

import (
	"bytes"
	"context"
	"net"
	"syscall"
	"time"
)

type pingState int

const (
	pingNone     pingState = iota // nothing is on its way
	pingWaiting                   // sent, no answer yet
	pingAnswered                  // an answer came since the last poll
)

// pinger asks one server whether it is there, on a connection of its own. It
// needs no goroutine: poll looks into the kernel's buffer, so that an answer
// counts from when it arrived, not from when a reader was scheduled. The zero
// value is ready; it is not safe for concurrent use.
type pinger struct {
	raw  net.Conn // carries the bytes
	conn net.Conn // raw, or TLS over it
	// waiting is true from a ping to its answer.
	waiting bool
	// sentAt is when the last ping, or the last attempt to dial, began.
	sentAt time.Time
	buf    []byte
}

var pingCommand = []byte("*1\r\n$4\r\nPING\r\n")

// notServing begins the replies of a server that runs and cannot serve yet.
// Every other reply, also one that asks for a password, is a sign of life.
var notServing = [][]byte{[]byte("-LOADING"), []byte("-MASTERDOWN"), []byte("-BUSY ")}

// send pings n unless a ping is on its way; it dials where there is no
// connection. What fails shows as silence.
func (p *pinger) send(ctx context.Context, n *node) {
	if p.waiting {
		return
	}
	p.sentAt = time.Now()
	if p.conn == nil && !p.dial(ctx, n) {
		return
	}
	_ = p.conn.SetWriteDeadline(p.sentAt.Add(tick))
	if _, err := p.conn.Write(pingCommand); err != nil {
		p.close()
		return
	}
	p.waiting = true
}

func (p *pinger) dial(ctx context.Context, n *node) bool {
	ctx, cancel := context.WithTimeout(ctx, probeDial)
	defer cancel()
	raw, err := n.guard.dialer.DialContext(ctx, n.network, n.addr)
	if err != nil {
		return false
	}
	conn, err := n.guard.secure(ctx, raw, n.addr)
	if err != nil {
		_ = raw.Close()
		return false
	}
	p.raw, p.conn, p.buf = raw, conn, nil
	return true
}

// poll looks for the answer without waiting for it.
func (p *pinger) poll() pingState {
	if p.conn == nil || !p.waiting {
		return pingNone
	}
	for p.pending() {
		chunk := make([]byte, 512)
		_ = p.conn.SetReadDeadline(time.Now().Add(tick))
		n, err := p.conn.Read(chunk)
		p.buf = append(p.buf, chunk[:n]...)
		if err != nil {
			p.close()
			return pingNone
		}
		line, rest, whole := bytes.Cut(p.buf, []byte("\r\n"))
		if !whole {
			continue
		}
		p.buf, p.waiting = rest, false
		for _, prefix := range notServing {
			if bytes.HasPrefix(line, prefix) {
				return pingNone
			}
		}
		return pingAnswered
	}
	return pingWaiting
}

// pending reports whether a read of raw would return at once: with bytes or
// with the news that the connection has ended.
func (p *pinger) pending() bool {
	conn, ok := p.raw.(syscall.Conn)
	if !ok {
		return true
	}
	_ = p.raw.SetReadDeadline(time.Time{})
	control, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	ready := true
	err = control.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ready = err != syscall.EAGAIN && err != syscall.EINTR
		return true
	})
	return err != nil || ready
}

func (p *pinger) close() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.raw, p.conn, p.waiting, p.buf = nil, nil, false, nil
}
