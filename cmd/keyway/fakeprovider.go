package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"keyway/e2e/fakeprovider"
)

func newFakeProvider() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:    "fakeprovider",
		Short:  "Run a scripted provider for demos and tests.",
		Hidden: true,
		Long: `Run a provider that answers with made-up text and right usage, in the OpenAI and
the Anthropic dialect. A request can script its own answer (status, delays,
cuts, resets) by [[fake:{…}]] in its last user message, and what arrived can be
read under /_records; package e2e/fakeprovider documents both.`,
		Example: `  keyway fakeprovider --listen 127.0.0.1:8090
  curl http://127.0.0.1:8090/_records?limit=1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := fakeprovider.New(fakeprovider.Options{
				Faces: []fakeprovider.FaceOptions{{Name: "demo", Addr: listen}},
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "fake provider listens on %s\n", listen)
			return server.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8090", "Address for requests, host:port.")
	allFromEnvironment(cmd, nil)
	return cmd
}
