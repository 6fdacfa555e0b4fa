package config

import (
	"errors"
	"fmt"
	"io"
	"os"

	keywayv1 "keyway/api/keyway/v1"
)

// maxFileBytes bounds a configuration file. A region of 10 000 channels is
// about 4 MiB, so a larger file is something else.
const maxFileBytes = 16 << 20

var errFileTooLarge = fmt.Errorf("the file is larger than %d bytes", maxFileBytes)

// Load reads, completes and checks the file at path. An error that concerns
// the content is a *ValidationError with all problems; others wrap the cause.
func Load(path string) (*keywayv1.Config, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// ReadFile reads the raw bytes of a configuration file, at most 16 MiB.
func ReadFile(path string) (data []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open configuration: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	data, err = io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("read configuration: %w", errFileTooLarge)
	}
	return data, nil
}

// Parse decodes YAML strictly (unknown and repeated fields are refused), fills
// in the defaults and validates. The error is a *ValidationError that holds
// every problem found, not the first only.
func Parse(data []byte) (*keywayv1.Config, error) {
	var found problems
	cfg := new(keywayv1.Config)
	decode(data, cfg, &found)
	for _, p := range found.list {
		if p.Path == "" && cfg.Region == "" && len(cfg.Providers) == 0 && len(cfg.Channels) == 0 {
			// Nothing could be read: checking an empty message would
			// bury the one useful remark.
			return nil, found.err()
		}
	}
	FillDefaults(cfg)
	check(cfg, &found)
	checkServed(cfg, &found)
	if err := found.err(); err != nil {
		return nil, err
	}
	return cfg, nil
}
