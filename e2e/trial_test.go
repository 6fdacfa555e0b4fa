package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
)

// However a trial ends, the only channel of a model is no dead end: what showed
// nothing leaves the trial to the next request at once, what the provider
// answered, be it that the request is wrong, ends the cooldown, and what failed
// begins it anew. While one request tries, others are told to come back soon.
func TestHoweverATrialEnds(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	c := s.caller(t, "wide", "--policy", "wide")
	for _, model := range []string{"nap", "nap-early"} {
		known := func() *domain.Cooldown { return s.cooldown(t, "nap-a", model) }
		trial := func(t *testing.T, script string) (*live, ask) {
			t.Helper()
			var l *live
			a := ask{model: model, stream: true, script: script}
			eventually(t, func() bool {
				a.nonce = newNonce()
				var err error
				if l, err = c.open(t.Context(), a); err != nil {
					return false
				}
				if l.StatusCode == http.StatusServiceUnavailable {
					_, err = l.rest()
					require.NoError(t, err)
				}
				return len(s.attempts(a.nonce)) == 1
			}, patience, 20*time.Millisecond, "no request is let through")
			return l, a
		}
		cool := func(t *testing.T) {
			t.Helper()
			_, err := s.store.ResetChannel(t.Context(), "nap-a")
			require.NoError(t, err)
			l, _ := trial(t, `{"status":429,"retry_after":{"seconds":0.2}}`)
			_, err = l.rest()
			require.NoError(t, err)
			eventually(t, func() bool { k := known(); return k != nil && k.Left <= 0 }, patience, 5*time.Millisecond)
		}
		t.Run(model+" wrong request", func(t *testing.T) {
			cool(t)
			l, _ := trial(t, `{"fail":"context_length_exceeded"}`)
			_, err := l.rest()
			require.NoError(t, err)
			require.Equal(t, http.StatusBadRequest, l.StatusCode)
			eventually(t, func() bool { return known() == nil }, patience, 5*time.Millisecond, "the provider works")
		})
		t.Run(model+" redirect", func(t *testing.T) {
			cool(t)
			l, _ := trial(t, `{"status":307}`)
			_, err := l.rest()
			require.NoError(t, err)
			eventually(t, func() bool { k := known(); return k != nil && k.Level == 1 }, patience, 5*time.Millisecond)
		})
		for name, script := range map[string]string{
			"left before the headers": `{"delay_headers_ms":60000}`,
			"left before any output":  `{"delay_first_byte_ms":60000}`,
		} {
			t.Run(fmt.Sprint(model, " ", name), func(t *testing.T) {
				cool(t)
				a := ask{model: model, stream: true, script: script, nonce: newNonce()}
				ctx, leave := withCancel(t)
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					for {
						l, err := c.open(ctx, a)
						if err != nil {
							return
						}
						_, _ = l.rest() // it is left, or was too early for authz
						if l.StatusCode != http.StatusServiceUnavailable {
							return
						}
					}
				}()
				s.awaitUpstream(t, a.nonce, func(fakeprovider.Record) bool { return true })
				eventually(t, func() bool { k := known(); return k != nil && k.TrialLeft > 0 }, patience, 5*time.Millisecond)
				var other received
				eventually(t, func() bool {
					other = c.ask(t, ask{model: model})
					return other.StatusCode == http.StatusServiceUnavailable
				}, patience, 5*time.Millisecond)
				assert.Equal(t, "1", other.Header.Get("Retry-After"))
				leave()
				<-gone
				eventually(t, func() bool { k := known(); return k != nil && k.TrialLeft <= 0 }, lease, 5*time.Millisecond, "the trial is not given back")
				l, _ := trial(t, "")
				_, err := l.rest()
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, l.StatusCode)
				eventually(t, func() bool { return known() == nil }, patience, 5*time.Millisecond)
			})
		}
	}
}
