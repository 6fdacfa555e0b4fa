package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	// Budgets run on calendars of named zones, and a small image has no zone files.
	_ "time/tzdata"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns the exit status: 0, or 1 for any
// error. The first SIGINT or SIGTERM asks the command to end, the second makes
// it hurry.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, hurry, release := stopSignals()
	defer release()

	root := newRoot(hurry)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		if !errors.Is(err, errSilent) {
			fmt.Fprintf(stderr, "keyway: %v\n", err)
		}
		return 1
	}
	return 0
}

// errSilent ends a command with status 1 after it has said everything itself.
var errSilent = errors.New("already reported")

// stopSignals returns a context that ends with the first stop signal and a
// channel that closes with the second.
func stopSignals() (ctx context.Context, hurry <-chan struct{}, release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	second := make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	released := make(chan struct{})
	go func() {
		for seen := 0; ; {
			select {
			case <-released:
				return
			case <-signals:
			}
			switch seen++; seen {
			case 1:
				cancel()
			case 2:
				close(second)
			}
		}
	}()
	return ctx, second, func() {
		signal.Stop(signals)
		close(released)
		cancel()
	}
}
