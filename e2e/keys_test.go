package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// keyCommand runs `keyway key` on the region's store.
func (s *stack) keyCommand(t testing.TB, args ...string) string {
	t.Helper()
	return string(s.cli(t, append(append([]string{"key"}, args...), "--store", s.ready.RedisURL)...))
}

// listed is a key as `keyway key list -o json` shows it; nil when it does not.
func (s *stack) listed(t testing.TB, id string) map[string]any {
	t.Helper()
	for line := range strings.Lines(s.keyCommand(t, "list", "-o", "json")) {
		var k map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &k))
		if k["id"] == id {
			return k
		}
	}
	return nil
}

// rotate gives the key named id a new secret.
func (s *stack) rotate(t testing.TB, id, grace string) (secret string) {
	t.Helper()
	var made struct{ ID, Secret string }
	require.NoError(t, json.Unmarshal([]byte(s.keyCommand(t, "rotate", id, "--grace", grace, "-o", "json")), &made))
	require.Equal(t, id, made.ID)
	require.True(t, domain.WellFormedKey(made.Secret))
	return made.Secret
}

var replicaNames = []string{"one", "two", "three"}

// TestCase066: a key that is blocked works on no replica after a second,
// whatever blocks it; all of them, and the region's own, have it in their caches.
func TestCase066(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	all := s.replicas(t, s.ready.RedisURL, replicaNames)
	for _, act := range [][]string{{"disable"}, {"expire", "now"}, {"delete"}, {"rotate", "--grace", "0"}} {
		t.Run(act[0], func(t *testing.T) {
			secret, id := s.key(t, "--identity", newNonce())
			warm(t, all, secret)
			got, raw := s.post(t, "/v1/chat/completions", secret, chat("m", ""))
			require.Equal(t, http.StatusOK, got.StatusCode, "%s", raw)

			wait := refusals(t, all, secret)
			start := time.Now()
			s.keyCommand(t, append([]string{act[0], id}, act[1:]...)...)
			done := time.Now()
			when := wait()
			t.Logf("%s: the last of %d warm replicas refused the key %s after the command began, %s after it ended",
				act[0], len(all), slowest(when, start).Round(time.Millisecond), slowest(when, done).Round(time.Millisecond))
			assert.LessOrEqual(t, slowest(when, done), time.Second)
			eventually(t, func() bool {
				got, _ := s.post(t, "/v1/chat/completions", secret, chat("m", ""))
				return got.StatusCode == http.StatusUnauthorized
			}, time.Until(done.Add(patience)), time.Millisecond, "through Envoy")
			for _, r := range all {
				status, err := r.status(t.Context(), secret)
				require.NoError(t, err)
				require.Equal(t, http.StatusUnauthorized, status, "%s does not forget it", r.name)
			}
			require.Len(t, s.records(t, id, 1), 1, "what the key did stays in the ledger")
		})
	}
}

// Where the messages of changes are lost, the cache's TTL is the bound.
func TestCase066WithoutMessages(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	const ttl = 2 * time.Second
	for name, p := range map[string]*deafProxy{"no subscription": {}, "a silent subscription": {mute: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startDeafProxy(t, s.ready.RedisURL, p)
			all := s.replicas(t, p.url, replicaNames, "--key-ttl", ttl.String())
			secret, id := s.key(t, "--identity", newNonce())
			warm(t, all, secret)
			wait := refusals(t, all, secret)
			require.NoError(t, s.store.SetKeyState(t.Context(), id, domain.KeyDisabled))
			done := time.Now()
			when := wait()
			t.Logf("with a TTL of %s the last of %d replicas refused the key after %s", ttl, len(all), slowest(when, done).Round(time.Millisecond))
			assert.LessOrEqual(t, slowest(when, done), ttl+time.Second)
			if p.mute {
				assert.GreaterOrEqual(t, p.swallow.Load(), int64(len(all)), "the messages were kept away")
			} else {
				assert.GreaterOrEqual(t, p.cut.Load(), int64(len(all)), "nobody could subscribe")
			}
		})
	}
}

