package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newHealth() *cobra.Command {
	var (
		dir, url, name string
		timeout        time.Duration
	)
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a service whether it is ready.",
		Long: `Ask a service for its readiness, print the answer and exit with 0 when it is
ready, else with 1. Containers use it as their health check, with --url. Without
a flag every service of a running "keyway up" is asked.`,
		Example: `  keyway health --url http://127.0.0.1:9101/readyz
  keyway health --service authz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if url != "" {
				return askHealth(ctx, cmd.OutOrStdout(), "", url)
			}
			r, err := readReadiness(dir)
			if err != nil {
				return err
			}
			return askServices(ctx, cmd.OutOrStdout(), r.Services, name)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&url, "url", "", "Address of the health endpoint to ask, such as http://127.0.0.1:9101/readyz.")
	flags.StringVar(&name, "service", "", "Name of one service of a running \"keyway up\" to ask, such as authz.")
	flags.DurationVar(&timeout, "timeout", 2*time.Second, "Longest wait for all answers together (a duration such as 2s).")
	dirFlag(cmd, &dir)
	fromEnvironment(cmd, map[string]string{"dir": envDir})
	cmd.MarkFlagsMutuallyExclusive("url", "service")
	return cmd
}

// askServices asks all services, or the one called only.
func askServices(ctx context.Context, out io.Writer, services map[string]service, only string) error {
	names := make([]string, 0, len(services))
	for name := range services {
		names = append(names, name)
	}
	slices.Sort(names)
	if only != "" {
		if !slices.Contains(names, only) {
			return fmt.Errorf("no service is called %q; known: %s", only, strings.Join(names, ", "))
		}
		names = []string{only}
	}
	unready := false
	for _, name := range names {
		if err := askHealth(ctx, out, name+": ", services[name].ReadyURL); err != nil {
			fmt.Fprintf(out, "%s: %v\n", name, err)
			unready = true
		}
	}
	if unready {
		return errSilent
	}
	return nil
}

// maxHealthBody bounds the answer that is printed.
const maxHealthBody = 64 << 10

func askHealth(ctx context.Context, out io.Writer, prefix, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("make health request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxHealthBody))
	if err != nil {
		return fmt.Errorf("read health: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready (%s): %s", resp.Status, strings.TrimSpace(string(body)))
	}
	_, err = fmt.Fprintf(out, "%s%s\n", prefix, strings.TrimSpace(string(body)))
	return err
}
