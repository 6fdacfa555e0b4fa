package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"keyway/e2e/fakeprovider"
)

// recordLimit is how long the provider's side of a request may take to end
// after the client's.
const recordLimit = 2 * hangLimit

// judge compares what clients saw with what the provider did.
type judge struct {
	provider *fakeprovider.Server
	faults   *faultLog
	// slow explains only refusals of the gateway's own.
	slow *faultLog

	mu       sync.Mutex
	pending  []*seen
	problems []string

	// The rest belongs to run's goroutine until it ends.

	// attempts are the provider's records by the client's id of the request.
	attempts map[string][]fakeprovider.Record
	// reached are the gateway's ids of the requests that a provider got or
	// that were answered by one; charged are those whose cost is known.
	reached map[string]bool
	charged map[string]int64
	// dropped are the connections that the provider dropped, and when.
	dropped map[string]time.Time
	lastID  uint64
	exact   int
	errors  int
	excused int
	cut     int
	left    int
}

func newJudge(c *chaos) *judge {
	return &judge{provider: c.stack.provider, faults: c.faults, slow: c.slow, reached: map[string]bool{}, charged: map[string]int64{}, dropped: map[string]time.Time{}}
}

// fail notes a problem; the test fails with all of them at its end.
func (j *judge) fail(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.problems = append(j.problems, fmt.Sprintf(format, args...))
}

// saw takes a request that has ended for its client.
func (j *judge) saw(s *seen) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pending = append(j.pending, s)
}

// run judges until stop is closed and nothing is pending.
func (j *judge) run(stop <-chan struct{}) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for stopped := false; ; {
		select {
		case <-ticker.C:
		case <-stop:
			stopped, stop = true, nil
		}
		if j.round() == 0 && stopped {
			return
		}
	}
}

