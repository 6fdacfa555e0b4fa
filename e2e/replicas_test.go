package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// replica is an authz process of a test's own, beside the region's, on the
// region's configuration and store.
type replica struct {
	name   string
	client authv3.AuthorizationClient
}

// replicas starts authz processes that reach the store under url.
func (s *stack) replicas(t *testing.T, url string, names []string, args ...string) []replica {
	t.Helper()
	dir, err := os.MkdirTemp("", "kw") // t.TempDir is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var all []replica
	for _, name := range names {
		socket := "unix:" + filepath.Join(dir, name+".sock")
		output := &lockedBuffer{}
		cmd := exec.Command(binary, append([]string{
			"authz", "--listen", socket, "--xds", "unix:" + filepath.Join(s.dir, "up", "run", "xds.sock"), "--region", "test",
			"--node", filepath.Base(dir) + "-" + name, "--metrics", "127.0.0.1:0",
		}, args...)...)
		cmd.Env = append(os.Environ(), "KEYWAY_REDIS_URL="+url)
		cmd.Stdout, cmd.Stderr = output, output
		cmd.SysProcAttr = ownGroup()
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			assert.NoError(t, cmd.Wait(), "authz %s stops well", name)
			if t.Failed() {
				t.Logf("authz %s printed:\n%s", name, output)
			}
		})
		conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		all = append(all, replica{name: name, client: authv3.NewAuthorizationClient(conn)})
	}
	return all
}

// status is what r answers to a request with secret for a model that does not
// exist: 404 when the key is good, 401 when it is not. It leaves nothing behind.
func (r replica) status(ctx context.Context, secret string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := r.client.Check(ctx, &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
			Method: "POST", Path: "/v1/chat/completions", RawBody: []byte(`{"model":"none-such","messages":[]}`),
			Headers: map[string]string{"authorization": "Bearer " + secret, "x-request-id": newNonce()},
		}},
	}}, grpc.WaitForReady(true))
	if err != nil {
		return 0, err
	}
	if answer.GetDeniedResponse() == nil {
		return 0, errors.New("a model that does not exist was admitted")
	}
	return int(answer.GetDeniedResponse().GetStatus().GetCode()), nil
}

// warm lets every replica know the key of secret.
func warm(t *testing.T, all []replica, secret string) {
	t.Helper()
	for _, r := range all {
		var last int
		eventually(t, func() bool {
			var err error
			last, err = r.status(t.Context(), secret)
			return err == nil && last == 404
		}, time.Minute, 20*time.Millisecond, "%s does not take the key", r.name)
	}
}

// refusals polls every replica until it refuses secret. The function it returns
// waits for that and tells when each of them first did.
func refusals(t *testing.T, all []replica, secret string) (wait func() map[string]time.Time) {
	t.Helper()
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		when = map[string]time.Time{}
	)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	for _, r := range all {
		wg.Go(func() {
			for ctx.Err() == nil {
				status, err := r.status(ctx, secret)
				if err == nil && status == 401 {
					mu.Lock()
					defer mu.Unlock()
					when[r.name] = time.Now()
					return
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	return func() map[string]time.Time {
		t.Helper()
		wg.Wait()
		require.Len(t, when, len(all), "some replica never refused the key")
		return when
	}
}

// slowest is how long after start the last of them came.
func slowest(when map[string]time.Time, start time.Time) time.Duration {
	var longest time.Duration
	for _, at := range when {
		longest = max(longest, at.Sub(start))
	}
	return longest
}

// deafProxy stands between authz and its store and keeps the messages of
// changed keys away: it closes every connection that subscribes, or, mute, lets
// it subscribe and swallows what is published.
type deafProxy struct {
	url      string
	mute     bool
	cut      atomic.Int64 // subscriptions refused
	swallow  atomic.Int64 // messages kept away
	upstream string
}

func startDeafProxy(t *testing.T, storeURL string, p *deafProxy) {
	t.Helper()
	rest, ok := strings.CutPrefix(storeURL, "redis://")
	require.True(t, ok, storeURL)
	p.upstream, _, _ = strings.Cut(rest, "/")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p.url = strings.Replace(storeURL, p.upstream, ln.Addr().String(), 1)
	var (
		mu    sync.Mutex
		conns []net.Conn
		wg    sync.WaitGroup
	)
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}
	wg.Go(func() {
		for {
			down, err := ln.Accept()
			if err != nil {
				return
			}
			keep(down)
			wg.Go(func() {
				up, err := net.Dial("tcp", p.upstream)
				if err != nil {
					_ = down.Close()
					return
				}
				keep(up)
				p.join(down, up)
			})
		}
	})
	// After the processes that use it, which were started later, have ended.
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// join passes bytes both ways until one end closes.
func (p *deafProxy) join(down, up net.Conn) {
	var wg sync.WaitGroup
	closeBoth := func() { _, _ = down.Close(), up.Close() }
	wg.Go(func() {
		defer closeBoth()
		p.pass(up, down, func(piece []byte) bool {
			if !p.mute && bytes.Contains(bytes.ToLower(piece), []byte("subscribe")) {
				p.cut.Add(1)
				return false
			}
			return true
		})
	})
	wg.Go(func() {
		defer closeBoth()
		p.pass(down, up, func(piece []byte) bool { return true })
	})
	wg.Wait()
}

// pass copies until take says no. A mute proxy keeps published messages back.
func (p *deafProxy) pass(to io.Writer, from io.Reader, take func([]byte) bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			piece := buf[:n]
			if !take(piece) {
				return
			}
			if p.mute && bytes.HasPrefix(piece, []byte("*3\r\n$7\r\nmessage\r\n")) {
				p.swallow.Add(1)
				continue
			}
			if _, err := to.Write(piece); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
