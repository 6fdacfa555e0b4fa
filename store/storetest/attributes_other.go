//go:build !linux

package storetest

import "syscall"

// attributes is empty where a parent's death cannot be passed on.
func attributes() *syscall.SysProcAttr { return nil }
