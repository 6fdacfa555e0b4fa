package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85/webhook"

	"keyway/domain"
	"keyway/ledger"
)

// carried is how long a top-up may take to the store. A second is promised and a
// quarter of it usual; the rest is for a machine that is busy with other tests.
const carried = 5 * time.Second

// topUp pays in with the CLI, as an operator would.
func (s *stack) topUp(t testing.TB, identity string, micros int64) {
	t.Helper()
	s.cli(t, "balance", "topup", identity, fmt.Sprintf("0.%06d", micros), "--reference", newNonce(), "--ledger", s.ready.Ledger)
}

// balance is an identity's, by the ledger and as people see it.
func (s *stack) balance(t testing.TB, identity string) (line ledger.BalanceLine) {
	t.Helper()
	out := s.cli(t, "balance", "show", identity, "-o", "json", "--ledger", s.ready.Ledger)
	if len(out) > 0 {
		require.NoError(t, json.Unmarshal(out, &line), "%s", out)
	}
	return line
}

// bookOf is what the store says of a balance: what was paid in, and what is
// spent and held.
func (s *stack) bookOf(t testing.TB, identity string) (credit, used int64) {
	t.Helper()
	book, err := s.store.Budgets(t.Context())
	require.NoError(t, err)
	for _, c := range book.Counters {
		switch c.Name {
		case domain.CreditPrefix + identity:
			credit = c.Micros
		case domain.BalanceCounter(identity):
			used = c.Micros
		}
	}
	return credit, used
}

// awaitCredit waits until the store has been told what was paid in.
func (s *stack) awaitCredit(t testing.TB, identity string, micros int64) {
	t.Helper()
	eventually(t, func() bool {
		credit, _ := s.bookOf(t, identity)
		return credit == micros
	}, patience, 20*time.Millisecond, "%d paid in by %s", micros, identity)
}

// requireNoBalanceDrift waits until store and ledger agree on a balance.
func (s *stack) requireNoBalanceDrift(t testing.TB, identity string) {
	t.Helper()
	names := []string{domain.CreditPrefix + identity, domain.BalanceCounter(identity)}
	var last []domain.BudgetDrift
	eventually(t, func() bool {
		book, err := s.store.Budgets(t.Context())
		require.NoError(t, err)
		sums, err := s.ledger.BudgetSums(t.Context(), domain.MonthBegin(time.Now()), book.PendingRequests())
		require.NoError(t, err)
		last = last[:0]
		agree := true
		for _, d := range book.Compare(sums) {
			if d.Name == names[0] || d.Name == names[1] {
				last = append(last, d)
				agree = agree && d.Micros() == 0 && d.Counter > 0 && d.Held == 0
			}
		}
		return agree && len(last) == len(names)
	}, patience, 50*time.Millisecond, "%+v", &last)
}

// An empty balance is 402 in either dialect and charges nothing; a top-up lets
// requests pass within a second; and of fifty at once that cost 100 each, a
// balance of 1000 pays for ten.
func TestPrepaidBalance(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	for _, tc := range []struct {
		identity string
		api      domain.API
		refused  refusal
	}{
		{
			"prepaid-chat", domain.APIChat,
			refusal{dialect: domain.DialectOpenAI, status: 402, kind: "insufficient_quota", code: "credit_balance_exhausted", hopeless: true},
		},
		{"prepaid-messages", domain.APIMessages, refusal{dialect: domain.DialectAnthropic, status: 402, kind: "billing_error", hopeless: true}},
	} {
		t.Run(tc.identity, func(t *testing.T) {
			t.Parallel()
			c := s.caller(t, tc.identity, "--policy", "wide")
			nonce := newNonce()
			requireRefusal(t, tc.refused, c.ask(t, ask{api: tc.api, model: "m", nonce: nonce}))
			require.Empty(t, c.charges(t), "a refusal takes nothing of any limit")
			require.Empty(t, s.attempts(nonce), "a refused request reached the provider")

			s.topUp(t, tc.identity, 1000)
			paid := time.Now()
			eventually(t, func() bool {
				return c.ask(t, ask{api: tc.api, model: "m"}).StatusCode == http.StatusOK
			}, carried, 20*time.Millisecond, "the top-up lets requests pass")
			t.Logf("served %s after the top-up", time.Since(paid))
			first := s.records(t, c.keyID, 1)[0]
			require.Contains(t, first.Budgets, domain.BalanceCounter(tc.identity))

			s.topUp(t, tc.identity, first.CostMicros)
			s.awaitCredit(t, tc.identity, 1000+first.CostMicros)
			admitted := flood(t, c, costing(t, s, 100, ask{api: tc.api, model: "m", script: holdsOpen}), tc.refused)
			require.Len(t, admitted, 10)
			credit, used := s.bookOf(t, tc.identity)
			require.Equal(t, credit, used, "all of the balance is held or spent")
			for _, l := range admitted {
				l.quit()
			}
			var cost int64
			for _, r := range c.requireOneRowEach(t, 11) {
				cost += r.CostMicros
			}
			s.requireNoBalanceDrift(t, tc.identity)
			_, used = s.bookOf(t, tc.identity)
			require.Equal(t, cost, used)
			require.Equal(t, ledger.BalanceLine{
				Identity: tc.identity, PaidInMicros: credit, SpentMicros: cost, ClosingMicros: credit - cost,
			}, s.balance(t, tc.identity))
		})
	}
}

