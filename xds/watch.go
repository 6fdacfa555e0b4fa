package xds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"keyway/config"
)

// settleTime lets an editor finish: a save is several events, and the first of
// them often shows an empty file.
const settleTime = 50 * time.Millisecond

// reading is one look at the configuration file that differed from the last.
type reading struct {
	data []byte
	err  error
}

// fileWatch follows one file. Its fields are set before run and confined to it.
type fileWatch struct {
	path string
	poll time.Duration
	// last is what was last reported.
	last   reading
	logger *slog.Logger
}

// run reports to out every content that differs from the one before, until ctx
// ends. It watches the folder, not the file: editors and Kubernetes replace
// the file, and a watch on it would stay with the old one. The poll finds what
// no event tells.
func (w *fileWatch) run(ctx context.Context, out chan<- reading) error {
	events, err := w.follow()
	if err != nil {
		w.logger.Warn("configuration file is polled: its folder cannot be watched", "error", err)
		events = new(fsnotify.Watcher) // its nil channels never speak
	} else {
		defer func() {
			if err := events.Close(); err != nil {
				w.logger.Warn("file watch did not close", "error", err)
			}
		}()
	}
	tick := time.NewTicker(w.poll)
	defer tick.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events.Events:
			// Whatever changed in the folder may be what the path leads to.
			if settled == nil {
				settled = time.After(settleTime)
			}
			continue
		case err := <-events.Errors:
			w.logger.Warn("file watch missed events; the poll will find the change", "error", err)
			continue
		case <-settled:
			settled = nil
		case <-tick.C:
		}
		now, changed := w.read()
		if !changed {
			continue
		}
		select {
		case out <- now:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *fileWatch) follow() (*fsnotify.Watcher, error) {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("create file watch: %w", err)
	}
	if err := events.Add(filepath.Dir(w.path)); err != nil {
		return nil, errors.Join(fmt.Errorf("watch folder: %w", err), events.Close())
	}
	return events, nil
}

// read looks at the file; changed is false when it is as last reported.
func (w *fileWatch) read() (now reading, changed bool) {
	now.data, now.err = config.ReadFile(w.path)
	if (now.err == nil) == (w.last.err == nil) && bytes.Equal(now.data, w.last.data) {
		return now, false
	}
	w.last = now
	return now, true
}
