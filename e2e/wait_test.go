package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// eventually asks until the condition holds, at first at once, and fails the
// test when it does not within the limit. It asks on the test's own goroutine:
// testify's Eventually asks on another, which may outlive the test, and a
// condition that fails the test there ends the whole binary.
func eventually(t testing.TB, holds func() bool, limit, pause time.Duration, message ...any) {
	t.Helper()
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(pause) {
		if !time.Now().Before(deadline) {
			require.Fail(t, "not so within "+limit.String(), message...)
		}
	}
}
