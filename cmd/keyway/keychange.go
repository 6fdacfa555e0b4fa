package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"keyway/domain"
	"keyway/store"
)

// keyAct changes the key with an id and says what has become of it.
type keyAct func(ctx context.Context, s *store.Store, id string) (told string, err error)

// errSecretForID does not repeat what was given.
var errSecretForID = errors.New("that is the secret of a key; give the key's id, which begins with key_ (see keyway key list)")

// checkKeyID refuses what would bring a secret into messages.
func checkKeyID(id string) error {
	if strings.HasPrefix(id, domain.KeyPrefix) {
		return errSecretForID
	}
	return nil
}

// runKeyAct runs act on the store that the flags name and prints what it tells.
func runKeyAct(cmd *cobra.Command, f keyFlags, id string, act keyAct) error {
	if err := checkKeyID(id); err != nil {
		return err
	}
	return f.withStore(cmd.Context(), func(ctx context.Context, s *store.Store) error {
		told, err := act(ctx, s, id)
		if err != nil {
			return keyProblem(cmd.Name(), id, err)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), told)
		return err
	})
}

// keyProblem says which act failed on which key, and what to do.
func keyProblem(act, id string, err error) error {
	if errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("no key has the id %s; see keyway key list", id)
	}
	return fmt.Errorf("%s key %s: %w", act, id, err)
}

func newKeyState(verb string, state domain.KeyState) *cobra.Command {
	about := map[domain.KeyState]struct{ short, long string }{
		domain.KeyActive: {"Enable a disabled virtual key again.", `Enable a virtual key that was disabled, by its id. An expired key stays expired;
see keyway key expire.`},
		domain.KeyDisabled: {"Disable a virtual key.", `Disable a virtual key by its id, both secrets of a rotated one. New requests with
it are refused at once; requests that are running end as they would have.
keyway key enable takes it back.`},
	}[state]
	var f keyFlags
	cmd := &cobra.Command{
		Use:     verb + " ID",
		Short:   about.short,
		Long:    about.long,
		Example: "  keyway key " + verb + " key_3f9a0c1d2e4b5a67",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runKeyAct(cmd, f, args[0], func(ctx context.Context, s *store.Store, id string) (string, error) {
				return fmt.Sprintf("%s is %s", id, state), s.SetKeyState(ctx, id, state)
			})
		},
	}
	f.add(cmd)
	return cmd
}

func newKeyDelete() *cobra.Command {
	var f keyFlags
	cmd := &cobra.Command{
		Use:   "delete ID",
		Short: "Delete a virtual key for good.",
		Long: `Delete a virtual key by its id. New requests with it are refused at once. This
cannot be undone; keyway key disable can. What the key has used stays in the
ledger under its id.`,
		Example: `  keyway key delete key_3f9a0c1d2e4b5a67`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runKeyAct(cmd, f, args[0], func(ctx context.Context, s *store.Store, id string) (string, error) {
				return id + " is deleted", s.DeleteKey(ctx, id)
			})
		},
	}
	f.add(cmd)
	return cmd
}

func newKeyExpire() *cobra.Command {
	var f keyFlags
	cmd := &cobra.Command{
		Use:   "expire ID WHEN",
		Short: "Set when a virtual key expires.",
		Long: `Set when a virtual key stops working, by its id. WHEN is now, never, a time from
now such as 720h, or a point in time such as 2026-12-31T00:00:00Z. Each authz
judges it by its own clock.`,
		Example: `  keyway key expire key_3f9a0c1d2e4b5a67 720h
  keyway key expire key_3f9a0c1d2e4b5a67 never`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := expiryOf(args[1], time.Now())
			if err != nil {
				return err
			}
			return runKeyAct(cmd, f, args[0], func(ctx context.Context, s *store.Store, id string) (string, error) {
				told := id + " never expires"
				if !at.IsZero() {
					told = id + " expires at " + at.UTC().Format(time.RFC3339)
				}
				return told, s.SetKeyExpiry(ctx, id, at)
			})
		},
	}
	f.add(cmd)
	return cmd
}

// expiryOf reads when a key is to expire; a zero time is never.
func expiryOf(when string, now time.Time) (time.Time, error) {
	switch when {
	case "now":
		return now, nil
	case "never":
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, when)
	if err != nil {
		left, err := time.ParseDuration(when)
		if err != nil {
			return time.Time{}, fmt.Errorf("%q is neither now, never, a duration such as 720h nor a time such as 2026-12-31T00:00:00Z", when)
		}
		at = now.Add(left)
	}
	if !at.After(now) {
		return time.Time{}, fmt.Errorf("%s lies in the past; to expire the key at once say now", when)
	}
	return at, nil
}

// defaultGrace leaves the time to bring a new secret to every client.
const defaultGrace = 24 * time.Hour

func newKeyRotate() *cobra.Command {
	var (
		f      keyFlags
		output string
		grace  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "rotate ID",
		Short: "Give a virtual key a new secret and print it once.",
		Long: `Give a virtual key a new secret, by its id, and print it. Id, limits, models and
expiry stay. The previous secret works until the grace ends; a rotation within
the grace ends the secret before it at once.

For a key that has leaked, use --grace 0.`,
		Example: `  keyway key rotate key_3f9a0c1d2e4b5a67
  keyway key rotate key_3f9a0c1d2e4b5a67 --grace 0 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return errOutput(output)
			}
			if grace < 0 {
				return fmt.Errorf("--grace %s is negative; 0 ends the previous secret at once", grace)
			}
			if err := checkKeyID(args[0]); err != nil {
				return err
			}
			return f.withStore(cmd.Context(), func(ctx context.Context, s *store.Store) error {
				secret, err := domain.NewKeySecret()
				if err != nil {
					return err
				}
				now := time.Now()
				made, err := s.RotateKey(ctx, args[0], domain.KeyRotation{Hash: domain.HashKey(secret), At: now, Grace: grace})
				if err != nil && !(errors.Is(err, domain.ErrStoreDown) && made.Hash != "") {
					return keyProblem(cmd.Name(), args[0], err)
				}
				printed := printCreated(cmd.OutOrStdout(), output, createdKey{show(made, now), secret})
				if err != nil {
					// The secret may be the only one that works from now on: better shown in vain than lost.
					return fmt.Errorf("rotate key %s: %w; the secret above is the key's if keyway key list shows this rotation", args[0], err)
				}
				return printed
			})
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", defaultGrace,
		"Time from now during which the previous secret still works (a duration such as 24h); 0 is none.")
	outputFlag(cmd, &output, "text", "json")
	f.add(cmd)
	return cmd
}
