package fakeprovider_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/e2e/fakeprovider"
)

// dialRaw sends one HTTP/1.1 request over a bare connection.
func dialRaw(t *testing.T, f *fakeprovider.Face, body string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", f.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: fake\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(t, err)
	return conn
}

func TestEndsOnHTTP1(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		script fakeprovider.Script
		end    fakeprovider.End
		frames int
		want   error // of the raw connection after its last byte; nil is EOF
		whole  bool  // the chunked body is properly terminated
	}{
		{"reset", fakeprovider.Script{ResetAfter: &fakeprovider.Point{Frames: 3}}, fakeprovider.EndReset, 3, syscall.ECONNRESET, false},
		{"reset at once", fakeprovider.Script{ResetAfter: &fakeprovider.Point{}}, fakeprovider.EndReset, 0, syscall.ECONNRESET, false},
		{"reset before headers", fakeprovider.Script{ResetAfter: &fakeprovider.Point{BeforeHeaders: true}}, fakeprovider.EndReset, 0, syscall.ECONNRESET, false},
		{"drop", fakeprovider.Script{DropAfter: &fakeprovider.Point{Frames: 3}}, fakeprovider.EndDropped, 3, nil, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Face("a").Script(row.script)
			raw, err := io.ReadAll(dialRaw(t, s.Face("a"), chatStream))
			if row.want != nil {
				require.ErrorIs(t, err, row.want)
			} else {
				require.NoError(t, err)
			}
			assert.Equal(t, row.frames, strings.Count(string(raw), "data: "))
			assert.NotContains(t, string(raw), "\r\n0\r\n")
			rec := ended(t, s, 1)
			assert.Equal(t, row.end, rec.End)
			assert.EqualValues(t, row.frames, rec.SentFrames)
			assert.Zero(t, rec.PeerLeftAt)
		})
	}
}

func TestCloseEndsTheBodyProperly(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.Face("a").Script(fakeprovider.Script{CloseAfter: &fakeprovider.Point{Frames: 2}})
	got := post(t, s.Face("a").URL()+"/v1/chat/completions", chatStream)
	require.NoError(t, got.err)
	assert.Equal(t, 2, strings.Count(string(got.body), "data: "))
	assert.Equal(t, fakeprovider.EndClosed, ended(t, s, 1).End)
}

func TestPointInBytes(t *testing.T) {
	t.Parallel()
	s := start(t)
	for n, size := range []int{1, 300, 1000} {
		s.Face("a").Script(fakeprovider.Script{CloseAfter: &fakeprovider.Point{Bytes: size}})
		got := post(t, s.Face("a").URL()+"/v1/chat/completions", chatStream)
		assert.Len(t, got.body, size)
		assert.EqualValues(t, size, ended(t, s, n+1).SentBytes)
	}
}

// chunkSizes reads a response from conn and returns the size of each HTTP/1.1
// chunk, which is the size of each flushed write.
func chunkSizes(t *testing.T, conn net.Conn) []int {
	t.Helper()
	br := bufio.NewReader(conn)
	for {
		line, err := br.ReadString('\n')
		require.NoError(t, err)
		if line == "\r\n" {
			break
		}
	}
	var sizes []int
	for {
		var size int
		_, err := fmt.Fscanf(br, "%x\r\n", &size)
		require.NoError(t, err)
		if size == 0 {
			return sizes
		}
		_, err = br.Discard(size + 2)
		require.NoError(t, err)
		sizes = append(sizes, size)
	}
}

func TestCuts(t *testing.T) {
	t.Parallel()
	frames := []fakeprovider.Bytes{fakeprovider.Bytes("0123456"), fakeprovider.Bytes("789"), fakeprovider.Bytes("abcdefgh")}
	for _, row := range []struct {
		name   string
		script fakeprovider.Script
		want   []int
	}{
		{"uncut", fakeprovider.Script{}, []int{7, 3, 8}},
		{"every 5", fakeprovider.Script{CutEvery: 5}, []int{5, 2, 3, 5, 3}},
		{"every 5, spanning", fakeprovider.Script{CutEvery: 5, Coalesce: true}, []int{5, 5, 5, 3}},
		{"every byte", fakeprovider.Script{CutEvery: 1}, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{"at offsets", fakeprovider.Script{CutAt: []int{2, 8, 12}}, []int{2, 5, 1, 2, 2, 6}},
		{"at offsets, spanning", fakeprovider.Script{CutAt: []int{12, 2}, Coalesce: true}, []int{2, 10, 6}},
		{"one write", fakeprovider.Script{Coalesce: true}, []int{18}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			row.script.Chunks = frames
			s.Face("a").Script(row.script)
			assert.Equal(t, row.want, chunkSizes(t, dialRaw(t, s.Face("a"), chatStream)))
		})
	}
}

