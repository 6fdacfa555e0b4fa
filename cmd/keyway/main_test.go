package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// keyway runs one command line in this process.
func keyway(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(args, &out, &errs)
	return out.String(), errs.String(), status
}

// walk visits every command that is ours.
func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

func TestHelpIsWorthReading(t *testing.T) {
	t.Parallel()
	walk(newRoot(nil), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		assert.True(t, sentence(cmd.Short), "%s: Short is a sentence: %q", path, cmd.Short)
		assert.Greater(t, len(cmd.Long), len(cmd.Short), "%s says more in Long", path)
		assert.Contains(t, cmd.Example, "  keyway", "%s has an example", path)
		for _, line := range strings.Split(cmd.Long+"\n"+cmd.Example, "\n") {
			assert.LessOrEqual(t, len([]rune(line)), 100, "%s: %q fits a terminal", path, line)
		}
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			if flag.Name == "help" {
				return
			}
			assert.True(t, sentence(flag.Usage), "%s --%s: %q is a sentence", path, flag.Name, flag.Usage)
			assert.NotContains(t, flag.Usage, "`", "%s --%s: a back-quote renames the value in the help", path, flag.Name)
			if variable, ok := flag.Annotations[envAnnotation]; ok {
				assert.Contains(t, flag.Usage, "Environment: "+variable[0]+".", "%s --%s", path, flag.Name)
			}
			if flag.Value.Type() == "duration" {
				assert.Contains(t, flag.Usage, "duration such as", "%s --%s says its form", path, flag.Name)
			}
		})
	})
}

func sentence(text string) bool {
	return text != "" && strings.ToUpper(text[:1]) == text[:1] && strings.HasSuffix(text, ".")
}

func TestEveryCommandOfTheIssueExists(t *testing.T) {
	t.Parallel()
	root := newRoot(nil)
	for _, path := range []string{
		"up", "authz", "extproc", "xds", "worker", "check", "bootstrap", "key create", "key list", "key disable",
		"key enable", "key expire", "key rotate", "key delete",
		"balance show", "balance list", "balance topup", "balance deduct", "ledger", "ledger statement", "ledger correct", "reconcile", "health", "version", "fakeprovider", "parts",
	} {
		cmd, rest, err := root.Find(strings.Fields(path))
		require.NoError(t, err)
		assert.Empty(t, rest, path)
		assert.Equal(t, "keyway "+path, cmd.CommandPath())
	}
	out, _, status := keyway(t, "completion", "bash")
	assert.Zero(t, status)
	assert.Contains(t, out, "__start_keyway")
}

// These set the environment, so they do not run in parallel.

func TestEnvironmentFillsInFlags(t *testing.T) {
	t.Setenv("KEYWAY_NODE", "envoy-from-environment")
	t.Setenv("KEYWAY_REGION", "")
	out, _, status := keyway(t, "bootstrap", "-o", "json")
	require.Zero(t, status)
	assert.Contains(t, out, "envoy-from-environment")
	assert.Contains(t, out, "demo", "an empty variable is as good as none")

	out, _, status = keyway(t, "bootstrap", "--node", "envoy-from-flag")
	require.Zero(t, status)
	assert.Contains(t, out, "envoy-from-flag", "the command line wins")
	assert.NotContains(t, out, "envoy-from-environment")
}

func TestAWrongEnvironmentIsNamedButNotRepeated(t *testing.T) {
	t.Setenv("KEYWAY_PORT", "tcp://hunter2:8080")
	_, errs, status := keyway(t, "up", "--dir", t.TempDir())
	assert.Equal(t, 1, status)
	assert.Contains(t, errs, "KEYWAY_PORT does not fit flag --port (int)")
	assert.NotContains(t, errs, "hunter2")
}

func TestErrorsAreOneClearLine(t *testing.T) {
	rows := []struct {
		name string
		args []string
		want string
	}{
		{"nothing runs", []string{"ledger", "--dir", "/nonexistent"}, "start `keyway up`"},
		{"unknown command", []string{"serve"}, `unknown command "serve"`},
		{"unknown outcome", []string{"ledger", "--outcome", "lost"}, `outcome "lost" is not one of success`},
		{"bad time", []string{"ledger", "--since", "yesterday"}, "neither a duration such as 24h nor a time"},
		{"bad output", []string{"ledger", "-o", "xml"}, `output form "xml" is not known`},
		{"bad key output", []string{"key", "create", "--identity", "a", "-o", "xml"}, `output form "xml" is not known`},
		{"an empty list of models", []string{"key", "create", "--identity", "a", "--models", ""}, "--models is empty"},
		{"an empty model", []string{"key", "create", "--identity", "a", "--models", "m,"}, "a model name is empty"},
		{"bad rotation output", []string{"key", "rotate", "key_1", "-o", "table"}, `output form "table" is not known`},
		{"negative grace", []string{"key", "rotate", "key_1", "--grace", "-1s"}, "--grace -1s is negative"},
		{"bad expiry", []string{"key", "expire", "key_1", "tomorrow"}, "neither now, never"},
		{"past expiry", []string{"key", "expire", "key_1", "2020-01-01T00:00:00Z"}, "lies in the past"},
		{"no key id", []string{"key", "delete"}, "accepts 1 arg"},
		{"key TTL out of bounds", []string{"authz", "--key-ttl", "0"}, "--key-ttl 0s is not positive"},
		{"key without identity", []string{"key", "create"}, "identity"},
		{"no store", []string{"authz"}, envStore},
		{"no ledger", []string{"worker"}, "KEYWAY_LEDGER"},
		{"a webhook without a secret", []string{"worker", "--ledger", "sqlite:x", "--webhook-listen", "127.0.0.1:0"}, "no secret for the webhook"},
		{"a webhook's secret as it is", []string{"worker", "--ledger", "sqlite:x", "--webhook-listen", "127.0.0.1:0", "--webhook-secret", "whsec_x"}, "must be \"env:NAME\" or \"file:PATH\""},
		{"a webhook's currency", []string{"worker", "--ledger", "sqlite:x", "--webhook-listen", "127.0.0.1:0", "--webhook-secret", "env:PATH", "--webhook-currency", "dollars"}, "not a currency such as usd"},
		{"a webhook that listens nowhere", []string{"worker", "--ledger", "sqlite:x", "--webhook-secret", "env:X"}, "without --webhook-listen"},
		{"bad log level", []string{"xds", "--log-level", "loud"}, "--log-level"},
		{"bad address", []string{"bootstrap", "--xds", "nowhere"}, "host:port or unix:/path"},
		{"missing file", []string{"check", "--no-envoy", "/nonexistent.yaml"}, "open configuration"},
	}
	t.Setenv(envStore, "")
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			_, errs, status := keyway(t, row.args...)
			assert.Equal(t, 1, status)
			assert.True(t, strings.HasPrefix(errs, "keyway: "), errs)
			assert.Contains(t, errs, row.want)
			assert.NotContains(t, errs, "Usage:")
		})
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	out, _, status := keyway(t, "version")
	assert.Zero(t, status)
	assert.Regexp(t, `^keyway \S+ go1\S+ \S+/\S+\n$`, out)
}
