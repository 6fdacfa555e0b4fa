package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/ledger"
)

// told collects what a region told or wrote, by where.
type told map[string][]byte

func (d told) add(where string, what []byte) { d[where] = append(append(d[where], what...), '\n') }

// No credential and no prompt stands in anything that a region writes, answers
// or shows, whatever went wrong.
func TestNothingThatIsWrittenHoldsASecret(t *testing.T) {
	s := ownStack(t)
	w := newBadWorld(t, s)
	all := told{}
	secrets := append(misbehave(t, w, all), w.key, w.narrowed, w.disabled, w.expired, w.unknown, badPrompt)
	for _, name := range faceNames {
		secrets = append(secrets, faceKey(name))
	}
	show(t, s, all)
	dumpStore(t, s, all)
	rows := 0
	require.NoError(t, s.ledger.Records(t.Context(), ledger.Query{}, func(r domain.UsageRecord) error {
		raw, err := json.Marshal(r)
		all.add("ledger rows", raw)
		rows++
		return err
	}))
	require.Greater(t, rows, 10, "too little happened")
	demoKey, dir := s.ready.APIKey, s.dir
	output := s.output
	s.stop()
	all.add("what keyway up printed", bytes.ReplaceAll([]byte(output.String()), []byte(demoKey), nil))
	readFiles(t, filepath.Join(dir, "up"), all)

	size := 0
	for where, what := range all {
		size += len(what)
		for _, secret := range secrets {
			at := bytes.Index(what, []byte(secret))
			if !assert.Negative(t, at, "%s holds %q", where, secret) {
				t.Logf("…%q…", what[max(0, at-100):min(len(what), at+100)])
			}
		}
		if demoKey != "" && !strings.Contains(where, "demo-key") && !strings.Contains(where, "ready.json") {
			assert.NotContains(t, string(what), demoKey, where)
		}
	}
	t.Logf("%d secrets sought in %d places, %d bytes", len(secrets), len(all), size)
	for _, where := range []string{"file log/authz.log", "file log/extproc.log", "file log/envoy.log", "file ledger.db", "store key:", "answers", "metrics of authz", "envoy /config_dump"} {
		found := false
		for name := range all {
			found = found || strings.HasPrefix(name, where)
		}
		assert.True(t, found, "%s was not looked at", where)
	}
	// The search finds what is there: the config names the files of the SKs, the store the hashes of the keys.
	assert.Contains(t, string(all["envoy /config_dump"]), "ch_first")
	assert.Contains(t, all, "store key:"+domain.HashKey(w.key))
}

// misbehave goes through every kind of failure and returns the further secrets it used.
func misbehave(t *testing.T, w badWorld, all told) (secrets []string) {
	t.Helper()
	s := w.stack
	keep := func(r received, err error) {
		if err != nil {
			all.add("errors", []byte(err.Error()))
			return
		}
		var head bytes.Buffer
		require.NoError(t, r.Header.Write(&head))
		all.add("answers", append(head.Bytes(), r.body...))
	}
	prompted := func(model, script string, extra ...string) []byte {
		return bytes.Replace([]byte(messages(model, script, extra...)), []byte("Say something."), []byte(badPrompt), 1)
	}
	paths := []string{"/v1/chat/completions", "/v1/messages"}
	for _, path := range paths {
		for _, tc := range badCases(w) {
			keep(s.trySend(t, w.sendingOf(tc, sending{path: path, nonce: "kw-test"})))
		}
	}
	free, _ := s.key(t, "--identity", newNonce())
	narrow, _ := s.key(t, "--identity", newNonce(), "--policy", "rpm1")
	poor, _ := s.key(t, "--identity", newNonce(), "--policy", "budget1000")
	const basic = "c2VjcmV0LWJhc2ljLWNyZWRlbnRpYWxz"
	secrets = append(secrets, free, narrow, poor, basic)
	for _, path := range paths {
		keep(s.trySend(t, sending{path: path, header: http.Header{"Authorization": {"Basic " + basic}}, body: prompted("m", "")}))
		for range 2 {
			keep(s.trySend(t, sending{path: path, key: narrow, body: prompted("m", "")}))
		}
		keep(s.trySend(t, sending{path: path, key: poor, body: bytes.Replace(prompted("m", ""), []byte(`:64`), []byte(`:99999`), 1)}))
		for _, script := range []string{
			`{}`, `{"fail":"rate_limit_exceeded"}`, `{"fail":"insufficient_quota"}`, `{"fail":"server_error"}`, `{"fail":"html"}`, `{"fail":"bad_request"}`,
			`{"status":401,"body":"{\"error\":{\"message\":\"Incorrect API key provided: ` + faceKey("a") + `.\"}}"}`,
			`{"reset_after":{"before_headers":true}}`, `{"reset_after":{"frames":2}}`, `{"drop_after":{"frames":1}}`, `{"close_after":{"frames":2}}`,
			`{"error":{"after_frames":2}}`, `{"terminal":"none"}`, `{"gzip":true}`, `{"usage_form":"none"}`,
		} {
			for _, model := range []string{"two", "only-a", "only-tlsa"} {
				keep(s.trySend(t, sending{path: path + "?key=" + free, header: carriers(free), body: prompted(model, script, asStream)}))
			}
		}
		for _, model := range []string{"m-silent", "m-refused"} {
			keep(s.trySend(t, sending{path: path, key: free, body: prompted(model, `{"only_face":"a","delay_headers_ms":1000}`)}))
		}
		keep(s.trySend(t, sending{path: path, key: free, header: http.Header{"X-Big": {strings.Repeat(free, 2000)}}, body: prompted("m", "")}))
		keep(s.trySend(t, sending{path: path, key: free, body: bigBody("m", "", 33<<20)}))
	}
	leave(t, s, free, prompted("only-a", `{"count":500,"delay_between_ms":20}`, asStream))
	storeAway(t, s, func() {
		for _, path := range paths {
			got, err := s.trySend(t, sending{path: path, key: free, body: prompted("m", "")})
			require.NoError(t, err)
			require.GreaterOrEqual(t, got.StatusCode, 500)
			keep(got, err)
		}
	})
	return secrets
}

