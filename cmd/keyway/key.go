package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
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
		Short: "Create, list, rotate, disable, expire and delete virtual keys.",
		Long: `Manage the virtual keys of a region: the credentials that clients send. Only the
SHA-256 of a secret is stored; the secret is printed once, when it is made.

The commands write to the region's store. A change reaches every running authz
at once, and within its --key-ttl (30 s) where the message is lost. Requests
that are running end as they would have.`,
		Example: `  keyway key create --identity acme --policy standard --models 'gpt-*'
  keyway key list
  keyway key rotate key_3f9a0c1d2e4b5a67 --grace 24h
  keyway key disable key_3f9a0c1d2e4b5a67`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeyCreate(), newKeyList(), newKeyRotate(), newKeyExpire(),
		newKeyState("enable", domain.KeyActive), newKeyState("disable", domain.KeyDisabled), newKeyDelete())
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
	RotatedAt *time.Time `json:"rotated_at"`
	// PreviousUntil is null once the secret before the last rotation works no more.
	PreviousUntil *time.Time `json:"previous_until"`
}

func show(k domain.VirtualKey, now time.Time) shownKey {
	s := shownKey{
		ID: k.ID, Identity: k.Identity, Name: k.Name, Policy: k.Policy, Models: k.Models,
		State: string(k.State), CreatedAt: k.CreatedAt.UTC(),
	}
	if s.Models == nil {
		s.Models = []string{}
	}
	s.ExpiresAt, s.RotatedAt = shownTime(k.ExpiresAt), shownTime(k.RotatedAt)
	if s.ExpiresAt != nil && k.State == domain.KeyActive && !now.Before(*s.ExpiresAt) {
		s.State = "expired"
	}
	if k.PreviousHash != "" && now.Before(k.PreviousUntil) {
		s.PreviousUntil = shownTime(k.PreviousUntil)
	}
	return s
}

// shownTime is at for people; nil for a zero time.
func shownTime(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	return &at
}

func newKeyList() *cobra.Command {
	var (
		f      keyFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the virtual keys of the region.",
		Long: `List all virtual keys of the region with their owner, policy, models and state
(active, disabled, expired), the oldest first. ROTATED is the last rotation, and
until when the secret before it works. Secrets are not stored and so never shown.`,
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
	slices.SortFunc(keys, func(a, b domain.VirtualKey) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
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
	fmt.Fprintln(w, "ID\tIDENTITY\tNAME\tPOLICY\tMODELS\tSTATE\tCREATED\tEXPIRES\tROTATED")
	for _, k := range keys {
		s := show(k, now)
		models := "all"
		if len(s.Models) > 0 {
			models = strings.Join(s.Models, ",")
		}
		rotated := orNever(s.RotatedAt)
		if s.PreviousUntil != nil {
			rotated += " (previous until " + orNever(s.PreviousUntil) + ")"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			s.ID, s.Identity, s.Name, s.Policy, models, s.State, orNever(&s.CreatedAt), orNever(s.ExpiresAt), rotated)
	}
	return w.Flush()
}

func orNever(at *time.Time) string {
	if at == nil {
		return "never"
	}
	return at.Local().Format(time.DateTime)
}
