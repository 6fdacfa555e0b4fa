package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"keyway/domain"
	"keyway/store"
)

func newChannel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "channel",
		Short: "Show the health of channels, and bring one back.",
		Long: `Show what the region has learned of its channels, and forget what is held against
one. A channel cools for a class of models after its provider answered with 429
or 5xx, or not at all; it is out, until its configuration changes or someone
resets it, after its provider said that money is missing or the credential is bad.`,
		Example: `  keyway channel list
  keyway channel reset openai-a`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newChannelList(), newChannelReset())
	return cmd
}

// shownChannel is the health of one class of a channel as people see it.
type shownChannel struct {
	Channel string `json:"channel"`
	// Class is "*" for what concerns all of them.
	Class string `json:"class"`
	// State is usable, trial, cooling or out; Reason is empty when usable.
	State  string     `json:"state"`
	Reason string     `json:"reason"`
	Until  *time.Time `json:"until"`
	// FailedTrials are those in a row since it cooled.
	FailedTrials int     `json:"failed_trials"`
	ErrorRate    float64 `json:"error_rate"`
	TTFTMs       float64 `json:"ttft_ms"`
}

func newChannelList() *cobra.Command {
	var (
		f      keyFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the channels of which anything is known.",
		Long: `List the channels that were used in the last minutes or have a cooldown, one line
for each class of models. STATE is usable, cooling (until UNTIL), trial (one
request may try it) or out (until it is changed or reset); ERRORS and TTFT are
moving averages.`,
		Example: `  keyway channel list
  keyway channel list -o json --store redis://127.0.0.1:6379/0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return errOutput(output)
			}
			return f.withStore(cmd.Context(), func(ctx context.Context, s *store.Store) error {
				list, err := channelList(ctx, s)
				if err != nil {
					return fmt.Errorf("list channels: %w", err)
				}
				return printChannels(cmd.OutOrStdout(), output, list)
			})
		},
	}
	outputFlag(cmd, &output, "table", "json")
	f.add(cmd)
	return cmd
}

// channelList joins cooldowns and averages, by channel and class.
func channelList(ctx context.Context, s *store.Store) ([]shownChannel, error) {
	cooldowns, err := s.Cooldowns(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	names, err := s.ChannelNames(ctx)
	if err != nil {
		return nil, err
	}
	stats, err := s.ChannelStats(ctx, names)
	if err != nil {
		return nil, err
	}
	rows := make(map[domain.ChannelClass]shownChannel, len(stats)+len(cooldowns))
	for of, stat := range stats {
		rows[of] = shownChannel{
			Channel: of.Channel, Class: of.Class, State: domain.HealthUsable.String(),
			ErrorRate: stat.ErrorRate, TTFTMs: float64(stat.TTFT) / float64(time.Millisecond),
		}
	}
	for _, c := range cooldowns {
		row, health := rows[c.ChannelClass], c.Health(now, now)
		row.Channel, row.Class, row.FailedTrials = c.Channel, c.Class, c.Level
		row.State, row.Reason, row.Until = health.State.String(), string(c.Reason), shownTime(health.Until)
		rows[c.ChannelClass] = row
	}
	list := make([]shownChannel, 0, len(rows))
	for _, row := range rows {
		list = append(list, row)
	}
	slices.SortFunc(list, func(a, b shownChannel) int {
		return cmp.Or(cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.Class, b.Class))
	})
	return list, nil
}

// printChannels prints one class of a channel a line in either form.
func printChannels(out io.Writer, form string, list []shownChannel) error {
	if form == "json" {
		enc := json.NewEncoder(out)
		for _, c := range list {
			if err := enc.Encode(c); err != nil {
				return fmt.Errorf("write channel: %w", err)
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "CHANNEL\tCLASS\tSTATE\tREASON\tUNTIL\tFAILED TRIALS\tERRORS\tTTFT")
	for _, c := range list {
		until := ""
		if c.Until != nil {
			until = c.Until.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%.0f %%\t%.0f ms\n",
			c.Channel, c.Class, c.State, c.Reason, until, c.FailedTrials, 100*c.ErrorRate, c.TTFTMs)
	}
	return w.Flush()
}

func newChannelReset() *cobra.Command {
	var f keyFlags
	cmd := &cobra.Command{
		Use:   "reset CHANNEL",
		Short: "Forget what is held against a channel.",
		Long: `Forget what is held against a channel, by its name: cooldowns of all classes, and
that it is out. Every authz sends requests there again at once. If its provider
still refuses, the next answer says so.`,
		Example: `  keyway channel reset openai-a`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.withStore(cmd.Context(), func(ctx context.Context, s *store.Store) error {
				n, err := s.ResetChannel(ctx, args[0])
				if err != nil {
					return err
				}
				told := fmt.Sprintf("channel %s is usable again; %d cooldowns forgotten", args[0], n)
				if n == 0 {
					told = fmt.Sprintf("nothing was held against channel %s", args[0])
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), told)
				return err
			})
		},
	}
	f.add(cmd)
	return cmd
}
