package bench

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// upstreamEnv, when set, makes this binary the provider: it must be a process
// of its own for its processor time to be told apart.
const upstreamEnv = "KEYWAY_BENCH_UPSTREAM"

func TestMain(m *testing.M) {
	if addr := os.Getenv(upstreamEnv); addr != "" {
		if err := serveUpstream(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
