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

// call is one script with its keys and arguments.
type call struct {
	script *lua.Script
	keys   []string
	args   []any
}

// Pauses before calls are sent again that a cluster could not serve because
// their keys are on the way from one node to another. They grow; together they
// are about the 100 ms in which a store that cannot serve is given up.
const (
	firstPause = time.Millisecond
	lastPause  = 64 * time.Millisecond
)

// run sends calls in one pipeline and returns their replies in the same order;
// each carries its own error. Calls that did not run at all are sent again, and
// only those: a server that forgot a script gets its text, and one whose keys
// are just moving is given a moment.
func (s *Store) run(ctx context.Context, calls []call) []*redis.Cmd {
	ctx, leave, err := s.guard.enter(ctx)
	if err != nil {
		return failed(ctx, calls, err)
	}
	defer leave()
	cmds := make([]*redis.Cmd, len(calls))
	pipe := s.client.Pipeline()
	for i, c := range calls {
		cmds[i] = pipe.EvalSha(ctx, c.script.SHA, c.keys, c.args...)
	}
	// Each reply carries its own error; that of the whole says no more.
	_, _ = pipe.Exec(ctx)
	for pause := firstPause; pause <= lastPause && s.sendAgain(ctx, cmds, calls, pause); pause *= 2 {
	}
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			cmd.SetErr(s.explain(ctx, "run script "+calls[i].script.Name, err))
		}
	}
	return cmds
}

// sendAgain sends the calls that did not run, after a pause where keys are
// moving, and replaces their replies. It reports whether there were any.
func (s *Store) sendAgain(ctx context.Context, cmds []*redis.Cmd, calls []call, pause time.Duration) bool {
	if !slices.ContainsFunc(cmds, func(cmd *redis.Cmd) bool { return forgotten(cmd) || moving(cmd) }) {
		return false
	}
	pipe := s.client.Pipeline()
	again := make(map[int]*redis.Cmd)
	for i, c := range calls {
		if forgotten(cmds[i]) || moving(cmds[i]) {
			// The text, because the node that the keys move to may not know the script.
			again[i] = pipe.Eval(ctx, c.script.Source, c.keys, c.args...)
		}
	}
	if slices.ContainsFunc(cmds, moving) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
	_, _ = pipe.Exec(ctx)
	for i, cmd := range again {
		cmds[i] = cmd
	}
	return true
}

func forgotten(cmd *redis.Cmd) bool { return redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") }

// moving reports whether the keys of a call are on the way between nodes. The
// client library follows them, and gives up after some redirections.
func moving(cmd *redis.Cmd) bool {
	return slices.ContainsFunc([]string{"TRYAGAIN", "MOVED", "ASK"}, func(prefix string) bool {
		return redis.HasErrorPrefix(cmd.Err(), prefix)
	})
}

func failed(ctx context.Context, calls []call, err error) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		cmds[i] = redis.NewCmd(ctx)
		cmds[i].SetErr(fmt.Errorf("run script %s: %w", c.script.Name, err))
	}
	return cmds
}

// firstError is the error of the first reply that has one.
func firstError[C redis.Cmder](cmds []C) error {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// do runs plain commands under the guard and explains their error.
func (s *Store) do(ctx context.Context, act string, commands func(context.Context) error) error {
	ctx, leave, err := s.guard.enter(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", act, err)
	}
	defer leave()
	if err := commands(ctx); err != nil {
		return s.explain(ctx, act, err)
	}
	return nil
}

// downPrefixes begin the replies of a server that cannot serve just now. OOM
// is one of them: a full store admits nobody.
var downPrefixes = []string{
	"READONLY", "LOADING", "MOVED ", "ASK ", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS",
	"MISCONF", "OOM", "BUSY ", "ERR max number of clients",
}

// refusedPrefixes begin the replies that the same call gets however often it is
// made: it does not fit what is stored. A lack of rights is none of them, because
// it is true of every call until somebody mends it.
var refusedPrefixes = []string{"WRONGTYPE ", "CROSSSLOT ", "ERR user_script:", "ERR value is not "}

// explain wraps err with what was being done. Whatever is not an answer of the
// server, and every answer that says "not now", becomes domain.ErrStoreDown; an
// answer that says "never" becomes domain.ErrRefused.
// The caller's own cancellation stays what it is.
func (s *Store) explain(ctx context.Context, act string, err error) error {
	switch {
	case errors.Is(err, redis.Nil):
		return err
	case errors.Is(err, domain.ErrStoreDown) || errors.Is(context.Cause(ctx), domain.ErrStoreDown):
		return fmt.Errorf("%s: %w", act, domain.ErrStoreDown)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", act, err)
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		for _, prefix := range downPrefixes {
			if strings.HasPrefix(reply.Error(), prefix) {
				return fmt.Errorf("%s: %w: %w", act, domain.ErrStoreDown, err)
			}
		}
		for _, prefix := range refusedPrefixes {
			if strings.HasPrefix(reply.Error(), prefix) {
				return fmt.Errorf("%s: %w: %w", act, domain.ErrRefused, err)
			}
		}
		return fmt.Errorf("%s: %w", act, err)
	}
	return fmt.Errorf("%s: %w: %w", act, domain.ErrStoreDown, err)
}
