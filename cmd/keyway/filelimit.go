package main

import (
	"fmt"
	"syscall"
)

// raiseFileLimit lets the children open as many files as this user may: Envoy
// holds two for each request, and the usual soft limit of 1024 would end at
// some 500 streams. The Go runtime raises it for itself only and gives children
// the old one back, unless the program sets it by its own call.
func raiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the limit of open files to %d: %w", limit.Max, err)
	}
	return nil
}
