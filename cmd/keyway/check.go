package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/spf13/cobra"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/cmd/keyway/parts"
	"keyway/config"
	"keyway/envoy"
)

// envoyCheck says whether Envoy itself reads the result.
type envoyCheck int

const (
	withEnvoy envoyCheck = iota
	withoutEnvoy
)

func newCheck() *cobra.Command {
	var (
		partsDir string
		noEnvoy  bool
	)
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Validate a configuration file without serving it.",
		Long: `Read a configuration file strictly, print everything that is wrong with it, one
problem a line with the field's path, and let Envoy validate the configuration
that is made from it. The exit status is 0 when all of it is right, else 1.

Envoy is found, or installed, as "keyway up" does it; --no-envoy leaves its part
of the check out.`,
		Example: `  keyway check config.yaml
  keyway check --no-envoy config.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			mode := withEnvoy
			if noEnvoy {
				mode = withoutEnvoy
			}
			return runCheck(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), checkOptions{File: args[0], PartsDir: partsDir, Mode: mode})
		},
	}
	cmd.Flags().BoolVar(&noEnvoy, "no-envoy", false, "Check the file only, without running Envoy on what is made from it.")
	cmd.Flags().StringVar(&partsDir, "parts-dir", defaultPartsDir, "Folder where Envoy is installed when the machine has none.")
	return cmd
}

type checkOptions struct {
	File     string
	PartsDir string
	Mode     envoyCheck
}

func runCheck(ctx context.Context, out, progress io.Writer, o checkOptions) error {
	cfg, err := config.Load(o.File)
	var invalid *config.ValidationError
	if errors.As(err, &invalid) {
		for _, p := range invalid.Problems {
			fmt.Fprintf(out, "%s: %s\n", o.File, p)
		}
		return errSilent
	}
	if err != nil {
		return err
	}
	static, err := staticBootstrap(cfg)
	if err != nil {
		return err
	}
	if o.Mode == withoutEnvoy {
		_, err = fmt.Fprintf(out, "%s is valid (Envoy was not asked)\n", o.File)
		return err
	}
	binary, err := parts.Envoy(ctx, parts.Options{Dir: o.PartsDir, Progress: func(line string) { fmt.Fprintln(progress, line) }})
	if err != nil {
		return fmt.Errorf("find Envoy (or pass --no-envoy): %w", err)
	}
	if err := askEnvoy(ctx, binary, static); err != nil {
		return fmt.Errorf("%s: %w", o.File, err)
	}
	_, err = fmt.Fprintf(out, "%s is valid\n", o.File)
	return err
}

// staticBootstrap is a bootstrap that holds all of cfg: Envoy validates only
// what is static.
func staticBootstrap(cfg *keywayv1.Config) (*bootstrapv3.Bootstrap, error) {
	resources, err := envoy.Build(cfg)
	if err != nil {
		return nil, fmt.Errorf("build Envoy configuration: %w", err)
	}
	b, err := envoy.Bootstrap(envoy.BootstrapOptions{
		NodeID: "envoy-check", Region: cfg.GetRegion(),
		XDS: "127.0.0.1:1", Authz: "127.0.0.1:1", Extproc: "127.0.0.1:1", Relay: "127.0.0.1:1", // Validation opens none of them.
	})
	if err != nil {
		return nil, fmt.Errorf("build bootstrap: %w", err)
	}
	static, err := envoy.Inline(b, resources)
	if err != nil {
		return nil, fmt.Errorf("inline Envoy configuration: %w", err)
	}
	return static, nil
}

// askEnvoy runs Envoy in validate mode on b.
func askEnvoy(ctx context.Context, binary string, b *bootstrapv3.Bootstrap) error {
	text, err := renderBootstrap(b, "json")
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "keyway-check-")
	if err != nil {
		return fmt.Errorf("make folder for Envoy: %w", err)
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "bootstrap.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write bootstrap: %w", err)
	}
	output, err := exec.CommandContext(ctx, binary, "--mode", "validate", "--config-path", file,
		"--reject-unknown-dynamic-fields", "--log-level", "error").CombinedOutput()
	if err != nil {
		return fmt.Errorf("envoy refuses what is made from it (%w):\n%s", err, strings.TrimSpace(string(output)))
	}
	return nil
}
