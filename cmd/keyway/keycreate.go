package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"keyway/domain"
	"keyway/store"
)

// createdKey is what `key create -o json` and `key rotate -o json` print; the
// only place with a secret.
type createdKey struct {
	shownKey
	Secret string `json:"secret"`
}

func newKeyCreate() *cobra.Command {
	var (
		f      keyFlags
		output string
		expire time.Duration
		key    domain.VirtualKey
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a virtual key and print its secret once.",
		Long: `Create a virtual key for an identity and print its secret. The secret cannot be
shown again. Policies and identities are those of the region's configuration; a
key without a policy has only the limits of its identity.

In --models, * stands for any characters, slashes included: gpt-* allows gpt-5
and gpt-5-mini, and neither gpt nor my-gpt-5. Everything else is literal, case
too. The name that counts is the model's in the configuration, not a provider's.`,
		Example: `  keyway key create --identity acme --policy standard --name ci --expires 720h
  keyway key create --identity acme --models 'gpt-*,claude-sonnet' -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return errOutput(output)
			}
			if expire < 0 {
				return fmt.Errorf("--expires %s lies in the past", expire)
			}
			if err := checkModels(cmd, key.Models); err != nil {
				return err
			}
			now := time.Now()
			if expire > 0 {
				key.ExpiresAt = now.Add(expire)
			}
			return f.withStore(cmd.Context(), func(ctx context.Context, s *store.Store) error {
				secret, made, err := createKey(ctx, s, key, now)
				if err != nil {
					return err
				}
				return printCreated(cmd.OutOrStdout(), output, createdKey{show(made, now), secret})
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&key.Identity, "identity", "", "Identity that owns the key; required.")
	flags.StringVar(&key.Policy, "policy", "", "Policy with the key's own limits; empty sets none.")
	flags.StringSliceVar(&key.Models, "models", nil, "Models the key may use, names or patterns with *, separated by commas; all without this flag.")
	flags.StringVar(&key.Name, "name", "", "Note for people, shown in lists.")
	flags.DurationVar(&expire, "expires", 0, "Time from now until the key stops working (a duration such as 720h); 0 is never.")
	outputFlag(cmd, &output, "text", "json")
	f.add(cmd)
	if err := cmd.MarkFlagRequired("identity"); err != nil {
		panic(err) // The flag is defined above.
	}
	return cmd
}

// checkModels refuses what would not restrict the key as it is meant: a list
// that an empty variable left empty must not allow every model.
func checkModels(cmd *cobra.Command, models []string) error {
	if cmd.Flags().Changed("models") && len(models) == 0 {
		return errors.New("--models is empty; leave the flag out to allow every model")
	}
	for _, pattern := range models {
		if err := domain.CheckModelPattern(pattern); err != nil {
			return fmt.Errorf("--models: %w", err)
		}
	}
	return nil
}

// keyWriter is what createKey needs of the store.
type keyWriter interface {
	PutKey(ctx context.Context, key domain.VirtualKey) error
}

// createKey completes key with id, secret's hash and state, and stores it.
func createKey(ctx context.Context, w keyWriter, key domain.VirtualKey, now time.Time) (secret string, made domain.VirtualKey, err error) {
	if secret, err = domain.NewKeySecret(); err != nil {
		return "", key, err
	}
	if key.ID, err = domain.NewKeyID(); err != nil {
		return "", key, err
	}
	key.Hash, key.State, key.CreatedAt = domain.HashKey(secret), domain.KeyActive, now
	if err := w.PutKey(ctx, key); err != nil {
		return "", key, fmt.Errorf("store key: %w", err)
	}
	return secret, key, nil
}

func printCreated(out io.Writer, form string, k createdKey) error {
	if form == "json" {
		return json.NewEncoder(out).Encode(k)
	}
	text := fmt.Sprintf("id:     %s\nsecret: %s\n\nThe secret is not shown again.", k.ID, k.Secret)
	if k.PreviousUntil != nil {
		text += " The previous one works until " + orNever(k.PreviousUntil) + "."
	}
	_, err := fmt.Fprintln(out, text)
	return err
}
