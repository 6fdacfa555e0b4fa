package sdk

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

//go:embed python/requirements.txt python/run.py node/package.json node/package-lock.json node/run.mjs
var files embed.FS

// parts says how a language's runner is installed.
type parts struct {
	// source is the embedded folder that is copied; folder is the place under
	// .parts, and pins the file whose digest names the version of it.
	source, folder, pins string
	// tools must be on PATH.
	tools []string
	// install are the commands, run in the installed folder.
	install [][]string
	// command starts the runner; its first two words are relative to the folder when they hold a slash.
	command []string
}

var partsOf = map[Lang]parts{
	Python: {
		source: "python", folder: "py", pins: "requirements.txt", tools: []string{"python3"},
		install: [][]string{
			{"python3", "-m", "venv", "venv"},
			{"venv/bin/python", "-m", "pip", "install", "--quiet", "--no-input", "--require-hashes", "--only-binary", ":all:", "-r", "requirements.txt"},
		},
		command: []string{"venv/bin/python", "./run.py"},
	},
	Node: {
		source: "node", folder: "node", pins: "package-lock.json", tools: []string{"node", "npm"},
		install: [][]string{{"npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"}},
		command: []string{"node", "./run.mjs"},
	},
}

// prepare installs what lang needs, unless it is there, and returns the
// command of its runner. Processes that come at once wait for the first.
func prepare(ctx context.Context, lang Lang) ([]string, error) {
	p, known := partsOf[lang]
	if !known {
		return nil, fmt.Errorf("no SDKs for language %q", lang)
	}
	for _, tool := range p.tools {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: %s", ErrNoRuntime, tool)
		}
	}
	dir, err := p.dir()
	if err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, dir+".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := p.ensure(ctx, dir); err != nil {
		return nil, err
	}
	command := make([]string, len(p.command))
	for i, word := range p.command {
		command[i] = word
		if filepath.Base(word) != word {
			command[i] = filepath.Join(dir, word)
		}
	}
	return command, nil
}

// dir is the folder of this version of the parts, in which the digest of the
// pins is a part of the name: another version never meets this one's files.
func (p parts) dir() (string, error) {
	pins, err := files.ReadFile(p.source + "/" + p.pins)
	if err != nil {
		return "", fmt.Errorf("read pins: %w", err)
	}
	sum := sha256.Sum256(pins)
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".parts", p.folder, "sdk-"+hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("make parts folder: %w", err)
	}
	return dir, nil
}

// repositoryRoot is the nearest folder above the working one with a go.mod.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("find repository: no go.mod above the working folder")
		}
		dir = up
	}
}

// ready is written last, so that a folder without it is half done.
const ready = ".ready"

// ensure installs into dir unless that was done, and always copies the runner,
// which may have changed while its pins did not.
func (p parts) ensure(ctx context.Context, dir string) error {
	_, err := os.Stat(filepath.Join(dir, ready))
	installed := err == nil
	if !installed {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("clear half-made parts: %w", err)
		}
	}
	if err := p.copyTo(dir); err != nil {
		return fmt.Errorf("copy runner: %w", err)
	}
	if installed {
		return nil
	}
	for _, words := range p.install {
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		if filepath.Base(words[0]) != words[0] {
			cmd.Path = filepath.Join(dir, words[0])
		}
		cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("install by %q: %w: %s", words, err, tail(output))
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ready), nil, 0o644); err != nil {
		return fmt.Errorf("mark parts as ready: %w", err)
	}
	return nil
}

// copyTo writes the embedded files; each appears whole, also to a runner that
// starts meanwhile.
func (p parts) copyTo(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return fs.WalkDir(files, p.source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(target+".new", data, 0o644); err != nil {
			return err
		}
		return os.Rename(target+".new", target)
	})
}

// lockPoll is how often a held lock is tried again.
const lockPoll = 100 * time.Millisecond

// lock takes the file lock at path; the returned function gives it back.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing gives the lock back
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock parts: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for another installation: %w", ctx.Err())
		}
	}
}
