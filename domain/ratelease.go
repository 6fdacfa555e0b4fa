package domain

import "time"

// RateWish asks the central bucket of a rate for tokens that a replica will
// give out itself.
type RateWish struct {
	// Identity is the owner in whose shard the bucket lies.
	Identity string
	// Hold names the bucket, its limit and its burst; its amount is not read.
	Hold Hold
	// Want is how many tokens; below 0 puts back as many.
	Want int64
}

// RateLease is the answer to a RateWish.
type RateLease struct {
	// Granted is 0 to Want, or Want where that is below 0.
	Granted int64
	// Left is what the central bucket can still give.
	Left int64
	// Wait is when it can give one more; 0 when it can now.
	Wait time.Duration
}