// leave reads the beginning of a stream and goes away.
func leave(t *testing.T, s *stack, key string, body []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.ready.BaseURL+"/v1/chat/completions", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("X-Api-Key", key)
	resp, err := client.Do(req)
	require.NoError(t, err)
	_, err = resp.Body.Read(make([]byte, 64))
	require.NoError(t, err)
	cancel()
	_ = resp.Body.Close()
}

// storeAway stops the store around do; a stream that is running then ends meanwhile.
func storeAway(t *testing.T, s *stack, do func()) {
	t.Helper()
	pid := s.ready.PIDs["store"]
	require.Positive(t, pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	// Also when do gives up: a stopped store would not end with its region.
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	do()
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	eventually(t, func() bool { return s.store.Ping(t.Context()) == nil }, 10*time.Second, 20*time.Millisecond)
	eventually(t, func() bool {
		stats, err := s.store.Stats(t.Context())
		return err == nil && stats.OpenReservations == 0 && stats.OutboxLen == 0
	}, 5*lease, 50*time.Millisecond, "the region does not come to rest")
}

// show fetches every page that a region shows.
func show(t *testing.T, s *stack, all told) {
	t.Helper()
	fetch := func(where, url string) {
		resp, err := http.Get(url)
		require.NoError(t, err, where)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		require.NoError(t, err, where)
		all.add(where, raw)
	}
	for name, service := range s.ready.Services {
		fetch("metrics of "+name, service.MetricsURL)
		fetch("readiness of "+name, service.ReadyURL)
	}
	for _, page := range []string{"/config_dump?include_eds", "/stats", "/stats/prometheus", "/clusters", "/listeners", "/server_info", "/init_dump", "/runtime", "/certs"} {
		path, _, _ := strings.Cut(page, "?")
		fetch("envoy "+path, s.ready.EnvoyAdminURL+page)
	}
	for _, args := range [][]string{
		{"key", "list", "-o", "json", "--store", s.ready.RedisURL},
		{"ledger", "-o", "json", "--dir", filepath.Join(s.dir, "up")},
	} {
		all.add("keyway "+args[0], s.cli(t, args...))
	}
}

// dumpStore reads every key of the store with its value.
func dumpStore(t *testing.T, s *stack, all told) {
	t.Helper()
	options, err := redis.ParseURL(s.ready.RedisURL)
	require.NoError(t, err)
	c := redis.NewClient(options)
	defer c.Close()
	ctx := t.Context()
	iter := c.Scan(ctx, 0, "*", 1000).Iterator()
	for iter.Next(ctx) {
		key := iter.Val()
		kind, err := c.Type(ctx, key).Result()
		require.NoError(t, err)
		var value any
		switch kind {
		case "string":
			value, err = c.Get(ctx, key).Result()
		case "hash":
			value, err = c.HGetAll(ctx, key).Result()
		case "zset":
			value, err = c.ZRangeWithScores(ctx, key, 0, -1).Result()
		case "stream":
			value, err = c.XRange(ctx, key, "-", "+").Result()
		case "set":
			value, err = c.SMembers(ctx, key).Result()
		case "list":
			value, err = c.LRange(ctx, key, 0, -1).Result()
		case "none": // expired meanwhile
		default:
			require.Fail(t, "the store holds a "+kind)
		}
		require.NoError(t, err, key)
		all.add("store "+key, fmt.Appendf(nil, "%s %v", key, value))
	}
	require.NoError(t, iter.Err())
}

// readFiles reads every file of a region, the store's own and the journal included.
func readFiles(t *testing.T, dir string, all told) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		all.add("file "+name, raw)
		return err
	}))
}