// A message that is lost because the subscription breaks is made up for: who
// subscribes anew reads every key anew.
func TestCase066AfterABrokenSubscription(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	all := s.replicas(t, s.ready.RedisURL, replicaNames)
	options, err := redis.ParseURL(s.ready.RedisURL)
	require.NoError(t, err)
	c := redis.NewClient(options)
	defer c.Close()
	// A good key, first: every replica is subscribed once it hears of a change.
	secret, id := s.key(t, "--identity", newNonce())
	warm(t, all, secret)
	wait := refusals(t, all, secret)
	s.keyCommand(t, "disable", id)
	wait()
	s.keyCommand(t, "enable", id)
	warm(t, all, secret)

	require.NoError(t, c.HSet(t.Context(), "key:"+domain.HashKey(secret), "state", string(domain.KeyDisabled)).Err())
	for _, r := range all {
		status, err := r.status(t.Context(), secret)
		require.NoError(t, err)
		require.Equal(t, http.StatusNotFound, status, "nobody has told %s", r.name)
	}
	wait = refusals(t, all, secret)
	start := time.Now()
	require.NoError(t, c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
	after := slowest(wait(), start)
	t.Logf("the last of %d replicas refused the key %s after its subscription broke", len(all), after.Round(time.Millisecond))
	assert.Less(t, after, patience/2, "long before the TTL of 30 s")
}

// TestCase067: what a key may use is decided by the model that is dispatched,
// and only the body names it.
func TestCase067(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	secret, id := s.key(t, "--identity", newNonce(), "--models", "only-a")
	served := 0
	send := func(name string, r sending) (received, string) {
		r.key, r.nonce = secret, newNonce()
		got := s.send(t, r)
		for _, seen := range s.seen(t, r.nonce) {
			assert.Equal(t, "a", seen.Face, "%s: it reached another model's provider", name)
			assert.Equal(t, "m", seen.Model, name)
			assert.NotContains(t, seen.Query, "model", name)
		}
		return got, r.nonce
	}
	a, b := []byte(messages("only-a", "")), []byte(messages("only-b", ""))
	with := func(body []byte, field string) []byte {
		return append(append(bytes.TrimSuffix(body[:len(body):len(body)], []byte("}")), ","+field...), '}')
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
		for name, r := range map[string]sending{
			"the query names another": {path: path + "?model=only-b&beta=true", body: a},
			"headers name another":    {path: path, body: a, header: http.Header{"X-Model": {"only-b"}, "X-Keyway-Channel": {"b"}, "X-Keyway-Model": {"only-b"}}},
			"a nested field":          {path: path, body: with(a, `"metadata":{"model":"only-b"}`)},
		} {
			got, nonce := send(name, r)
			require.Equal(t, http.StatusOK, got.StatusCode, "%s: %s", name, got.body)
			require.Len(t, s.seen(t, nonce), 1, name)
			served++
		}
		for name, r := range map[string]sending{
			"the body names another":                     {path: path, body: b},
			"the body does, the query an allowed one":    {path: path + "?model=only-a", body: b},
			"the body does, a header an allowed one":     {path: path, body: b, header: http.Header{"X-Model": {"only-a"}}},
			"a longer name":                              {path: path, body: []byte(messages("only-a2", ""))},
			"a shorter name":                             {path: path, body: []byte(messages("only-", ""))},
			"a wildcard":                                 {path: path, body: []byte(messages("only-*", ""))},
			"the model twice":                            {path: path, body: with(a, `"model":"only-b"`)},
			"the model twice, once in disguise":          {path: path, body: with(a, `"mod\u0065l":"only-b"`)},
			"the model twice, once in another case":      {path: path, body: with(a, `"Model":"only-b"`)},
			"a path that names it":                       {path: "/v1/models/only-b" + strings.TrimPrefix(path, "/v1"), body: a},
			"a deployment in the path":                   {path: "/openai/deployments/only-b" + strings.TrimPrefix(path, "/v1"), body: a},
			"a verb after a colon":                       {path: "/v1/models/only-b:generateContent", body: a},
			"a path with dots":                           {path: "/v1/x/.." + strings.TrimPrefix(path, "/v1"), body: b},
			"a form with another model":                  form(path, "only-b"),
			"a form with an allowed one and another one": form(path, "only-a", "only-b"),
		} {
			got, nonce := send(name, r)
			assert.GreaterOrEqual(t, got.StatusCode, 400, "%s: %s", name, got.body)
			assert.Less(t, got.StatusCode, 500, "%s: %s", name, got.body)
			assert.Empty(t, s.seen(t, nonce), name)
		}
	}
	s.records(t, id, served)
}

// form is a multipart body with models.
func form(path string, models ...string) sending {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for _, model := range models {
		_ = w.WriteField("model", model) // A buffer takes everything.
	}
	_ = w.WriteField("prompt", "a picture")
	_ = w.Close()
	return sending{path: path, body: body.Bytes(), header: http.Header{"Content-Type": {w.FormDataContentType()}}}
}

// A pattern allows what it fits, on the name that clients use.
func TestCase067Patterns(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	secret, id := s.key(t, "--identity", newNonce(), "--models", "only-*,two")
	served := 0
	for model, want := range map[string]int{"only-a": 200, "only-b": 200, "two": 200, "m": 404, "two-tls": 404, "narrow": 404} {
		for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
			got := s.send(t, sending{path: path, key: secret, body: []byte(messages(model, ""))})
			require.Equal(t, want, got.StatusCode, "%s: %s", model, got.body)
			if want == 200 {
				served++
			}
		}
	}
	s.records(t, id, served)
	require.Equal(t, []any{"only-*", "two"}, s.listed(t, id)["models"])
}

