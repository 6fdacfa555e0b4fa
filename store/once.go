package store

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// onceEach keeps the cluster client from running a command of a pipeline twice.
// In go-redis 9.23.0 a command that has moved and stands behind one that may be
// retried comes into the next attempt once for either reason: on two nodes, with
// two goroutines that read its reply. A command that must not be retried still
// follows its keys, once, and what else did not run is sent again by run.
type onceEach struct{}

func (onceEach) DialHook(next redis.DialHook) redis.DialHook { return next }

func (onceEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (onceEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		single := make([]redis.Cmder, len(cmds))
		for i, cmd := range cmds {
			single[i] = once{cmd}
		}
		return next(ctx, single)
	}
}

// once is a command that the client library sends no second time.
type once struct{ redis.Cmder }

// NoRetry overrides that of the command.
func (once) NoRetry() bool { return true }
