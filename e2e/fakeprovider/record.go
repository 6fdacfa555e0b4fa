package fakeprovider

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxRecords is how many requests are remembered; the oldest go first.
	maxRecords = 10_000
	// maxKeptBody is the largest request body that a record keeps, in bytes;
	// maxKeptBodies is what all records keep together, so that load tests do not grow the process.
	maxKeptBody   = 64 << 10
	maxKeptBodies = 32 << 20
)

// End is how a request ended.
type End string

// The ends; the empty one is a request that still runs.
const (
	EndRunning   End = ""
	EndCompleted End = "completed"
	// EndPeerLeft: the peer closed or reset before everything was sent.
	EndPeerLeft End = "peer_left"
	// EndReset and EndDropped: the script broke the stream or the connection.
	EndReset   End = "reset_by_script"
	EndDropped End = "dropped_by_script"
	// EndClosed: the script ended the body early but properly.
	EndClosed End = "closed_by_script"
	// EndStopped: this server was closed first.
	EndStopped End = "server_stopped"
)

// Record is what one request was and became. Its maps and slices are shared
// and must not be altered. A time is zero while the event has not happened.
type Record struct {
	// ID counts the requests of a server from 1.
	ID uint64 `json:"id"`
	// RequestID is the id the answer carried.
	RequestID string `json:"request_id"`
	Face      string `json:"face"`
	Method    string `json:"method"`
	// Path is as received, Query without the question mark.
	Path   string      `json:"path"`
	Query  string      `json:"query,omitempty"`
	Host   string      `json:"host"`
	Header http.Header `json:"header"`
	// Proto is "HTTP/1.1" or "HTTP/2.0"; Peer is the other end's address, one for each connection.
	Proto string `json:"proto"`
	TLS   bool   `json:"tls"`
	Peer  string `json:"peer"`
	Model string `json:"model,omitempty"`
	// Stream says whether the request asked for a stream.
	Stream bool `json:"stream,omitempty"`
	// Script is where the script came from: header, marker, model, queue, sticky or "".
	Script string `json:"script,omitempty"`

	// BodyBytes and BodySHA256 (hex) are of the whole body; Body is kept up to 64 KiB.
	BodyBytes  int64  `json:"body_bytes"`
	BodySHA256 string `json:"body_sha256"`
	Body       []byte `json:"body,omitempty"`

	Status int `json:"status"`
	// SentBytes, SentFrames and SentSHA256 (hex) count the body as written, after compression.
	SentBytes  int64  `json:"sent_bytes"`
	SentFrames int64  `json:"sent_frames"`
	SentSHA256 string `json:"sent_sha256,omitempty"`
	// Usage is what the whole answer reports, also when the peer left before
	// it was sent; nil when the answer reports none.
	Usage *Usage `json:"usage,omitempty"`
	End   End    `json:"end,omitempty"`

	At          time.Time `json:"at"`
	HeadersAt   time.Time `json:"headers_at"`
	FirstByteAt time.Time `json:"first_byte_at"`
	EndedAt     time.Time `json:"ended_at"`
	// PeerLeftAt is when the peer's leaving was seen. On HTTP/1.1 it can be
	// seen only once the request body was read to its end.
	PeerLeftAt time.Time `json:"peer_left_at"`
}

// entry is a record in the making.
type entry struct {
	log *recordLog
	// The handler's goroutine alone writes these.
	sum    hash.Hash
	bytes  atomic.Int64
	frames atomic.Int64
	// rec is guarded by log.mu.
	rec Record
}

// recordLog remembers the requests of a server.
type recordLog struct {
	mu      sync.Mutex
	nextID  uint64
	entries []*entry
	// bodied are the entries that keep a body, oldest first, and bodyBytes their sum.
	bodied    []*entry
	bodyBytes int
	open      int
	// changed is closed at the next change; nil while nobody waits.
	changed chan struct{}
}

// begin opens the record of r.
func (l *recordLog) begin(face string, r *http.Request) *entry {
	e := &entry{log: l, sum: sha256.New(), rec: Record{
		Face: face, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Host: r.Host,
		Header: r.Header, Proto: r.Proto, TLS: r.TLS != nil, Peer: r.RemoteAddr, At: time.Now(),
	}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextID++
	l.open++
	e.rec.ID = l.nextID
	l.entries = append(l.entries, e)
	if len(l.entries) > maxRecords {
		l.forgetBody(l.entries[0])
		l.entries[0] = nil
		l.entries = l.entries[1:]
		for len(l.bodied) > 0 && l.bodied[0].rec.Body == nil {
			l.bodied = l.bodied[1:]
		}
	}
	l.notify()
	return e
}

// update changes the record under the lock.
func (e *entry) update(change func(rec *Record)) {
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	change(&e.rec)
	e.log.notify()
}

// keepBody stores what was received.
func (e *entry) keepBody(body []byte) string {
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	e.update(func(rec *Record) {
		rec.BodyBytes, rec.BodySHA256 = int64(len(body)), digest
		if len(body) == 0 || len(body) > maxKeptBody {
			return
		}
		rec.Body = body
		l := e.log
		l.bodied = append(l.bodied, e)
		l.bodyBytes += len(body)
		for l.bodyBytes > maxKeptBodies {
			l.forgetBody(l.bodied[0])
			l.bodied[0] = nil
			l.bodied = l.bodied[1:]
		}
	})
	return digest
}

// forgetBody must be called with mu held.
func (l *recordLog) forgetBody(e *entry) {
	l.bodyBytes -= len(e.rec.Body)
	e.rec.Body = nil
}

// sent counts data as written.
func (e *entry) sent(data []byte) {
	e.sum.Write(data) // never fails
	e.bytes.Add(int64(len(data)))
}

// peerLeft notes when the peer's leaving was seen, unless the request had ended.
func (e *entry) peerLeft(at time.Time) {
	e.update(func(rec *Record) {
		if rec.End == EndRunning {
			rec.PeerLeftAt = at
		}
	})
}

// finish ends the record.
func (e *entry) finish(end End) {
	now, digest := time.Now(), hex.EncodeToString(e.sum.Sum(nil))
	e.update(func(rec *Record) {
		rec.End, rec.EndedAt, rec.SentSHA256 = end, now, digest
		switch {
		case end != EndPeerLeft:
			rec.PeerLeftAt = time.Time{}
		case rec.PeerLeftAt.IsZero():
			rec.PeerLeftAt = now
		}
		e.log.open--
	})
}

// notify must be called with mu held.
func (l *recordLog) notify() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// snapshot copies the records, oldest first, and says what to wait on for the
// next change.
func (l *recordLog) snapshot() ([]Record, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Record, len(l.entries))
	for i, e := range l.entries {
		out[i] = e.rec
		out[i].SentBytes, out[i].SentFrames = e.bytes.Load(), e.frames.Load()
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return out, l.changed
}

// openCount returns the requests now running, and what to wait on for a change.
func (l *recordLog) openCount() (int, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.open, l.changed
}

// clear forgets all records; running requests go on unrecorded.
func (l *recordLog) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.bodied {
		l.forgetBody(e)
	}
	l.entries, l.bodied, l.bodyBytes = nil, nil, 0
	l.notify()
}

// wait blocks until done is true of the records, which it returns; the error
// is ctx's, with the records as they were last.
func (l *recordLog) wait(ctx context.Context, done func([]Record) bool) ([]Record, error) {
	for {
		records, changed := l.snapshot()
		if done(records) {
			return records, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return records, ctx.Err()
		}
	}
}
