package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"keyway/domain"
	"keyway/store"
)

func newKey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Create, list and disable virtual keys.",
		Long: `Manage the virtual keys of a region: the credentials that clients send. Only the
SHA-256 of a key is stored; its secret is printed once, when it is created.

The commands write to the region's store. A change reaches every running authz
at once, and within 30 s where the message is lost.`,
		Example: `  keyway key create --identity acme --policy standard --models demo
  keyway key list
  keyway key disable key_3f9a0c1d2e4b5a67`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeyCreate(), newKeyList(), newKeyDisable())
	return cmd
}

// keyFlags find the store.
type keyFlags struct{ store, dir string }

func (f *keyFlags) add(cmd *cobra.Command) {
	storeFlag(cmd, &f.store)
	dirFlag(cmd, &f.dir)
	fromEnvironment(cmd, map[string]string{"store": envStore, "dir": envDir})
}

// withStore runs act on the store that the flags name.
func (f keyFlags) withStore(ctx context.Context, act func(context.Context, *store.Store) error) (err error) {
	url := f.store
	if url == "" {
		r, err := readReadiness(f.dir)
		if err != nil {
			return err
		}
		url = r.RedisURL
	}
	s, err := openStore(url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	return act(ctx, s)
}

// keyTimeout bounds one command on keys, listing tens of thousands included.
const keyTimeout = 30 * time.Second

// createdKey is what `key create -o json` prints; the only place with a secret.
type createdKey struct {
	shownKey
	Secret string `json:"secret"`
}

// shownKey is a key as people see it.
type shownKey struct {
	ID        string     `json:"id"`
	Identity  string     `json:"identity"`
	Name      string     `json:"name"`
	Policy    string     `json:"policy"`
	Models    []string   `json:"models"`
	State     string     `json:"state"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at"`
}

func show(k domain.VirtualKey, now time.Time) shownKey {
	s := shownKey{
		ID: k.ID, Identity: k.Identity, Name: k.Name, Policy: k.Policy, Models: k.Models,
		State: string(k.State), CreatedAt: k.CreatedAt.UTC(),
	}
	if s.Models == nil {
		s.Models = []string{}
	}
	if !k.ExpiresAt.IsZero() {
		at := k.ExpiresAt.UTC()
		s.ExpiresAt = &at
		if k.State == domain.KeyActive && !now.Before(at) {
			s.State = "expired"
		}
	}
	return s
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
key without a policy has only the limits of its identity.`,
		Example: `  keyway key create --identity acme --policy standard --name ci --expires 720h
  keyway key create --identity acme --models gpt-5,claude-sonnet -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return errOutput(output)
			}
			if expire < 0 {
				return fmt.Errorf("--expires %s lies in the past", expire)
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
	flags.StringSliceVar(&key.Models, "models", nil, "Models the key may use, separated by commas; empty allows all.")
	flags.StringVar(&key.Name, "name", "", "Note for people, shown in lists.")
	flags.DurationVar(&expire, "expires", 0, "Time from now until the key stops working (a duration such as 720h); 0 is never.")
	outputFlag(cmd, &output, "text", "json")
	f.add(cmd)
	if err := cmd.MarkFlagRequired("identity"); err != nil {
		panic(err) // The flag is defined above.
	}
	return cmd
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
	_, err := fmt.Fprintf(out, "id:     %s\nsecret: %s\n\nThe secret is not shown again.\n", k.ID, k.Secret)
	return err
}

func newKeyList() *cobra.Command {
	var (
		f      keyFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the virtual keys of the region.",
		Long: `List all virtual keys of the region with their owner, limits and state. Secrets
are not stored and so never shown.`,
		Example: `  keyway key list
  keyway key list -o json --store redis://127.0.0.1:6379/0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return errOutput(output)
			}
			return f.withStore(cmd.Context(), func(ctx context.Context, s *store.Store) error {
				keys, err := s.Keys(ctx)
				if err != nil {
					return fmt.Errorf("list keys: %w", err)
				}
				return printKeys(cmd.OutOrStdout(), output, keys)
			})
		},
	}
	outputFlag(cmd, &output, "table", "json")
	f.add(cmd)
	return cmd
}

// printKeys prints one key a line in either form.
func printKeys(out io.Writer, form string, keys []domain.VirtualKey) error {
	now := time.Now()
	if form == "json" {
		enc := json.NewEncoder(out)
		for _, k := range keys {
			if err := enc.Encode(show(k, now)); err != nil {
				return fmt.Errorf("write key: %w", err)
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tIDENTITY\tNAME\tPOLICY\tMODELS\tSTATE\tCREATED\tEXPIRES")
	for _, k := range keys {
		s := show(k, now)
		models, expires := "all", "never"
		if len(s.Models) > 0 {
			models = strings.Join(s.Models, ",")
		}
		if s.ExpiresAt != nil {
			expires = s.ExpiresAt.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			s.ID, s.Identity, s.Name, s.Policy, models, s.State, s.CreatedAt.Local().Format(time.DateTime), expires)
	}
	return w.Flush()
}

func newKeyDisable() *cobra.Command {
	var f keyFlags
	cmd := &cobra.Command{
		Use:   "disable ID",
		Short: "Disable a virtual key.",
		Long: `Disable a virtual key by its id. New requests with it are refused at once;
requests that are running end as they would have.`,
		Example: `  keyway key disable key_3f9a0c1d2e4b5a67`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.withStore(cmd.Context(), func(ctx context.Context, s *store.Store) error {
				switch err := s.SetKeyState(ctx, args[0], domain.KeyDisabled); {
				case errors.Is(err, domain.ErrNotFound):
					return fmt.Errorf("no key has the id %s; see keyway key list", args[0])
				case err != nil:
					return fmt.Errorf("disable key: %w", err)
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is disabled\n", args[0])
				return err
			})
		},
	}
	f.add(cmd)
	return cmd
}
