package supervise

import "syscall"

// childAttributes puts a child into its own process group, so that a terminal's
// Ctrl-C reaches only the supervisor, which then stops the children in order;
// and lets the kernel kill it when the thread that started it ends, so that
// even a supervisor that was killed leaves no orphan.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
