package domain

import (
	"errors"
	"time"
)

// OutboxEntry is one settlement on its way from the regional store to the
// Ledger, as one delivery hands it out.
type OutboxEntry struct {
	// Shard is the outbox it lies in, 0 to Shards-1.
	Shard int
	// ID names the entry within its shard, in the store's own form.
	ID string
	// Record is valid only when Err is nil.
	Record UsageRecord
	// Deliveries counts how often the entry was handed out, this time
	// included; it starts at 1.
	Deliveries int64
	// Err says why the entry could not be decoded. Such an entry is no failure
	// of the read: the others of the same batch are good.
	Err error
}

// OutboxRead asks for the next entries of the outbox.
type OutboxRead struct {
	// Consumer is the stable name of the reader. What it read and did not
	// acknowledge is held in its name.
	Consumer string
	// Max bounds the number of entries of one answer, all shards together.
	Max int
	// Resume hands out what is held in the Consumer's name, whatever its age and
	// up to Max of each shard, before anything else: for the first read after a
	// restart.
	Resume bool
	// ReclaimIdle is how long an entry must have waited unacknowledged before
	// it is handed out again, whoever holds it.
	ReclaimIdle time.Duration
}

// StoreStats is what a regional store holds at one moment.
type StoreStats struct {
	// OpenReservations counts reservations that are neither settled nor abandoned.
	OpenReservations int64
	// OutboxLen counts entries that are not acknowledged, all shards together.
	OutboxLen int64
	// OutboxOldest is the age of the oldest of them; 0 when there is none.
	OutboxOldest time.Duration
}

// ErrRejected: the Ledger refuses a record for what it holds; trying again
// does not help. Every other error of an append may pass with time.
var ErrRejected = errors.New("ledger rejects the record")
