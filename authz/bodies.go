package authz

import "sync/atomic"

// bodyBudget bounds the bytes of request bodies that are in flight. One body
// always fits, so that a limit below the body limit cannot refuse for ever.
type bodyBudget struct {
	limit int64
	used  atomic.Int64
}

// take reports whether n more bytes fit, and counts them.
func (b *bodyBudget) take(n int64) bool {
	for {
		used := b.used.Load()
		if used > 0 && used+n > b.limit {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

func (b *bodyBudget) give(n int64) { b.used.Add(-n) }
