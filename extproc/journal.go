package extproc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// ErrJournalFull: the journal holds as much as it may.
var ErrJournalFull = errors.New("journal is full")

// journal keeps settlements that the store could not take: in memory for the
// replay, on disk for a restart. An entry on disk is a big-endian length and
// CRC-32 of the payload, four bytes each, then the payload, a
// keyway.v1.Settlement. Replaying an entry twice is harmless, so the file is
// emptied only when everything in it has landed.
type journal struct {
	path     string
	maxBytes int64

	mu    sync.Mutex
	file  *os.File
	size  int64
	queue []domain.Settlement
}

const journalHeader = 8

// openJournal reads what an earlier process left; an entry cut short by a
// crash ends the reading, what follows cannot be told apart.
func openJournal(path string, maxBytes int64) (*journal, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make journal folder: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &journal{path: path, maxBytes: maxBytes, file: file}
	reader := bufio.NewReader(file)
	for {
		settlement, n, err := readEntry(reader)
		if err != nil {
			break
		}
		j.queue = append(j.queue, settlement)
		j.size += n
	}
	if err := file.Truncate(j.size); err != nil {
		return nil, errors.Join(fmt.Errorf("trim journal: %w", err), file.Close())
	}
	if _, err := file.Seek(j.size, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("seek journal: %w", err), file.Close())
	}
	return j, nil
}

func readEntry(r io.Reader) (s domain.Settlement, size int64, err error) {
	var head [journalHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return s, 0, err
	}
	length := binary.BigEndian.Uint32(head[:4])
	const longest = 1 << 24
	if length > longest {
		return s, 0, fmt.Errorf("entry of %d bytes", length)
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(r, payload); err != nil {
		return s, 0, err
	}
	if crc32.ChecksumIEEE(payload) != binary.BigEndian.Uint32(head[4:]) {
		return s, 0, errors.New("checksum does not match")
	}
	var p keywayv1.Settlement
	if err := proto.Unmarshal(payload, &p); err != nil {
		return s, 0, fmt.Errorf("decode entry: %w", err)
	}
	s = domain.Settlement{
		Decision: keywayv1.DecisionFromProto(p.GetDecision()),
		Channel:  p.GetChannel(),
		Record:   keywayv1.RecordFromProto(p.GetRecord()),
	}
	if made := p.GetStored(); made != nil {
		s.Stored = domain.StoredID{Identity: s.Decision.Identity, ID: made.GetId(), Channel: made.GetChannel(), Model: made.GetModel()}
	}
	return s, int64(journalHeader + length), nil
}

// Append keeps s; it is on disk when Append returns.
func (j *journal) Append(s domain.Settlement) error {
	message := &keywayv1.Settlement{
		Decision: keywayv1.DecisionToProto(s.Decision), Channel: s.Channel, Record: keywayv1.RecordToProto(s.Record),
	}
	if s.Stored.ID != "" {
		message.Stored = &keywayv1.Stored{Id: s.Stored.ID, Channel: s.Stored.Channel, Model: s.Stored.Model}
	}
	payload, err := proto.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode journal entry: %w", err)
	}
	entry := make([]byte, journalHeader, journalHeader+len(payload))
	binary.BigEndian.PutUint32(entry[:4], uint32(len(payload)))
	binary.BigEndian.PutUint32(entry[4:], crc32.ChecksumIEEE(payload))
	entry = append(entry, payload...)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.size+int64(len(entry)) > j.maxBytes {
		return ErrJournalFull
	}
	if _, err := j.file.Write(entry); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("sync journal: %w", err)
	}
	j.size += int64(len(entry))
	j.queue = append(j.queue, s)
	return nil
}

// Oldest returns the settlement that has waited longest.
func (j *journal) Oldest() (domain.Settlement, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) == 0 {
		return domain.Settlement{}, false
	}
	return j.queue[0], true
}

// Landed drops the oldest settlement; the file is emptied with the last one.
func (j *journal) Landed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
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

// Len is how many settlements wait.
func (j *journal) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.queue)
}

func (j *journal) Close() error { return j.file.Close() }