// TestCase070: whatever is wrong with a key, its secret stands in no log, no
// answer and nothing that the commands print but where it is made.
func TestCase070(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	all, secrets := told{}, []string{}
	newSecret := func(args ...string) (secret, id string) {
		secret, id = s.key(t, append([]string{"--identity", newNonce()}, args...)...)
		secrets = append(secrets, secret)
		return secret, id
	}
	unknown, err := domain.NewKeySecret()
	require.NoError(t, err)
	misspelt := unknown[:len(unknown)-1] + "!"
	secrets = append(secrets, unknown, misspelt)
	type badKey struct {
		secret string
		status int
	}
	bad := []badKey{{unknown, 401}, {misspelt, 401}}
	for _, act := range []string{"disable", "expire", "delete", "rotate"} {
		secret, id := newSecret()
		bad = append(bad, badKey{secret, 401})
		args := map[string][]string{"expire": {"now"}, "rotate": {"--grace", "0"}}[act]
		out := s.keyCommand(t, append([]string{act, id}, args...)...)
		require.NotContains(t, out, secret) // a rotation prints the new one, as it should
	}
	for status, args := range map[int][]string{429: {"--policy", "budget1000"}, 404: {"--models", "two"}} {
		secret, _ := newSecret(args...)
		bad = append(bad, badKey{secret, status})
	}
	for _, key := range bad {
		for path, body := range map[string]string{
			"/v1/chat/completions":                   chat("m", "", `"max_tokens":5000`),
			"/v1/messages":                           chat("m", "", `"max_tokens":5000`),
			"/v1/chat/completions?key=" + key.secret: chat("m", "", `"max_tokens":5000`),
			"/v1/" + key.secret + "/models":          "{}",
			"/v1/models?api_key=" + key.secret:       "{",
			"/v1/completions":                        `{"model":"` + key.secret + `","prompt":""}`,
		} {
			got, err := s.trySend(t, sending{path: path, header: carriers(key.secret), body: []byte(body)})
			require.NoError(t, err)
			if path == "/v1/chat/completions" {
				require.Equal(t, key.status, got.StatusCode, "%s", got.body)
			}
			var head bytes.Buffer
			require.NoError(t, got.Header.Write(&head))
			all.add("answers", append(head.Bytes(), got.body...))
		}
	}
	for _, act := range [][]string{{"disable"}, {"rotate"}, {"expire", "now"}} {
		// The secret where the id should stand.
		args := append([]string{"key", act[0], unknown, "--store", s.ready.RedisURL}, act[1:]...)
		out, err := exec.Command(binary, args...).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "give the key's id")
		all.add("errors of commands", out)
	}
	all.add("keyway key list", []byte(s.keyCommand(t, "list")))
	all.add("keyway key list -o json", []byte(s.keyCommand(t, "list", "-o", "json")))
	all.add("keyway ledger", s.cli(t, "ledger", "-o", "json", "--dir", filepath.Join(s.dir, "up")))
	files, err := filepath.Glob(filepath.Join(s.dir, "up", "log", "*.log"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 6)
	// Envoy writes its log a moment later.
	time.Sleep(200 * time.Millisecond)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		all.add(filepath.Base(file), raw)
	}
	for where, what := range all {
		for _, secret := range secrets {
			// The random part alone would do for a thief who can reckon a checksum.
			assert.NotContains(t, string(what), secret[len(domain.KeyPrefix):len(secret)-6], where)
		}
	}
}

