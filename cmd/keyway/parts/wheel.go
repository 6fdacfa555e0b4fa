package parts

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// ErrNoPip is returned when a part has to be installed and Python's pip is missing.
var ErrNoPip = errors.New("python3 with pip is needed to download it; install it (Debian: apt-get install python3-pip), " +
	"or put the program on PATH")

// install returns the installed binary of p, fetching it first where needed. A
// lock on Dir makes parallel runs wait for the first instead of racing it, and
// the binary appears by rename, so nobody ever sees half of it.
func (o Options) install(ctx context.Context, p part) (string, error) {
	unlock, err := o.lock(ctx)
	if err != nil {
		return "", fmt.Errorf("lock %s: %w", o.Dir, err)
	}
	defer unlock()

	binary := filepath.Join(o.Dir, "installed", p.link)
	if askVersion(ctx, binary, p.accepts) == nil {
		return o.link(binary, p.link)
	}
	start := time.Now()
	o.progress("downloading %s (PyPI wheel, pinned by hash) into %s", p.title, o.Dir)
	if err := o.fetchBinary(ctx, p, binary); err != nil {
		return "", fmt.Errorf("install %s: %w", p.title, err)
	}
	if err := askVersion(ctx, binary, p.accepts); err != nil {
		return "", fmt.Errorf("install %s: %w", p.title, err)
	}
	o.progress("installed %s in %.1f s", p.title, time.Since(start).Seconds())
	return o.link(binary, p.link)
}

func (o Options) fetchBinary(ctx context.Context, p part, binary string) error {
	if err := os.MkdirAll(filepath.Dir(binary), 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	folder, err := os.MkdirTemp(o.Dir, "download-")
	if err != nil {
		return fmt.Errorf("make download folder: %w", err)
	}
	defer os.RemoveAll(folder)

	fetch := o.Fetch
	if fetch == nil {
		fetch = pipDownload
	}
	if err := fetch(ctx, p.requirements, folder); err != nil {
		return err
	}
	wheels, err := filepath.Glob(filepath.Join(folder, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return fmt.Errorf("expected one wheel for %s/%s, found %d", runtime.GOOS, runtime.GOARCH, len(wheels))
	}
	return extract(wheels[0], p.member, binary)
}

// pipDownload lets pip choose the wheel of this machine and verify its hash.
func pipDownload(ctx context.Context, requirements, folder string) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return ErrNoPip
	}
	if err := exec.CommandContext(ctx, python, "-m", "pip", "--version").Run(); err != nil {
		return ErrNoPip
	}
	list := filepath.Join(folder, "requirements.txt")
	if err := os.WriteFile(list, []byte(requirements), 0o644); err != nil {
		return fmt.Errorf("write requirements: %w", err)
	}
	out, err := exec.CommandContext(ctx, python, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
		"--only-binary=:all:", "--disable-pip-version-check", "--dest", folder, "--requirement", list).CombinedOutput()
	if err != nil {
		return fmt.Errorf("run pip download: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// extract copies the executable named member out of a wheel to target, mode 0755.
func extract(wheel, member, target string) error {
	archive, err := zip.OpenReader(wheel)
	if err != nil {
		return fmt.Errorf("open wheel: %w", err)
	}
	defer archive.Close()
	for _, entry := range archive.File {
		if path.Base(entry.Name) != member || entry.FileInfo().IsDir() {
			continue
		}
		if err := extractEntry(entry, target); err != nil {
			return fmt.Errorf("unpack %s: %w", entry.Name, err)
		}
		return nil
	}
	return fmt.Errorf("wheel %s holds no %s", filepath.Base(wheel), member)
}

func extractEntry(entry *zip.File, target string) (err error) {
	from, err := entry.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(target), ".unpack-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(to.Name())
		}
	}()
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), target)
}

// lockPoll is how often a waiting run looks whether the lock is free.
const lockPoll = 100 * time.Millisecond

// lock takes Dir's file lock. The kernel frees it when the process ends, so a
// killed run leaves nothing to clean up.
func (o Options) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(o.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	told := false
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(err, file.Close())
		}
		if !told {
			told = true
			o.progress("waiting for another run that installs into %s", o.Dir)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-time.After(lockPoll):
		}
	}
}
