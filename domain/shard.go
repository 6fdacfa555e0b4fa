package domain

import "hash/fnv"

// Shards is the fixed number of hash tags of the regional store (ARCHITECTURE
// §6). It is more than any cluster has nodes and never changes.
const Shards = 64

// ShardOf is the shard of an identity's keys and budgets, or of a channel's state.
func ShardOf(name string) int {
	h := fnv.New32a()
	h.Write([]byte(name)) // never fails
	return int(h.Sum32() % Shards)
}
