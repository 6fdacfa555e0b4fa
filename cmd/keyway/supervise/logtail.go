package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// The tail of a log that an error shows: enough for a start's complaint.
const (
	tailLines = 20
	tailBytes = 8 << 10
)

// withLogTail adds the last lines of the child's log to err.
func withLogTail(err error, spec Spec) error {
	tail, readErr := logTail(spec.LogFile)
	if readErr != nil || len(tail) == 0 {
		return err
	}
	return fmt.Errorf("%w\nlast lines of %s:\n%s", err, spec.LogFile, tail)
}

func logTail(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, min(info.Size(), tailBytes))
	n, err := file.ReadAt(buf, info.Size()-int64(len(buf)))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	lines := bytes.Split(bytes.TrimRight(buf[:n], "\n"), []byte("\n"))
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	return bytes.Join(lines, []byte("\n")), nil
}
