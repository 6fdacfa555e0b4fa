package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// Whatever else runs in this form does so by the flag -egress; here is what is
// particular to it.

// Nobody is asked for an attempt of native egress, so the access log has to keep
// the holds of one that waits for longer than a lease.
func TestNativeEgressKeepsTheHoldsOfASilentAttempt(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, newNonce(), "--policy", "flight1")
	answered := make(chan received, 1)
	go func() {
		answered <- c.ask(t, ask{model: "native", script: `{"delay_headers_ms":9000,"usage":{"input_uncached":5,"output":7}}`})
	}()
	for end := time.Now().Add(lease + 3*time.Second); time.Now().Before(end); {
		time.Sleep(lease / 8)
		if leases := c.leases(t); len(leases) == 0 {
			require.Empty(t, answered, "the request has ended: the test proves nothing")
			require.WithinDuration(t, end.Add(-lease-3*time.Second), time.Now(), lease/2, "the hold is gone while the request runs")
		}
	}
	refused := c.ask(t, ask{model: "native"})
	assert.Equal(t, http.StatusTooManyRequests, refused.StatusCode, "%s", refused.body)
	got := <-answered
	require.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body)
	row := c.requireOneRowEach(t, 1)[0]
	assert.Equal(t, domain.OutcomeSuccess, row.Outcome)
	assert.Equal(t, int64(12), row.Usage.InputUncached+row.Usage.Output)
	c.requireIdle(t)
}

// An SK that is taken away is not used any more, and one that comes back is,
// without a change of the configuration.
func TestNativeEgressFollowsItsSecret(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	file := filepath.Join(s.dir, "native.sk")
	c := s.caller(t, newNonce())
	requireStatus := func(want int) {
		t.Helper()
		eventually(t, func() bool { return c.ask(t, ask{model: "native"}).StatusCode == want }, patience, 100*time.Millisecond, "status", want)
	}
	requireStatus(http.StatusOK)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	// Envoy's own refusal may come first; then the channel is withheld.
	eventually(t, func() bool {
		got := c.ask(t, ask{model: "native"})
		return got.StatusCode == http.StatusServiceUnavailable && got.Header.Get("X-Should-Retry") == "false" && strings.Contains(string(got.body), `"error"`)
	}, patience, 100*time.Millisecond, "a refusal that says that waiting is no use")
	require.NoError(t, os.WriteFile(file, []byte("sk-wrong\n"), 0o600))
	requireStatus(http.StatusBadGateway)
	require.NoError(t, os.WriteFile(file, []byte(faceKey("c")+"\n"), 0o600))
	requireStatus(http.StatusOK)
	c.requireIdle(t)
}

// A channel changes its form of egress under its requests, and none of them fails:
// those that were admitted before are of the other form.
func TestEgressChangesItsFormUnderLoad(t *testing.T) {
	t.Parallel()
	s := ownStack(t)
	c := s.caller(t, newNonce())
	native, err := os.ReadFile(s.config)
	require.NoError(t, err)
	const line = "{name: native, egress: native,"
	require.Contains(t, string(native), line)
	other := strings.Replace(string(native), line, "{name: native, egress: ext_proc,", 1)
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for ctx.Err() == nil {
				if got := c.ask(t, ask{model: "native"}); !assert.Equal(t, http.StatusOK, got.StatusCode, "%s", got.body) {
					return
				}
			}
		})
	}
	for i := range 6 {
		content := []string{other, string(native)}[i%2]
		before := s.metric(t, "xds", "keyway_xds_config_version")
		require.NoError(t, os.WriteFile(s.config+".next", []byte(content), 0o600))
		require.NoError(t, os.Rename(s.config+".next", s.config))
		eventually(t, func() bool { return s.metric(t, "xds", "keyway_xds_config_version") > before }, patience, 20*time.Millisecond)
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	asking.Wait()
	c.requireIdle(t)
}
