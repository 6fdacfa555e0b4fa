package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// defaultDir is where `keyway up` keeps its state.
const defaultDir = ".keyway"

// maxRunPath is how long the folder of the sockets may be: the kernel takes
// paths of 107 bytes, and a service makes its socket under a longer, unique name
// before it moves it into place.
const maxRunPath = 107 - len("/extproc.sock.4194304.1764547200000000000")

// layout names the files of one `keyway up`; every path is absolute.
type layout struct {
	Root       string
	DemoConfig string // made at first start
	Logs       string
	Data       string // of the store
	State      string // what services keep over a restart
	Run        string // sockets and generated files; emptied at every start
	Ready      string
	Ledger     string // data source name
	Key        string // the demo key's secret
	Lock       string
}

// newLayout makes the folders under dir, private to this user.
func newLayout(dir string) (layout, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return layout{}, fmt.Errorf("make --dir absolute: %w", err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	l := layout{
		Root: dir, DemoConfig: at("config.yaml"), Logs: at("log"), Data: at("store"), State: at("state"),
		Run: at("run"), Ready: at("ready.json"), Ledger: "sqlite:" + at("ledger.db"), Key: at("demo-key"), Lock: at("lock"),
	}
	if len(l.Run) > maxRunPath {
		sum := sha256.Sum256([]byte(dir))
		l.Run = filepath.Join(os.TempDir(), "keyway-"+hex.EncodeToString(sum[:6]))
	}
	for _, folder := range []string{l.Root, l.Logs, l.Data, l.State, l.Run} {
		if err := privateFolder(folder); err != nil {
			return layout{}, err
		}
	}
	return l, nil
}

// privateFolder makes folder with mode 0700 and refuses one of another user:
// the short run folder lies in a place where everyone may write.
func privateFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	info, err := os.Lstat(folder)
	if err != nil {
		return fmt.Errorf("look at folder: %w", err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Getuid() {
		return fmt.Errorf("folder %s belongs to another user; choose another --dir", folder)
	}
	if info.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("folder %s is a symbolic link; choose another --dir", folder)
	}
	return nil
}

// clearRun removes what a former run left among the sockets.
func (l layout) clearRun() error {
	entries, err := os.ReadDir(l.Run)
	if err != nil {
		return fmt.Errorf("read run folder: %w", err)
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(l.Run, entry.Name())); err != nil {
			return fmt.Errorf("clear run folder: %w", err)
		}
	}
	return nil
}

func (l layout) log(name string) string { return filepath.Join(l.Logs, name+".log") }
func (l layout) run(name string) string { return filepath.Join(l.Run, name) }

// socket is a service's address in the form that flags and Envoy take.
func (l layout) socket(service string) string { return "unix:" + l.run(service+".sock") }

// writeFile puts a private file in place.
func writeFile(path string, data []byte) error { return replaceFile(path, data, 0o600) }

// replaceFile puts a file in place in one step, so that a reader sees the old
// content or the new, never half of it.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	next := path + ".next"
	if err := os.WriteFile(next, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("put %s in place: %w", filepath.Base(path), err)
	}
	return nil
}

// lockDir makes sure that one run uses the folder at a time. The kernel frees
// the lock when the process ends, however it ends.
func (l layout) lockDir() (unlock func(), err error) {
	file, err := os.OpenFile(l.Lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 20)
		n, _ := file.ReadAt(holder, 0) // Nothing read leaves the number out, no more.
		file.Close()
		return nil, fmt.Errorf("keyway up already runs on %s (pid %s); stop it first, or choose another --dir", l.Root, holder[:n])
	}
	if err = file.Truncate(0); err == nil {
		_, err = fmt.Fprintf(file, "%d", os.Getpid())
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("write lock: %w", err)
	}
	return func() { file.Close() }, nil
}
