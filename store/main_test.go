package store

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyway/domain"
	"keyway/store/storetest"
)

// sharedURL is the one server that most tests share: each test uses identities
// and channels of its own. "" when there is none.
var sharedURL string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// So many worlds for one look at how many steps were made; conserve goes on
	// until there are enough. A number on the command line still counts.
	if err := flag.Set("rapid.checks", strconv.Itoa(worldsAtOnce)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	flag.Parse()
	sharedURL = os.Getenv("KEYWAY_REDIS_URL")
	if sharedURL == "" {
		server, err := storetest.Launch()
		switch {
		case err == nil:
			sharedURL = server.URL
			defer server.Stop()
		case !errors.Is(err, storetest.ErrMissing):
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if sharedURL != "" {
		s, err := Open(Options{URL: sharedURL})
		if err == nil {
			err = errors.Join(rebuild(s), s.Close())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// shared opens the shared server.
func shared(t testing.TB) *Store {
	t.Helper()
	if sharedURL == "" {
		storetest.Missing(t)
	}
	return open(t, Options{URL: sharedURL})
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// rebuild does what a worker does at the first look at a store, with a ledger
// that has nothing.
func rebuild(s *Store) error {
	lost, err := s.Advance(context.Background(), time.Time{})
	if err != nil {
		return err
	}
	return s.Rebuild(context.Background(), lost, func(context.Context, []string) (domain.BudgetSums, error) {
		return domain.BudgetSums{}, nil
	})
}

// begun opens a server of the test's own whose budgets a worker has looked at.
func begun(t testing.TB, url string) *Store {
	t.Helper()
	s := open(t, Options{URL: url})
	require.NoError(t, rebuild(s))
	return s
}

// unique names something that no other test uses.
func unique(kind string) string { return kind + "-" + rand.Text() }

// tenant is an identity with one key, of one test only.
type tenant struct{ identity, key string }

func newTenant() tenant { return tenant{identity: unique("identity"), key: unique("key")} }

// hold is a hold on the tenant's key.
func (o tenant) hold(kind domain.LimitKind, limit, amount int64) domain.Hold {
	h := domain.Hold{Kind: kind, Scope: domain.ScopeKey, ID: o.key, Limit: limit, Amount: amount}
	switch kind {
	case domain.LimitBudgetDay:
		h.Window = "2026-11-29"
	case domain.LimitBudgetMonth:
		h.Window = "2026-11"
	}
	return h
}

// own is the same hold on the identity itself.
func (o tenant) own(h domain.Hold) domain.Hold {
	h.Scope, h.ID = domain.ScopeIdentity, o.identity
	return h
}

// decide makes a decision with a request id of its own and one channel without slots.
func (o tenant) decide(holds ...domain.Hold) domain.Decision {
	return domain.Decision{
		RequestID: unique("request"), KeyID: o.key, Identity: o.identity, API: domain.APIChat, Model: "m",
		Holds: holds, Candidates: []domain.Candidate{{Channel: unique("channel")}}, Lease: domain.DefaultLease,
	}
}

// ends makes the settlement of d with what it used.
func ends(d domain.Decision, tokens, costMicros int64) domain.Settlement {
	return domain.Settlement{Decision: d, Record: domain.UsageRecord{
		RequestID: d.RequestID, Attempt: 1, KeyID: d.KeyID, Identity: d.Identity, Outcome: domain.OutcomeSuccess,
		Usage: domain.Usage{Output: tokens}, CostMicros: costMicros,
	}}
}

// counters reads what the tenant's buckets and the channels' slots hold, by
// kind and scope: "tpm:key", "slot".
func counters(t testing.TB, s *Store, o tenant, channels ...string) map[string]int64 {
	t.Helper()
	all, err := s.Counters(context.Background(), o.identity, channels...)
	require.NoError(t, err)
	got := map[string]int64{}
	for _, scoped := range []struct {
		name domain.Scope
		id   string
	}{{domain.ScopeKey, o.key}, {domain.ScopeIdentity, o.identity}} {
		for _, kind := range kinds {
			h := o.hold(kind, 1, 1)
			h.Scope, h.ID = scoped.name, scoped.id
			if v := all[bucketKey(o.identity, h)]; v > 0 {
				got[string(kind)+":"+string(scoped.name)] = v
			}
		}
	}
	for _, channel := range channels {
		if v := all[slotKey(channel)]; v > 0 {
			got["slot:"+channel] = v
		}
	}
	return got
}

var kinds = []domain.LimitKind{
	domain.LimitRPM, domain.LimitTPM, domain.LimitInFlight, domain.LimitBudgetDay, domain.LimitBudgetMonth,
}

// admit expects to be admitted.
func admit(t testing.TB, s *Store, d domain.Decision) domain.Admission {
	t.Helper()
	a, err := s.Admit(context.Background(), d)
	require.NoError(t, err)
	require.Nil(t, a.Refusal)
	require.False(t, a.SlotRefused)
	return a
}

// refusal expects to be refused by a limit.
func refusal(t testing.TB, s *Store, d domain.Decision) domain.Refusal {
	t.Helper()
	a, err := s.Admit(context.Background(), d)
	require.NoError(t, err)
	require.NotNil(t, a.Refusal)
	return *a.Refusal
}

// eventually polls; its limit is for machines that have no time at all.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 30*time.Second, 5*time.Millisecond, what)
}
