package secret

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Errors of Resolve. None of them holds a value, and a reference that is not
// understood is not repeated: it may be an SK that was pasted in its place.
var (
	// ErrReference means the reference is neither "env:NAME" nor "file:PATH".
	ErrReference = errors.New(`secret reference must be "env:NAME" or "file:PATH"`)
	// ErrEmpty means the variable or file exists and holds nothing.
	ErrEmpty = errors.New("secret is empty")
	// ErrMissing means the variable is not set or the file cannot be read.
	ErrMissing = errors.New("secret is missing")
	// ErrMalformed means the value cannot stand in a header: it holds a control
	// character inside, or is longer than 64 KiB.
	ErrMalformed = errors.New("secret is not usable as a header value")
)

// Options of a Resolver. A zero field takes its default.
type Options struct {
	// TTL is how long a file's content is served before it is read again, so
	// it bounds how late a rotation is seen; default 1 s.
	TTL time.Duration
	// Grace is how long the last good content of a file stands in while the
	// file is missing or unusable, counted from its last good read; default
	// 5 s. It bridges a rotation that truncates the file before it writes.
	Grace time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
}

const (
	defaultTTL   = time.Second
	defaultGrace = 5 * time.Second
	maxBytes     = 64 << 10
)

// Resolver turns references into Secrets. It is safe for concurrent use; its
// cache holds one entry per reference, so it is as large as the configuration.
type Resolver struct {
	opts Options

	mu    sync.Mutex
	files map[string]cached // by path, guarded by mu
}

type cached struct {
	secret  Secret
	readAt  time.Time // of the last good read
	triedAt time.Time
}

// NewResolver makes a Resolver; it reads nothing yet.
func NewResolver(o Options) *Resolver {
	if o.TTL <= 0 {
		o.TTL = defaultTTL
	}
	if o.Grace <= 0 {
		o.Grace = defaultGrace
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Resolver{opts: o, files: make(map[string]cached)}
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Resolve returns the secret that ref names: "env:NAME" is an environment
// variable of this process, "file:PATH" the content of a file without its
// trailing line break. Call it again for every use: a rotated file is then
// seen within the TTL. It fails with ErrReference, ErrMissing, ErrEmpty or
// ErrMalformed, always wrapped with the reference that is at fault.
func (r *Resolver) Resolve(ref string) (Secret, error) {
	scheme, name, ok := strings.Cut(ref, ":")
	switch {
	case ok && scheme == "env" && envName.MatchString(name):
		return fromEnv(name)
	case ok && scheme == "file" && name != "":
		return r.fromFile(name)
	}
	return Secret{}, ErrReference
}

func fromEnv(name string) (Secret, error) {
	value, ok := os.LookupEnv(name)
	if !ok {
		return Secret{}, fmt.Errorf("read env:%s: %w", name, ErrMissing)
	}
	s, err := parse(value)
	if err != nil {
		return Secret{}, fmt.Errorf("read env:%s: %w", name, err)
	}
	return s, nil
}

// fromFile holds the mutex while it reads, so that a crowd of requests at the
// end of the TTL costs one read; a secret file is small and local.
func (r *Resolver) fromFile(path string) (Secret, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	have, known := r.files[path]
	if known && now.Sub(have.triedAt) < r.opts.TTL {
		return have.secret, nil
	}
	s, err := readFile(path)
	if err == nil {
		r.files[path] = cached{secret: s, readAt: now, triedAt: now}
		return s, nil
	}
	if known && now.Sub(have.readAt) < r.opts.Grace {
		have.triedAt = now
		r.files[path] = have
		return have.secret, nil
	}
	delete(r.files, path)
	return Secret{}, fmt.Errorf("read file:%s: %w", path, err)
}

func readFile(path string) (Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return Secret{}, missing(err)
	}
	defer func() { _ = f.Close() }() // nothing was written that could be lost
	raw, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return Secret{}, missing(err)
	}
	return parse(string(raw))
}

// missing keeps only the cause of a path error: the caller names the path already.
func missing(err error) error {
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	return fmt.Errorf("%w: %w", ErrMissing, err)
}

// parse trims the line break that editors and `echo` leave, and refuses what a
// header could not carry: a line break inside would be a header of its own.
func parse(value string) (Secret, error) {
	value = strings.TrimRight(value, "\r\n")
	if value == "" {
		return Secret{}, ErrEmpty
	}
	if len(value) > maxBytes {
		return Secret{}, ErrMalformed
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' || c == 0x7f {
			return Secret{}, ErrMalformed
		}
	}
	return New(value), nil
}
