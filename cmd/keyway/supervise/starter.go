package supervise

import (
	"os/exec"
	"runtime"
)

// starter starts children from one operating-system thread that lives as long
// as the supervisor. The kernel's parent-death signal watches the thread that
// forked, not the process; Go ends idle threads whenever it likes, and would
// take children with them.
type starter struct {
	requests chan startRequest
	ended    chan struct{}
}

type startRequest struct {
	cmd   *exec.Cmd
	reply chan error
}

func newStarter() *starter {
	s := &starter{requests: make(chan startRequest), ended: make(chan struct{})}
	go s.run()
	return s
}

func (s *starter) run() {
	defer close(s.ended)
	runtime.LockOSThread() // Never unlocked: the thread ends with this goroutine.
	for r := range s.requests {
		r.reply <- r.cmd.Start()
	}
}

func (s *starter) start(cmd *exec.Cmd) error {
	reply := make(chan error, 1)
	s.requests <- startRequest{cmd, reply}
	return <-reply
}

// close ends the thread; every child must have ended before.
func (s *starter) close() {
	close(s.requests)
	<-s.ended
}