func TestKeyCommands(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	first, id := s.key(t, "--identity", newNonce(), "--policy", "wide", "--models", "only-a", "--name", "of a test")
	served := 0
	ask := func(secret string) int {
		got, _ := s.post(t, "/v1/chat/completions", secret, chat("only-a", ""))
		if got.StatusCode == http.StatusOK {
			served++
		}
		return got.StatusCode
	}
	// Here one authz is asked, which hears of a change at once but not before the command ends.
	becomes := func(secret string, want int, what string) {
		t.Helper()
		eventually(t, func() bool { return ask(secret) == want }, patience, 5*time.Millisecond, what)
	}
	require.Equal(t, 200, ask(first))
	k := s.listed(t, id)
	assert.Equal(t, "active", k["state"])
	assert.Equal(t, "wide", k["policy"])
	for _, field := range []string{"expires_at", "rotated_at", "previous_until"} {
		assert.Contains(t, k, field)
		assert.Nil(t, k[field], field)
	}

	second := s.rotate(t, id, "1h")
	require.Equal(t, 200, ask(second), "a new secret works at once")
	require.Equal(t, 200, ask(first), "the grace")
	k = s.listed(t, id)
	assert.NotNil(t, k["rotated_at"])
	assert.NotNil(t, k["previous_until"])
	third := s.rotate(t, id, "1s")
	becomes(first, 401, "the secret before the previous one has gone")
	becomes(second, 401, "its grace of a second is over")
	require.Equal(t, 200, ask(third))
	assert.Nil(t, s.listed(t, id)["previous_until"])

	assert.Contains(t, s.keyCommand(t, "expire", id, "720h"), id+" expires at ")
	require.Equal(t, 200, ask(third))
	assert.NotNil(t, s.listed(t, id)["expires_at"])
	s.keyCommand(t, "expire", id, "now")
	becomes(third, 401, "it has expired")
	assert.Equal(t, "expired", s.listed(t, id)["state"])
	assert.Contains(t, s.keyCommand(t, "expire", id, "never"), "never expires")
	becomes(third, 200, "it is good again")

	assert.Contains(t, s.keyCommand(t, "disable", id), id+" is disabled")
	becomes(third, 401, "it is disabled")
	assert.Equal(t, "disabled", s.listed(t, id)["state"])
	assert.Contains(t, s.keyCommand(t, "list"), "of a test")
	assert.Contains(t, s.keyCommand(t, "enable", id), id+" is active")
	becomes(third, 200, "it is enabled")

	assert.Contains(t, s.keyCommand(t, "delete", id), id+" is deleted")
	becomes(third, 401, "it is deleted")
	assert.Nil(t, s.listed(t, id))
	for _, r := range s.records(t, id, served) {
		assert.Equal(t, "only-a", r.Model, "the ledger keeps the id, whatever the secret")
	}
	for _, args := range [][]string{{"delete"}, {"enable"}, {"disable"}, {"rotate"}, {"expire", "never"}} {
		args = append([]string{"key", args[0], id, "--store", s.ready.RedisURL}, args[1:]...)
		out, err := exec.Command(binary, args...).CombinedOutput()
		require.Error(t, err)
		assert.Equal(t, fmt.Sprintf("keyway: no key has the id %s; see keyway key list\n", id), string(out))
	}
}

// A key works at once although its secret was refused a moment before.
func TestAKeyThatWasUnknownWorksWhenItIsMade(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	all := s.replicas(t, s.ready.RedisURL, replicaNames)
	known, _ := s.key(t, "--identity", newNonce())
	warm(t, all, known)
	secret, err := domain.NewKeySecret()
	require.NoError(t, err)
	for _, r := range all {
		status, err := r.status(t.Context(), secret)
		require.NoError(t, err)
		require.Equal(t, http.StatusUnauthorized, status)
	}
	require.NoError(t, s.store.PutKey(t.Context(), domain.VirtualKey{
		ID: newNonce(), Hash: domain.HashKey(secret), Identity: newNonce(), State: domain.KeyActive,
	}))
	start := time.Now()
	warm(t, all, secret)
	t.Logf("%d replicas that had refused the secret took it %s after the key was made", len(all), time.Since(start).Round(time.Millisecond))
}
