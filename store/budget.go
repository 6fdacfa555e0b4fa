package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"keyway/domain"
	"keyway/lua"
)

// keepCorrected outlives every window's counter, so that a correction that is
// applied again long after is still known.
const keepCorrected = keepMonth + 24*time.Hour

// windowName is the counter of a window as the ledger keeps it; "" for a hold
// that is none.
func windowName(identity string, h domain.Hold) string {
	if classOf(h.Kind) != classWindow {
		return ""
	}
	_, name, _ := strings.Cut(bucketKey(identity, h), "}:")
	return name
}

// budgetNames are the windows that d is charged to.
func budgetNames(d domain.Decision) []string {
	var names []string
	for _, h := range d.Holds {
		if name := windowName(d.Identity, h); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// chargedFor is d with only the holds that are charged when model served it.
func chargedFor(d domain.Decision, model string) domain.Decision {
	d.Holds = slices.DeleteFunc(slices.Clone(d.Holds), func(h domain.Hold) bool { return !h.Concerns(model) })
	return d
}

// windowsOf is what d holds of windows, by their names.
func windowsOf(d domain.Decision) map[string]int64 {
	held := map[string]int64{}
	for _, h := range d.Holds {
		if name := windowName(d.Identity, h); name != "" {
			held[name] += h.Amount
		}
	}
	return held
}

// chargeOf is what the window called name was charged for record.
func chargeOf(name string, record domain.UsageRecord) int64 {
	if domain.IsBudgetName(name) {
		return used(domain.Hold{Kind: domain.LimitBudgetDay}, record, record.Model)
	}
	return used(domain.Hold{Kind: domain.LimitImagesDay}, record, record.Model)
}

// windowTTL is that of the window called name, in milliseconds.
func windowTTL(name string) int64 {
	switch {
	case strings.HasPrefix(name, domain.BalancePrefix):
		return counterTTL(domain.LimitBalance)
	case strings.HasPrefix(name, "budget:month:"):
		return counterTTL(domain.LimitBudgetMonth)
	}
	return counterTTL(domain.LimitBudgetDay)
}

// Budgets reads every budget's counter and what was paid into balances, what open
// reservations hold of them, and the settlements that are not in the ledger yet,
// in this order. It scans the store: for upkeep and people, never for the path of
// a request.
func (s *Store) Budgets(ctx context.Context) (domain.BudgetBook, error) {
	book := domain.BudgetBook{Held: make(map[string]int64)}
	for _, read := range []func(context.Context, *domain.BudgetBook) error{s.readCredits, s.readCounters, s.readHeld, s.readPending} {
		if err := read(ctx, &book); err != nil {
			return domain.BudgetBook{}, err
		}
	}
	return book, nil
}

// readChunk bounds one pipeline of single reads.
const readChunk = 500

func (s *Store) readCounters(ctx context.Context, book *domain.BudgetBook) error {
	return s.do(ctx, "read budgets", func(ctx context.Context) error {
		keys, err := s.scan(ctx, "{s??}:budget:*")
		if err != nil {
			return err
		}
		for len(keys) > 0 {
			chunk := keys[:min(len(keys), readChunk)]
			keys = keys[len(chunk):]
			pipe := s.client.Pipeline()
			cmds := make([]*redis.StringCmd, len(chunk))
			for i, key := range chunk {
				cmds[i] = pipe.Get(ctx, key)
			}
			if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			for i, cmd := range cmds {
				micros, err := cmd.Int64()
				if errors.Is(err, redis.Nil) {
					continue // its window ended in between
				}
				if err != nil {
					return fmt.Errorf("read counter %s: %w", chunk[i], err)
				}
				_, name, _ := strings.Cut(chunk[i], "}:")
				book.Counters = append(book.Counters, domain.BudgetCounter{Name: name, Micros: micros})
			}
		}
		return nil
	})
}

func (s *Store) readHeld(ctx context.Context, book *domain.BudgetBook) error {
	return s.do(ctx, "read open reservations", func(ctx context.Context) error {
		for shard := range domain.Shards {
			requests, err := s.client.ZRange(ctx, openKey(shard), 0, -1).Result()
			if err != nil {
				return err
			}
			for len(requests) > 0 {
				chunk := requests[:min(len(requests), readChunk)]
				requests = requests[len(chunk):]
				if err := s.addHeld(ctx, book, openEntries(shard, chunk)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func openEntries(shard int, requests []string) []openEntry {
	entries := make([]openEntry, len(requests))
	for i, request := range requests {
		entries[i] = openEntry{shard: shard, request: request}
	}
	return entries
}

func (s *Store) addHeld(ctx context.Context, book *domain.BudgetBook, entries []openEntry) error {
	open, err := s.readOpen(ctx, entries)
	for _, d := range open {
		for name, amount := range windowsOf(d) {
			if domain.IsBudgetName(name) {
				book.Held[name] += amount
			}
		}
	}
	return err
}

// readOpen reads the decisions of open reservations; without those that were
// settled in between, or are unreadable, which the sweeper reports.
func (s *Store) readOpen(ctx context.Context, entries []openEntry) ([]domain.Decision, error) {
	pipe := s.client.Pipeline()
	cmds := make([]*redis.StringCmd, len(entries))
	for i, e := range entries {
		cmds[i] = pipe.HGet(ctx, reservationKey(e.shard, e.request), "decision")
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	var open []domain.Decision
	for _, cmd := range cmds {
		if d, err := decodeDecision(cmd.Val()); err == nil {
			open = append(open, d)
		}
	}
	return open, nil
}

func (s *Store) readPending(ctx context.Context, book *domain.BudgetBook) error {
	return s.do(ctx, "read pending settlements", func(ctx context.Context) error {
		for shard := range domain.Shards {
			from := "-"
			for {
				messages, err := s.client.XRangeN(ctx, outboxKey(shard), from, "+", readChunk).Result()
				if err != nil {
					return err
				}
				for _, e := range readEntries(shard, messages) {
					if e.Err == nil {
						book.Pending = append(book.Pending, e.Record)
					}
				}
				if len(messages) < readChunk {
					break
				}
				from = "(" + messages[len(messages)-1].ID
			}
		}
		return nil
	})
}

// CorrectBudgets brings a correction of the ledger to the counters, and
// returns how many it changed: none when it was applied before, or when the
// windows are over.
func (s *Store) CorrectBudgets(ctx context.Context, c domain.BudgetCorrection) (changed int, err error) {
	tag := identityTag(c.Identity)
	act := call{
		script: lua.Correct,
		keys:   []string{fmt.Sprintf("%s:corrected:%s:%d", tag, c.RequestID, c.EntryNo)},
		args:   []any{min(max(c.DeltaMicros, -maxBudget), maxBudget), keepCorrected.Milliseconds()},
	}
	for _, name := range c.Budgets {
		if !domain.IsBudgetName(name) {
			continue
		}
		var begin int64 // a window that is gone is over; a balance never is
		if strings.HasPrefix(name, domain.BalancePrefix) {
			begin = keepBalance.Milliseconds()
			act.args[1] = begin // and so is the mark
		}
		act.keys, act.args = append(act.keys, tag+":"+name), append(act.args, begin)
	}
	cmd := s.run(ctx, []call{act})[0]
	n, err := cmd.Int()
	if err != nil {
		return 0, fmt.Errorf("correct budgets: %w", err)
	}
	return max(n, 0), nil
}
