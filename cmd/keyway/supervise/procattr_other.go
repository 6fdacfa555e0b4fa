//go:build !linux

package supervise

import "syscall"

// childAttributes puts a child into its own process group, so that a terminal's
// Ctrl-C reaches only the supervisor. This system cannot tie a child's life to
// its parent's.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
