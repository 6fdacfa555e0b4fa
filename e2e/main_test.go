package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"keyway/domain"
)

// chaosFor is how long the chaos runs: ten seconds with every test run, which
// has to end in ten minutes, and longer by `make chaos`.
var chaosFor = flag.Duration("chaos", 10*time.Second, "how long TestChaos runs")

// drifts is how many requests end in each way in the drills of drift: fifty
// with every test run, a thousand by `make drills`.
var drifts = flag.Int("drifts", 50, "how many requests end in each way in the drills of drift")

// egressForm is the form in which all channels of the test regions go out.
var egressForm = flag.String("egress", string(domain.EgressExtProc), "form of egress of the test regions' channels: ext_proc or native")

// binary is the keyway that all tests run.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "keyway-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make folder for the binary:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "keyway")
	if out, err := exec.Command("go", "build", "-o", binary, "keyway/cmd/keyway").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build keyway: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if shared.stack != nil {
		shared.stack.stop()
		os.RemoveAll(shared.stack.dir)
	}
	return code
}
