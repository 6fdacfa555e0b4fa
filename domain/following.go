package domain

// Following is what a process that follows a response in the background learns
// of its lease.
type Following int

// The values of Following.
const (
	// FollowingEnded: the reservation has ended; there is nothing to follow.
	FollowingEnded Following = iota
	// FollowingHeld: the process that asked holds it.
	FollowingHeld
	// FollowingUnknown: the store does not know the reservation, or not yet; nobody
	// else can follow it.
	FollowingUnknown
	// FollowingElsewhere: another process holds it.
	FollowingElsewhere
)
