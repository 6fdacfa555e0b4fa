package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"keyway/envoy"
)

func newBootstrap() *cobra.Command {
	var (
		o      envoy.BootstrapOptions
		output string
		file   string

		certificate tlsFlags
	)
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Print the bootstrap of an Envoy of the region.",
		Long: `Print the static configuration with which an Envoy joins the region: where the
services are, and that listeners, routes and clusters come from the control
plane. Give it to Envoy with --config-path.

With --tls-cert, --tls-key and --tls-ca, the files of Envoy's own certificate as
Envoy sees them, services at host:port are called over mutual TLS; those on Unix
sockets, and the relay, are not. It needs --out then: Envoy is told of the files by
two more beside it, NAME-own.yaml and NAME-authorities.yaml, so that it follows them.
Replace a certificate by moving the new files into their folder.`,
		Example: `  keyway bootstrap --node envoy-a > envoy.yaml
  keyway bootstrap --xds xds:9090 --authz authz:9001 --extproc extproc:9002 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := bootstrapTLS(&o, certificate, file); err != nil {
				return err
			}
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
	certificate.add(cmd)
	outputFlag(cmd, &output, "yaml", "json")
	allFromEnvironment(cmd, nil)
	return cmd
}

var errNoOut = errors.New("--tls-cert needs --out: two more files go beside it")

// bootstrapTLS writes the files that tell Envoy of its certificate, where there is
// one, beside that of the bootstrap.
func bootstrapTLS(o *envoy.BootstrapOptions, f tlsFlags, file string) error {
	given, err := f.given()
	switch {
	case err != nil || !given:
		return err
	case file == "":
		return errNoOut
	}
	secrets, err := filepath.Abs(strings.TrimSuffix(file, filepath.Ext(file)))
	if err != nil {
		return fmt.Errorf("name the files of the certificate: %w", err)
	}
	o.TLS = envoy.BootstrapTLS{Cert: f.Cert, Key: f.Key, CA: f.CA, Secrets: secrets}
	told, err := envoy.TLSSecrets(o.TLS)
	if err != nil {
		return fmt.Errorf("tell of the certificate: %w", err)
	}
	for name, content := range told {
		text, err := renderBootstrap(content, "yaml")
		if err != nil {
			return err
		}
		if err := replaceFile(name, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func renderBootstrap(b proto.Message, form string) ([]byte, error) {
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
