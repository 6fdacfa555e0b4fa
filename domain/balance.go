package domain

import (
	"errors"
	"strings"
	"time"
)

// BalanceEntry is an entry of the ledger by which the balance of a prepaid
// identity changes: a top-up or, below 0, money that was taken back. Append
// only; what requests cost is not among them but in their UsageRecords.
type BalanceEntry struct {
	// Seq is the place of the entry in the ledger: it rises in the order in which
	// entries were committed. 0 before that.
	Seq          int64
	Identity     string
	AmountMicros int64
	// Source and Reference together name the payment, such as "stripe" and
	// "pi_3f9a…". There is one entry for each.
	Source, Reference string
	// Note is for whoever reads the ledger later; may be "".
	Note string
	At   time.Time
}

// MaxEntryMicros bounds one entry: a billion units of currency, which leaves the
// sums exact.
const MaxEntryMicros int64 = 1_000_000_000_000_000

// ErrReferenceTaken: the source and reference of an entry belong to another
// one, of another identity or amount.
var ErrReferenceTaken = errors.New("the reference belongs to another entry")

// Credit is what an identity has paid in altogether, less what was taken back.
type Credit struct {
	Identity string
	Micros   int64
	// Entry is the Seq of the identity's last entry in the sum.
	Entry int64
}

// The names of counters that no calendar ends, as a BudgetCounter has them:
// what was spent of a balance, and what was paid into it.
const (
	BalancePrefix = "budget:balance:"
	CreditPrefix  = "credit:"
)

// BalanceCounter is the name of the counter of what an identity's balance paid for.
func BalanceCounter(identity string) string {
	return BalancePrefix + string(ScopeIdentity) + ":" + identity
}

// isBalance reports whether a counter's name is of a balance.
func isBalance(name string) bool {
	return strings.HasPrefix(name, BalancePrefix) || strings.HasPrefix(name, CreditPrefix)
}
