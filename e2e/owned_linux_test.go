package e2e

import "syscall"

// ownGroup are the attributes of a process of the tests with a process group of
// its own, which does not get the terminal's signals. It ends with the test
// binary, however that ends, and its children end with it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
