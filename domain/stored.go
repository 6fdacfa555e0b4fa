package domain

import "time"

// StoredID says which channel made something that a provider keeps: a response
// or a conversation. It belongs to that channel's account, so whoever names it
// again has to be sent there, and to the identity whose request made it: for
// any other it does not exist.
type StoredID struct {
	Identity string
	// ID is the provider's own, such as "resp_…".
	ID string
	// Channel made it, under Model: the name that was dispatched.
	Channel string
	Model   string
}

// The bounds of how long a StoredID is remembered. Providers keep responses for
// 30 days.
const (
	DefaultKeepStoredIDs = 7 * 24 * time.Hour
	MinKeepStoredIDs     = 24 * time.Hour
	MaxKeepStoredIDs     = 90 * 24 * time.Hour
)
