package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"keyway/e2e/sdk/gosdk"
	"keyway/e2e/sdk/sdkcase"
)

// The forms of a run, for the tests' convenience.
type (
	Env    = sdkcase.Env
	Case   = sdkcase.Case
	Result = sdkcase.Result
)

// Lang is the language whose SDKs run.
type Lang string

// The languages.
const (
	Python Lang = "python"
	Node   Lang = "node"
	Go     Lang = "go"
)

// Langs lists every language.
func Langs() []Lang { return []Lang{Python, Node, Go} }

// ErrNoRuntime is the error of a language whose interpreter or package tool is
// not on PATH, or too old.
var ErrNoRuntime = errors.New("runtime is not installed")

// Run runs cases one after another with the SDKs of lang, and returns one
// result for each, in order. An SDK's error is a result; the error of Run
// means that the runner itself failed.
func Run(ctx context.Context, lang Lang, env Env, cases []Case) ([]Result, error) {
	if lang == Go {
		return gosdk.Run(ctx, env, cases), nil
	}
	command, err := prepare(ctx, lang)
	if err != nil {
		return nil, fmt.Errorf("prepare %s SDKs: %w", lang, err)
	}
	input, err := json.Marshal(cases)
	if err != nil {
		return nil, fmt.Errorf("encode cases: %w", err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	cmd.Env = environment(env)
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run %s SDKs: %w: %s", lang, err, tail(stderr.Bytes()))
	}
	results, err := readResults(&stdout)
	if err != nil {
		return nil, fmt.Errorf("read results of %s SDKs: %w", lang, err)
	}
	if len(results) != len(cases) {
		return nil, fmt.Errorf("run %s SDKs: %d results for %d cases", lang, len(results), len(cases))
	}
	return results, nil
}

// environment is the process's own, without what would configure an SDK
// behind the test's back or lead loopback through a proxy.
func environment(env Env) []string {
	out := []string{
		"KEYWAY_BASE_URL=" + env.BaseURL, "KEYWAY_API_KEY=" + env.APIKey, "KEYWAY_MODEL=" + env.Model,
		"NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost", "PYTHONDONTWRITEBYTECODE=1",
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch upper := strings.ToUpper(name); {
		case strings.HasPrefix(upper, "OPENAI_"), strings.HasPrefix(upper, "ANTHROPIC_"), strings.HasPrefix(upper, "KEYWAY_"):
		case upper == "NO_PROXY", upper == "PYTHONDONTWRITEBYTECODE":
		default:
			out = append(out, kv)
		}
	}
	return out
}

// readResults reads one result after another.
func readResults(r io.Reader) ([]Result, error) {
	var results []Result
	dec := json.NewDecoder(r)
	for {
		var result Result
		switch err := dec.Decode(&result); {
		case errors.Is(err, io.EOF):
			return results, nil
		case err != nil:
			return nil, err
		}
		results = append(results, result)
	}
}

// tail is the end of a process's output, enough for its last error.
func tail(output []byte) string {
	const most = 4 << 10
	return strings.TrimSpace(string(output[max(0, len(output)-most):]))
}
