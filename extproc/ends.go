package extproc

import (
	"sync"
	"time"
)

// ending is what the access log says of a request's end.
type ending struct {
	// byClient: the client's side went first.
	byClient bool
}

// ends joins a watch whose stream was cut with the access-log entry that says
// by whom. It knows only requests that this process watches, so it holds
// nothing that another replica would need; an entry that went elsewhere costs
// the watch its wait, and the cut is then laid to the upstream.
type ends struct {
	mu      sync.Mutex
	waiting map[string]chan ending
}

func newEnds() *ends { return &ends{waiting: make(map[string]chan ending)} }

// expect begins the watch of a request.
func (e *ends) expect(requestID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting[requestID] = make(chan ending, 1)
}

// forget ends it.
func (e *ends) forget(requestID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.waiting, requestID)
}

// tell hands an end to the watch of a request; it reports whether one is there.
func (e *ends) tell(requestID string, end ending) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	waiting, ok := e.waiting[requestID]
	if !ok {
		return false
	}
	select {
	case waiting <- end:
	default: // told before
	}
	return true
}

// wait returns the end of a request, or false when nothing came in time.
func (e *ends) wait(requestID string, limit time.Duration) (ending, bool) {
	e.mu.Lock()
	waiting, ok := e.waiting[requestID]
	e.mu.Unlock()
	if !ok {
		return ending{}, false
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case end := <-waiting:
		return end, true
	case <-timer.C:
		return ending{}, false
	}
}
