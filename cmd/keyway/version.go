package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary.",
		Long: `Print which source this binary was built from, as far as the Go toolchain has
recorded it, and the toolchain and platform.`,
		Example: `  keyway version`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "keyway %s %s %s/%s\n", sourceVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// sourceVersion is the module's version, or the commit of a local build with
// "+dirty" when the tree had changes.
func sourceVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if revision == "" {
		return info.Main.Version
	}
	if settings["vcs.modified"] == "true" {
		revision += "+dirty"
	}
	return revision
}
