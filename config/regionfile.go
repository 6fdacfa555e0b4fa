package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"

	keywayv1 "keyway/api/keyway/v1"
)

// regionFileMode keeps the file to its owner: it holds no secret, but it tells
// who the customers are and what they may spend.
const regionFileMode = 0o600

// SaveRegionConfig writes rc to path as protobuf JSON, mode 0600. The file is
// replaced in one step, so that a crash leaves either the old or the new one.
func SaveRegionConfig(path string, rc *keywayv1.RegionConfig) (err error) {
	data, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true}.Marshal(rc)
	if err != nil {
		return fmt.Errorf("encode region configuration: %w", err)
	}
	dir := filepath.Dir(path)
	// CreateTemp makes the file with mode 0600.
	temp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("create region configuration file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	_, err = temp.Write(data)
	if err == nil {
		err = temp.Chmod(regionFileMode)
	}
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return fmt.Errorf("write region configuration file: %w", err)
	}
	if err = os.Rename(temp.Name(), path); err != nil {
		return fmt.Errorf("replace region configuration file: %w", err)
	}
	return nil
}

// ReadRegionConfig reads what SaveRegionConfig wrote. A missing file is an
// error that wraps fs.ErrNotExist. Fields that a newer version wrote are ignored.
func ReadRegionConfig(path string) (*keywayv1.RegionConfig, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read region configuration file: %w", err)
	}
	rc := new(keywayv1.RegionConfig)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, rc); err != nil {
		return nil, fmt.Errorf("decode region configuration file: %w", err)
	}
	return rc, nil
}
