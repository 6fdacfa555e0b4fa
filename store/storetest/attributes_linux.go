package storetest

import "syscall"

// attributes lets the server end with the test process, also when that is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