func TestPeerLeaves(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		script fakeprovider.Script
		frames int64
	}{
		{"before headers", fakeprovider.Script{DelayHeadersMs: 60_000}, 0},
		{"before the first byte", fakeprovider.Script{DelayFirstByteMs: 60_000}, 0},
		{"between frames", fakeprovider.Script{PausesMs: map[int]int{3: 60_000}}, 3},
		{"in silence", fakeprovider.Script{HangAfter: &fakeprovider.Point{Frames: 2}}, 2},
		{"while its window is full", fakeprovider.Script{DeltaBytes: 32 << 20}, -1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Face("a").Script(row.script)
			conn := dialRaw(t, s.Face("a"), chatStream)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if row.frames > 0 {
				buf := make([]byte, 1)
				_, err := conn.Read(buf)
				require.NoError(t, err)
			}
			_, err := s.WaitRecords(ctx, func(r []fakeprovider.Record) bool { return len(r) == 1 && r[0].BodyBytes > 0 })
			require.NoError(t, err)
			if row.frames >= 0 {
				require.Eventually(t, func() bool { return s.Records()[0].SentFrames == row.frames }, 20*time.Second, time.Millisecond)
			}
			assert.Equal(t, 1, s.Open())
			left := time.Now()
			require.NoError(t, conn.Close())
			rec := ended(t, s, 1)
			assert.Equal(t, fakeprovider.EndPeerLeft, rec.End)
			// Seen at once; the bound is far below every delay of the script and far above a busy machine's hiccup.
			assert.WithinDuration(t, left, rec.PeerLeftAt, 5*time.Second)
			assert.False(t, rec.PeerLeftAt.Before(left))
			assert.Zero(t, s.Open())
		})
	}
}

func h2cClient(t *testing.T) *http.Client {
	t.Helper()
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestCleartextHTTP2(t *testing.T) {
	t.Parallel()
	s := start(t)
	f := s.Face("a")
	c := h2cClient(t)
	got := send(t, c, f.URL()+"/v1/chat/completions", chatStream)
	require.NoError(t, got.err)
	assert.Equal(t, 2, got.ProtoMajor)
	assert.Contains(t, string(got.body), "[DONE]")
	assert.Equal(t, "HTTP/2.0", ended(t, s, 1).Proto)

	t.Run("reset is the stream's alone", func(t *testing.T) {
		f.Enqueue(fakeprovider.Script{ResetAfter: &fakeprovider.Point{Frames: 2}})
		got := send(t, c, f.URL()+"/v1/chat/completions", chatStream)
		require.ErrorContains(t, got.err, "INTERNAL_ERROR")
		assert.Equal(t, 2, strings.Count(string(got.body), "data: "))
		require.NoError(t, send(t, c, f.URL()+"/v1/chat/completions", chatStream).err)
		assert.Equal(t, ended(t, s, 2).Peer, ended(t, s, 3).Peer, "the connection lives on")
	})
	t.Run("cancel is seen", func(t *testing.T) {
		f.Enqueue(fakeprovider.Script{HangAfter: &fakeprovider.Point{Frames: 1}})
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL()+"/v1/chat/completions", strings.NewReader(chatStream))
		require.NoError(t, err)
		resp, err := c.Do(req)
		require.NoError(t, err)
		cancel()
		_ = resp.Body.Close()
		assert.Equal(t, fakeprovider.EndPeerLeft, ended(t, s, 4).End)
	})
	t.Run("drop ends the connection", func(t *testing.T) {
		f.Enqueue(fakeprovider.Script{DropAfter: &fakeprovider.Point{Frames: 1}})
		require.Error(t, send(t, c, f.URL()+"/v1/chat/completions", chatStream).err)
		require.NoError(t, send(t, c, f.URL()+"/v1/chat/completions", chatStream).err)
		assert.NotEqual(t, ended(t, s, 5).Peer, ended(t, s, 6).Peer)
	})
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := start(t, fakeprovider.FaceOptions{Name: "h2", TLS: &fakeprovider.TLSOptions{Names: []string{"fake.test"}}},
		fakeprovider.FaceOptions{Name: "h1", TLS: &fakeprovider.TLSOptions{OnlyHTTP1: true}},
		fakeprovider.FaceOptions{Name: "slow", TLS: &fakeprovider.TLSOptions{HandshakeDelay: 300 * time.Millisecond}})
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(s.CAPEM()))
	https := func(t *testing.T, serverName string) *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: serverName}, ForceAttemptHTTP2: true}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	for _, row := range []struct {
		face, serverName string
		major            int
	}{{"h2", "fake.test", 2}, {"h1", "", 1}} {
		got := send(t, https(t, row.serverName), s.Face(row.face).URL()+"/v1/chat/completions", chatPlain)
		assert.Equal(t, row.major, got.ProtoMajor)
		assert.Equal(t, 200, got.StatusCode)
	}
	assert.True(t, ended(t, s, 1).TLS)

	t.Run("reset below TLS", func(t *testing.T) {
		s.Face("h1").Enqueue(fakeprovider.Script{ResetAfter: &fakeprovider.Point{Frames: 2}})
		got := send(t, https(t, ""), s.Face("h1").URL()+"/v1/chat/completions", chatStream)
		require.ErrorIs(t, got.err, syscall.ECONNRESET)
	})
	t.Run("slow handshake", func(t *testing.T) {
		connected := time.Now()
		conn, err := net.Dial("tcp", s.Face("slow").Addr())
		require.NoError(t, err)
		defer conn.Close()
		tc := tls.Client(conn, &tls.Config{RootCAs: pool, ServerName: "localhost"})
		require.NoError(t, tc.Handshake())
		assert.GreaterOrEqual(t, time.Since(connected), 300*time.Millisecond)
	})
	t.Run("close during a handshake", func(t *testing.T) {
		s.Face("slow").SetHandshakeDelay(time.Hour)
		conn, err := net.Dial("tcp", s.Face("slow").Addr())
		require.NoError(t, err)
		s.Close()
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err = io.ReadAll(conn)
		assert.NotErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, conn.Close())
	})
}

func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.Face("a").Script(fakeprovider.Script{Early: true, Status: 413})
	conn, err := net.Dial("tcp", s.Face("a").Addr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = fmt.Fprint(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: fake\r\nContent-Length: 9000000\r\n\r\n{")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, 413, resp.StatusCode)
}