// flood sends fifty requests at once and returns those that were admitted; the
// others are refused as they should.
func flood(t *testing.T, c *caller, a ask, refused refusal) (admitted []*live) {
	t.Helper()
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	begin := make(chan struct{})
	for range 50 {
		wg.Go(func() {
			<-begin
			l, err := c.open(t.Context(), a)
			if !assert.NoError(t, err) {
				return
			}
			if l.StatusCode == http.StatusOK {
				mu.Lock()
				defer mu.Unlock()
				admitted = append(admitted, l)
				return
			}
			body, err := l.rest()
			if assert.NoError(t, err) {
				requireRefusal(t, refused, received{Response: l.Response, body: []byte(body), trace: "refused"})
			}
		})
	}
	close(begin)
	wg.Wait()
	return admitted
}

// cashier is a worker with a webhook, beside the region's own.
type cashier struct {
	url    string
	secret string
}

var webhookAddress = regexp.MustCompile(`webhook listens.* address=(\S+)`)

func (s *stack) cashier(t *testing.T) cashier {
	t.Helper()
	secrets := filepath.Join(t.TempDir(), "whsec")
	require.NoError(t, os.WriteFile(secrets, []byte("whsec_of_the_test\n"), 0o600))
	name := "cashier-" + newNonce()
	output := &lockedBuffer{}
	cmd := exec.Command(binary, "worker", "--ledger", s.ready.Ledger, "--consumer", name, "--metrics", "127.0.0.1:0",
		"--webhook-listen", "127.0.0.1:0", "--webhook-secret", "file:"+secrets,
		"--xds", "unix:"+filepath.Join(s.dir, "up", "run", "xds.sock"), "--region", "test", "--node", name)
	cmd.Env = append(os.Environ(), "KEYWAY_REDIS_URL="+s.ready.RedisURL)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = ownGroup()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		assert.NoError(t, cmd.Wait(), "the worker stops well")
		if t.Failed() {
			t.Logf("the worker printed:\n%s", output)
		}
	})
	var address []string
	eventually(t, func() bool {
		address = webhookAddress.FindStringSubmatch(output.String())
		return address != nil && strings.Contains(output.String(), "ready")
	}, patience, 20*time.Millisecond, "the webhook listens")
	return cashier{url: "http://" + address[1] + "/webhooks/stripe", secret: "whsec_of_the_test"}
}

// tell sends an event as the payment service does.
func (c cashier) tell(t *testing.T, body, secret string) (status int, answer string) {
	t.Helper()
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url, bytes.NewReader(signed.Payload))
	require.NoError(t, err)
	req.Header.Set("Stripe-Signature", signed.Header)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(raw)
}

// A payment at the payment service becomes money to spend: once, however often it
// is told, and only when it is signed and for somebody who is prepaid.
func TestPaymentsTopUp(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	const identity = "prepaid-web"
	desk := s.cashier(t)
	payment := func(identity string) string {
		return fmt.Sprintf(`{"id":"evt_1","object":"event","type":"payment_intent.succeeded","data":{"object":{
			"id":"pi_%s","object":"payment_intent","amount_received":250,"currency":"usd","metadata":{"keyway_identity":%q}}}}`, newNonce(), identity)
	}
	c := s.caller(t, identity)
	require.Equal(t, http.StatusPaymentRequired, c.ask(t, ask{model: "m"}).StatusCode)

	good := payment(identity)
	status, answer := desk.tell(t, good, "whsec_of_somebody_else")
	require.Equal(t, http.StatusBadRequest, status, answer)
	for _, stranger := range []string{"nobody", "wide"} {
		status, answer = desk.tell(t, payment(stranger), desk.secret)
		require.Equal(t, http.StatusUnprocessableEntity, status, answer)
		require.Zero(t, s.balance(t, stranger).PaidInMicros)
	}
	for _, want := range []string{"added", "known", "known"} {
		status, answer = desk.tell(t, good, desk.secret)
		require.Equal(t, http.StatusOK, status, answer)
		require.JSONEq(t, fmt.Sprintf(`{"result":%q}`, want), answer)
	}
	paid := time.Now()
	require.Equal(t, ledger.BalanceLine{Identity: identity, PaidInMicros: 2_500_000, ClosingMicros: 2_500_000}, s.balance(t, identity))
	eventually(t, func() bool { return c.ask(t, ask{model: "m"}).StatusCode == http.StatusOK }, carried, 20*time.Millisecond)
	t.Logf("served %s after the payment", time.Since(paid))
	s.records(t, c.keyID, 1)
	s.requireNoBalanceDrift(t, identity)
}
