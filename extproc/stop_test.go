package extproc

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func listenAt(t *testing.T, path string) net.Listener {
	t.Helper()
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	return ln
}

func (f *fakeStore) renewals() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.renewed)
}

// A stream of the relay keeps its lease after gRPC has ended: no stream of the
// watch holds the process up, and the sweeper must not take it for abandoned.
func TestRelayKeepsItsLeaseBeyondTheEndOfGRPC(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	goOn := make(chan struct{})
	egress := &httptest.Server{
		Listener: listenAt(t, filepath.Join(folder, "egress")),
		Config: &http.Server{Protocols: unencrypted(), Handler: fakeEgress{"a": func(w http.ResponseWriter, r *http.Request) {
			sends(0, deltaFrame)(w, r)
			<-goOn
			sends(0, stopFrame, usageFrame, doneFrame)(w, r)
		}}},
	}
	egress.Start()
	t.Cleanup(egress.Close)
	o, store := newOptions(t)
	o.Listener, o.Relay = listenAt(t, filepath.Join(folder, "grpc")), listenAt(t, filepath.Join(folder, "relay"))
	o.Egress, o.StopTimeout = "unix:"+filepath.Join(folder, "egress"), time.Minute
	book := &fakeBook{}
	o.Calibration, o.Cooldowns, o.Learner, o.Probes, o.Followings = &fakeCalibrator{}, book, book, &fakeProbes{}, &fakeFollowers{}
	s, err := New(o)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()

	client := &http.Client{Transport: &http.Transport{Protocols: unencrypted(), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(folder, "relay"))
	}}}
	t.Cleanup(client.CloseIdleConnections)
	d := relayDecision(domain.APIChat)
	d.Lease, d.IdleLimit = 600*time.Millisecond, time.Minute
	answer := callRelay(t.Context(), t, client, d)
	_, err = io.ReadFull(answer.body, make([]byte, 10))
	require.NoError(t, err)
	stop()
	// gRPC has ended when its socket is closed, and then nothing but the relay goes on.
	require.Eventually(t, func() bool {
		conn, err := net.Dial("unix", filepath.Join(folder, "grpc"))
		return err != nil || conn.Close() != nil
	}, 10*time.Second, time.Millisecond)
	before := store.renewals()
	require.Eventually(t, func() bool { return store.renewals() >= before+3 }, 10*time.Second, 5*time.Millisecond, "nobody renews the lease")
	close(goOn)
	_, err = io.Copy(io.Discard, answer.body)
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.Equal(t, domain.OutcomeSuccess, store.get(t, d.RequestID).Record.Outcome)
	require.Zero(t, s.leases.len())
}
