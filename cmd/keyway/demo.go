package main

import (
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

//go:embed demo.yaml
var demoConfig string

// Names in the demo configuration.
const (
	demoIdentity = "demo"
	demoPolicy   = "demo"
)

// demoValues are what the demo configuration's kept lines are filled with.
type demoValues struct {
	Port         int
	ProviderPort int
	SecretA      string // paths
	SecretB      string
}

func (v demoValues) replacer() *strings.Replacer {
	return strings.NewReplacer("{{port}}", strconv.Itoa(v.Port), "{{provider_port}}", strconv.Itoa(v.ProviderPort),
		"{{secret_a}}", v.SecretA, "{{secret_b}}", v.SecretB)
}

// placeDemo writes the demo configuration at first start, and later only brings
// its kept lines up to date: all else in the file is the user's.
func placeDemo(path string, v demoValues) error {
	for _, secret := range []string{v.SecretA, v.SecretB} {
		if err := placeSecret(secret); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return writeFile(path, []byte(v.replacer().Replace(demoConfig)))
	case err != nil:
		return fmt.Errorf("read demo configuration: %w", err)
	}
	if fresh := refreshKept(string(text), v); fresh != string(text) {
		return writeFile(path, []byte(fresh))
	}
	return nil
}

// keptMark begins the comment that ends a kept line and names it.
const keptMark = "# kept by up: "

// refreshKept puts the template's line in the place of each kept line of text.
func refreshKept(text string, v demoValues) string {
	fresh := map[string]string{} // by the comment
	for _, line := range strings.Split(v.replacer().Replace(demoConfig), "\n") {
		if at := strings.Index(line, keptMark); at >= 0 {
			fresh[line[at:]] = line
		}
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		at := strings.Index(line, keptMark)
		if at < 0 {
			continue
		}
		if replacement, ok := fresh[strings.TrimRight(line[at:], " \r")]; ok {
			lines[i] = replacement
		}
	}
	return strings.Join(lines, "\n")
}

// placeSecret makes a random stand-in for a provider's key, once.
func placeSecret(path string) error {
	_, err := os.Stat(path)
	if err == nil {
		return nil
	}
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return fmt.Errorf("make demo secret: %w", err)
	}
	return writeFile(path, []byte("sk-demo-"+hex.EncodeToString(raw)+"\n"))
}