// round judges what can be judged and returns how much stays pending.
func (j *judge) round() int {
	j.mu.Lock()
	pending := j.pending
	j.pending = nil
	j.mu.Unlock()
	j.attempts = map[string][]fakeprovider.Record{}
	for _, r := range j.provider.Records() {
		id := r.Header.Get("Idempotency-Key")
		j.attempts[id] = append(j.attempts[id], r)
		if r.End == fakeprovider.EndDropped {
			j.dropped[r.Peer] = r.EndedAt
		}
		if r.ID > j.lastID {
			j.lastID = r.ID
			if id := r.Header.Get("X-Request-Id"); !strings.HasPrefix(id, "probe-") { // the region's own
				j.reached[id] = true
			}
		}
	}
	var undecided []*seen
	for _, s := range pending {
		if !j.decide(s, j.attempts[s.req.id]) {
			undecided = append(undecided, s)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pending = append(j.pending, undecided...)
	return len(j.pending)
}

// decide judges one request by its attempts; false when they still run.
func (j *judge) decide(s *seen, attempts []fakeprovider.Record) bool {
	for _, a := range attempts {
		if a.End == fakeprovider.EndRunning {
			if time.Since(s.to) < recordLimit {
				return false
			}
			j.fail("%s runs at the provider %s after its client's end", describe(s, attempts), recordLimit)
			return true
		}
	}
	fault := j.faults.during(s.from, s.to)
	if took := s.to.Sub(s.from) - s.dawdled - fault; took > hangLimit {
		j.fail("%s hung for %s", describe(s, attempts), took)
	}
	j.bodies(s, attempts)
	switch {
	case !s.temper.stays():
		j.left++
	case s.err != nil || s.status == 0:
		j.broken(s, attempts, fault)
	case s.upstreamID == "":
		j.ownError(s, attempts, fault)
	default:
		j.answer(s, attempts, fault)
	}
	return true
}

// bodies checks what each attempt sent: the client's body with the channel's own model name.
func (j *judge) bodies(s *seen, attempts []fakeprovider.Record) {
	for _, a := range attempts {
		if a.BodySHA256 == "" {
			continue // answered, or left, before it was read
		}
		if a.Model != "" && !slices.Contains(s.req.upstreamNames(a.Face), a.Model) || a.BodySHA256 != s.req.patchedDigest(a.Model) {
			j.fail("%s: the provider got a wrong body (model %q, %d bytes)", describe(s, attempts), a.Model, a.BodyBytes)
		}
	}
}

// broken: the client stayed and its answer did not come whole. Either a fault
// or the provider itself must have broken it, or the answer before it on its
// HTTP/1.1 connection: a client that has the last byte of a known length takes
// the connection for free, while the gateway still waits for the provider's end
// of stream and closes the connection when a reset comes in its place.
func (j *judge) broken(s *seen, attempts []fakeprovider.Record, fault time.Duration) {
	j.cut++
	inherited := s.status == 0 && len(attempts) == 0 && j.brokeLast(s, j.attempts[s.before])
	if fault == 0 && !j.brokeLast(s, attempts) && !inherited {
		j.fail("%s was cut for no reason: %v", describe(s, attempts), s.err)
	}
}

// ownError: the gateway itself answered.
func (j *judge) ownError(s *seen, attempts []fakeprovider.Record, fault time.Duration) {
	switch {
	case s.status < 400:
		j.fail("%s: an answer that no provider gave", describe(s, attempts))
	case s.req.hopeless && len(attempts) < maxAttempts && j.droppedDuring(s):
		// The last attempt was on its way when its connection was dropped.
	case fault == 0 && j.slow.during(s.from, s.to) == 0 && !j.brokeLast(s, attempts):
		j.fail("%s: an error for no reason: %s", describe(s, attempts), s.body)
	}
	j.excused++
}

// answer: a provider's answer came whole. It must be what was sent.
func (j *judge) answer(s *seen, attempts []fakeprovider.Record, fault time.Duration) {
	at := slices.IndexFunc(attempts, func(a fakeprovider.Record) bool { return a.RequestID == s.upstreamID })
	if at < 0 {
		j.fail("%s: the provider knows nothing of %s", describe(s, attempts), s.upstreamID)
		return
	}
	a := attempts[at]
	// A body of a known length is whole with its last byte, whatever follows.
	whole := a.End == fakeprovider.EndCompleted || !s.events
	if a.Status != s.status || a.SentSHA256 != s.sentDigest(a) || !whole {
		j.fail("%s: wrong answer: %d bytes against %d sent with status %d, which ended as %q",
			describe(s, attempts), s.size, a.SentBytes, a.Status, a.End)
		return
	}
	switch {
	case s.status < 400:
		j.exact++
		if fault == 0 {
			j.charged[s.requestID] = s.cost(a)
		}
	case s.req.hopeless:
		j.errors++
	case fault == 0 && !(len(attempts) == maxAttempts && j.brokeAny(s, attempts)):
		j.fail("%s: another channel could have served", describe(s, attempts))
	default:
		j.excused++
	}
}

// maxAttempts is how many channels a request tries.
const maxAttempts = 4

// broke reports whether the provider broke an attempt off: by itself, or by
// dropping the HTTP/2 connection that it shared, with what was still on its way
// to the client.
func (j *judge) broke(s *seen, a fakeprovider.Record) bool {
	switch a.End {
	case fakeprovider.EndReset, fakeprovider.EndDropped:
		return true
	case fakeprovider.EndPeerLeft, fakeprovider.EndCompleted:
		dropped, ok := j.dropped[a.Peer]
		return ok && a.Proto == "HTTP/2.0" && dropped.After(a.EndedAt.Add(-time.Second)) && dropped.Before(s.to.Add(time.Second))
	}
	return false
}

// droppedDuring reports whether the provider dropped a connection while s ran,
// so that an attempt may have got lost of which the provider knows nothing.
func (j *judge) droppedDuring(s *seen) bool {
	for _, at := range j.dropped {
		if at.After(s.from.Add(-time.Second)) && at.Before(s.to.Add(time.Second)) {
			return true
		}
	}
	return false
}

func (j *judge) brokeLast(s *seen, attempts []fakeprovider.Record) bool {
	return len(attempts) > 0 && j.broke(s, attempts[len(attempts)-1])
}

func (j *judge) brokeAny(s *seen, attempts []fakeprovider.Record) bool {
	return slices.ContainsFunc(attempts, func(a fakeprovider.Record) bool { return j.broke(s, a) })
}

var (
	streamEnd = []byte("data: [DONE]\n\n")
	frameEnd  = []byte("}\n\n")
	noUsage   = []byte(`,"usage":null`)
	choices   = []byte(`"choices":`)
)

// sentDigest is the digest of what the provider sent if the client got all of
// it: the usage chunk that the gateway asked for, and took out, is put back, and
// so is the member of the other chunks that says that they have none.
func (s *seen) sentDigest(a fakeprovider.Record) string {
	sum, answer := sha256.New(), s.body
	if at := bytes.Index(answer, choices); s.req.injected && s.status == 200 && s.events && at >= 0 && bytes.HasSuffix(answer, streamEnd) {
		chunks := bytes.ReplaceAll(answer[:len(answer)-len(streamEnd)], frameEnd, slices.Concat(noUsage, frameEnd))
		// A chunk too large to be held is passed as it is.
		sum.Write(bytes.ReplaceAll(chunks, slices.Concat(noUsage, noUsage), noUsage))
		sum.Write(answer[:at])
		sum.Write([]byte(`"choices":[],"usage":` + s.usageOf(a) + "}\n\n"))
		answer = streamEnd
	}
	sum.Write(answer)
	return hex.EncodeToString(sum.Sum(nil))
}

// usageOf is the usage object of an attempt's chat stream: the script's, or
// the provider's own where the script was not for that face.
func (s *seen) usageOf(a fakeprovider.Record) string {
	if a.Usage == nil {
		return s.req.usage
	}
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,`+
		`"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}`,
		a.Usage.InputUncached, a.Usage.Output, a.Usage.InputUncached+a.Usage.Output)
}

// cost is what the answer of a costs: one micro-unit a token.
func (s *seen) cost(a fakeprovider.Record) int64 {
	if a.Usage == nil {
		return s.req.tokens
	}
	return a.Usage.InputUncached + a.Usage.Output
}

func describe(s *seen, attempts []fakeprovider.Record) string {
	out := fmt.Sprintf("%s of %s (request id %q, temper %d, model %s, begun %s, took %s, status %d)", s.req.path, s.req.id, s.requestID,
		s.temper, s.req.model, s.from.Format("15:04:05.000"), s.to.Sub(s.from).Round(time.Millisecond), s.status)
	for _, a := range attempts {
		out += fmt.Sprintf(" [face %s status %d %s]", a.Face, a.Status, a.End)
	}
	return out
}

// report fails the test with what was found wrong.
func (j *judge) report(t *testing.T) {
	t.Helper()
	t.Logf("%d exact answers, %d right errors, %d errors and %d cuts that were explained, %d clients that left, %d requests at the provider",
		j.exact, j.errors, j.excused, j.cut, j.left, len(j.reached))
	const shown = 30
	for i, p := range j.problems {
		if i == shown {
			t.Logf("… and %d more", len(j.problems)-shown)
			break
		}
		t.Error(p)
	}
	if j.exact == 0 {
		t.Error(errors.New("nothing was answered: the run proved nothing"))
	}
}
