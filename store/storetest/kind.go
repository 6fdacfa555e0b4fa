package storetest

import (
	"os"
	"os/exec"
	"path/filepath"
)

// Kind is one of the store's programs. The zero Kind is the first that is found.
type Kind struct {
	// Name is that of the program, such as "valkey-server".
	Name string

	program string
}

// programs are the names of the store's programs, the preferred one first.
var programs = []string{"valkey-server", "redis-server"}

// Kinds lists every kind of store that this machine has: only the one that
// KEYWAY_STORE_BIN names, where it is set.
func Kinds() []Kind {
	if program := os.Getenv("KEYWAY_STORE_BIN"); program != "" {
		return []Kind{{Name: filepath.Base(program), program: program}}
	}
	var kinds []Kind
	for _, name := range programs {
		if program := look(name); program != "" {
			kinds = append(kinds, Kind{Name: name, program: program})
		}
	}
	return kinds
}

// find is the program of the zero Kind: KEYWAY_STORE_BIN, else the first name
// on PATH, else in .parts/bin.
func find() (string, error) {
	if program := os.Getenv("KEYWAY_STORE_BIN"); program != "" {
		return program, nil
	}
	for _, look := range []func(string) string{onPath, inParts} {
		for _, name := range programs {
			if program := look(name); program != "" {
				return program, nil
			}
		}
	}
	return "", ErrMissing
}

func look(name string) string {
	if program := onPath(name); program != "" {
		return program
	}
	return inParts(name)
}

func onPath(name string) string {
	program, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return program
}

// inParts looks into .parts/bin beside the go.mod above the working folder.
func inParts(name string) string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
	program := filepath.Join(dir, ".parts", "bin", name)
	if _, err := os.Stat(program); err != nil {
		return ""
	}
	return program
}
