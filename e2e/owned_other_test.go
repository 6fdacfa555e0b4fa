//go:build !linux

package e2e

import "syscall"

// ownGroup are the attributes of a process of the tests with a process group of
// its own. Only Linux can tie it to the life of the test binary.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
