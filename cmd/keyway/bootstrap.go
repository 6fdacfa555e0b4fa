package main

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"keyway/envoy"
)

func newBootstrap() *cobra.Command {
	var (
		o      envoy.BootstrapOptions
		output string
		file   string
	)
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Print the bootstrap of an Envoy of the region.",
		Long: `Print the static configuration with which an Envoy joins the region: where the
services are, and that listeners, routes and clusters come from the control
plane. Give it to Envoy with --config-path.`,
		Example: `  keyway bootstrap --node envoy-a > envoy.yaml
  keyway bootstrap --xds xds:9090 --authz authz:9001 --extproc extproc:9002 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := envoy.Bootstrap(o)
			if err != nil {
				return fmt.Errorf("build bootstrap: %w", err)
			}
			text, err := renderBootstrap(b, output)
			if err != nil {
				return err
			}
			if file != "" {
				return replaceFile(file, text, 0o644) // Envoy runs as another user.
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.NodeID, "node", "envoy-0", "Id of this Envoy, unique in the region; it begins with \"envoy-\".")
	flags.StringVar(&o.Region, "region", "demo", "Name of the region.")
	flags.StringVar(&o.XDS, "xds", "127.0.0.1:9090", "Address of the control plane, host:port or unix:/path.")
	flags.StringVar(&o.Authz, "authz", "127.0.0.1:9001", "Address of authz, host:port or unix:/path.")
	flags.StringVar(&o.Extproc, "extproc", "127.0.0.1:9002", "Address of extproc, host:port or unix:/path.")
	flags.StringVar(&o.Relay, "relay", "", "Address of extproc's relay, host:port or unix:/path; empty has none.")
	flags.StringVar(&o.Egress, "egress", "",
		"Socket, unix:/path, at which the relay and the workers call channels; empty has none. Only Envoy's own user can open it.")
	flags.StringVar(&o.Admin, "admin", "127.0.0.1:9901", "Address of Envoy's admin page, host:port; empty has none.")
	flags.StringVar(&file, "out", "", "File to write instead of standard output, where there is no shell to redirect it.")
	outputFlag(cmd, &output, "yaml", "json")
	allFromEnvironment(cmd, nil)
	return cmd
}

func renderBootstrap(b *bootstrapv3.Bootstrap, form string) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, Indent: "  "}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encode bootstrap: %w", err)
	}
	switch form {
	case "json":
		return append(raw, '\n'), nil
	case "yaml":
		text, err := yaml.JSONToYAML(raw)
		if err != nil {
			return nil, fmt.Errorf("encode bootstrap: %w", err)
		}
		return text, nil
	}
	return nil, errOutput(form)
}
