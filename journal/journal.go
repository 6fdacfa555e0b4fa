package journal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

// Errors of a journal.
var (
	// ErrFull: the journal holds as much as it may.
	ErrFull = errors.New("journal is full")
	// ErrInUse: another process has the file open.
	ErrInUse = errors.New("in use by another process: give each process a --journal of its own, or stop the other one first")
)

// refusedSuffix makes the name of the file to which SetAside moves entries.
const refusedSuffix = ".refused"

const (
	headerBytes = 8
	// maxEntryBytes bounds one entry: more is a damaged length.
	maxEntryBytes = 1 << 24
)

// Codec turns entries into bytes and back.
type Codec[T any] struct {
	Encode func(T) ([]byte, error)
	Decode func([]byte) (T, error)
}

// Journal is a bounded queue in memory and, for a restart, in a file. An entry in
// the file is a big-endian length and CRC-32 of the payload, four bytes each, then
// the payload. The file is emptied only when every entry has landed, so after a
// crash entries come again that had landed: taking one over twice must be
// harmless. It is safe for concurrent use.
type Journal[T any] struct {
	codec    Codec[T]
	path     string
	maxBytes int64

	mu    sync.Mutex
	file  *os.File
	size  int64
	queue []T
	// aside is nil until an entry is set aside.
	aside *Journal[T]
}

// Open reads what an earlier process left; the folder is made. An entry cut
// short by a crash ends the reading, because what follows cannot be told apart,
// and is overwritten. One that is whole and that the codec cannot read is another
// program's, or a newer one's: it is an error, and stays. maxBytes bounds the
// file. The file is locked until Close or the end of the process, because two
// that write to one file destroy each other's entries; where it is locked already
// the error is ErrInUse. The other errors are those of the disk.
func Open[T any](path string, maxBytes int64, codec Codec[T]) (*Journal[T], error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make journal folder: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if err := lock(file); err != nil {
		return nil, errors.Join(fmt.Errorf("lock journal %s: %w", path, err), file.Close())
	}
	j := &Journal[T]{codec: codec, path: path, maxBytes: maxBytes, file: file}
	if err := j.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("read journal %s: %w", path, err), file.Close())
	}
	if err := file.Truncate(j.size); err != nil {
		return nil, errors.Join(fmt.Errorf("trim journal: %w", err), file.Close())
	}
	if _, err := file.Seek(j.size, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("seek journal: %w", err), file.Close())
	}
	return j, nil
}

// lock makes the file this process's own. The kernel gives it up with the last
// descriptor, so a killed process leaves nothing to clean up.
func lock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrInUse
	}
	return err
}

// read takes in the entries of the file, up to its end or a torn one.
func (j *Journal[T]) read() error {
	reader := bufio.NewReader(j.file)
	for {
		payload, err := readPayload(reader)
		if err != nil {
			return nil // the end, or where a crash cut the writing short
		}
		entry, err := j.codec.Decode(payload)
		if err != nil {
			return fmt.Errorf("entry %d is not one of this program's: %w", len(j.queue)+1, err)
		}
		j.queue = append(j.queue, entry)
		j.size += headerBytes + int64(len(payload))
	}
}

func readPayload(r io.Reader) ([]byte, error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[:4])
	if length > maxEntryBytes {
		return nil, fmt.Errorf("entry of %d bytes", length)
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(payload) != binary.BigEndian.Uint32(head[4:]) {
		return nil, errors.New("checksum does not match")
	}
	return payload, nil
}

// Append keeps e; it is on disk when Append returns nil. The errors are ErrFull,
// those of the codec and those of the disk.
func (j *Journal[T]) Append(e T) error {
	payload, err := j.codec.Encode(e)
	if err != nil {
		return fmt.Errorf("encode journal entry: %w", err)
	}
	if len(payload) > maxEntryBytes {
		return fmt.Errorf("append to journal: %d bytes are too many", len(payload))
	}
	framed := make([]byte, headerBytes, headerBytes+len(payload))
	binary.BigEndian.PutUint32(framed[:4], uint32(len(payload)))
	binary.BigEndian.PutUint32(framed[4:], crc32.ChecksumIEEE(payload))
	framed = append(framed, payload...)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.size+int64(len(framed)) > j.maxBytes {
		return ErrFull
	}
	if err := j.write(framed); err != nil {
		// What may be there of it is overwritten, or it would hide what follows.
		_, seekErr := j.file.Seek(j.size, io.SeekStart)
		return errors.Join(err, seekErr)
	}
	j.size += int64(len(framed))
	j.queue = append(j.queue, e)
	return nil
}

func (j *Journal[T]) write(framed []byte) error {
	if _, err := j.file.Write(framed); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("sync journal: %w", err)
	}
	return nil
}

// Oldest returns the entry that has waited longest.
func (j *Journal[T]) Oldest() (e T, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) == 0 {
		return e, false
	}
	return j.queue[0], true
}

// Landed drops the oldest entry; the file is emptied with the last one.
func (j *Journal[T]) Landed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.landed()
}

func (j *Journal[T]) landed() error {
	j.queue = j.queue[1:]
	if len(j.queue) > 0 {
		return nil
	}
	j.queue = nil
	if err := j.file.Truncate(0); err != nil {
		return fmt.Errorf("empty journal: %w", err)
	}
	if _, err := j.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("rewind journal: %w", err)
	}
	j.size = 0
	return nil
}

// SetAside moves the oldest entry, which is never going to land, out of the way of
// those behind it: into a journal of its own beside this one, RefusedPath, of the
// same bound. While there is no room the entry stays, and the error is ErrFull.
func (j *Journal[T]) SetAside() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) == 0 {
		return nil
	}
	if j.aside == nil {
		aside, err := Open(j.RefusedPath(), j.maxBytes, j.codec)
		if err != nil {
			return fmt.Errorf("open journal of what is refused: %w", err)
		}
		j.aside = aside
	}
	if err := j.aside.Append(j.queue[0]); err != nil {
		return fmt.Errorf("set entry aside: %w", err)
	}
	return j.landed()
}

// RefusedPath is where entries lie that were set aside. The file is a journal
// like any other.
func (j *Journal[T]) RefusedPath() string { return j.path + refusedSuffix }

// Waiting lists the entries, oldest first.
func (j *Journal[T]) Waiting() []T {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.queue)
}

// Len is how many entries wait.
func (j *Journal[T]) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.queue)
}

// Size is the length of the file in bytes.
func (j *Journal[T]) Size() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.size
}

// Close closes the file; entries that wait stay in it.
func (j *Journal[T]) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.file.Close()
	if j.aside != nil {
		err = errors.Join(err, j.aside.Close())
	}
	return err
}
