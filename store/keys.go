package store

import (
	"fmt"

	"keyway/domain"
)

// Every key of the regional store is built here. The braces are the hash tag:
// all keys of one script carry the same one, so that a cluster keeps them on
// one node. {sNN} is the shard of an identity, {cNN} that of a channel, and
// {region} is for what all share.

// keyIndex maps key ids to the hashes of their secrets; keyChannel is where a
// changed hash is published.
const (
	keyIndex   = "keys"
	keyChannel = "keyway:keys"
)

// calibrationKey holds the correction factors of prompt estimates; it is alone
// in its script and needs no tag.
const calibrationKey = "calibration"

func shardTag(shard int) string { return fmt.Sprintf("{s%02d}", shard) }

func identityTag(identity string) string { return shardTag(domain.ShardOf(identity)) }

// bucketKey is the counter of one hold; identity is the owner in whose shard it
// lies, unless it is the region's.
func bucketKey(identity string, h domain.Hold) string {
	tag, owner := identityTag(identity), string(h.Scope)+":"+h.ID
	if h.Scope == domain.ScopeRegion {
		tag = regionTag
	}
	switch h.Kind {
	case domain.LimitRPM:
		return tag + ":rpm:" + owner
	case domain.LimitTPM:
		return tag + ":tpm:" + owner
	case domain.LimitCountTokens:
		return tag + ":counts:" + owner
	case domain.LimitInFlight:
		return tag + ":inflight:" + owner
	case domain.LimitBudgetDay:
		return tag + ":budget:day:" + owner + ":" + h.Window
	case domain.LimitBudgetMonth:
		return tag + ":budget:month:" + owner + ":" + h.Window
	case domain.LimitBalance:
		return tag + ":" + domain.BalancePrefix + owner
	case domain.LimitImagesDay:
		return tag + ":images:day:" + owner + ":" + h.Window
	}
	panic("store: limit kind without a key: " + string(h.Kind)) // checkHolds lets only known kinds pass
}

// regionTag is that of the region's own buckets and of what requests hold of them.
const regionTag = "{region}"

func (p part) reservation(request string) string { return p.tag + ":res:" + request }

func (p part) open() string { return p.tag + ":open" }

func (p part) generation() string { return p.tag + ":generation" }

func (p part) outbox() string { return p.tag + ":outbox" }

func (p part) repair() string { return p.tag + ":repair" }

func (p part) explained() string { return p.tag + ":explained" }

func (p part) explainedOrder() string { return p.explained() + ":order" }

// creditKey is what an identity has paid in; creditMarkKey is the ledger's entry
// up to which a shard has been told.
func creditKey(identity string) string {
	return identityTag(identity) + ":" + domain.CreditPrefix + identity
}

func creditMarkKey(shard int) string { return shardTag(shard) + ":credited" }

func reservationKey(shard int, request string) string { return shardTag(shard) + ":res:" + request }

func openKey(shard int) string { return shardTag(shard) + ":open" }

// followedKey lists what is made in the background for requests of one shard.
func followedKey(shard int) string { return shardTag(shard) + ":followed" }

func outboxKey(shard int) string { return shardTag(shard) + ":outbox" }

func repairKey(shard int) string { return shardTag(shard) + ":repair" }

func deadKey(shard int) string { return shardTag(shard) + ":dead" }

func explainedKey(shard int) string { return shardTag(shard) + ":explained" }

// generationKey is missing, or lower than it was, where a shard has lost writes;
// lookKey names the latest attempt to mend that.
func generationKey(shard int) string { return shardTag(shard) + ":generation" }

func lookKey(shard int) string { return shardTag(shard) + ":rebuild" }

func probeKey(shard int) string { return shardTag(shard) + ":probe" }

func slotKey(channel string) string {
	return channelTag(channel) + ":slot:" + channel
}

// cooldownChannel is where changes of cooldowns are published.
const cooldownChannel = "keyway:cooldowns"

func channelTag(channel string) string { return fmt.Sprintf("{c%02d}", domain.ShardOf(channel)) }

func cooldownKey(c domain.ChannelClass) string {
	return channelTag(c.Channel) + ":cool:" + cooldownMember(c)
}

// cooldownMember names a channel's class; a channel's name has no colon.
func cooldownMember(c domain.ChannelClass) string { return c.Channel + ":" + c.Class }

// coolingKey is the index of the cooldowns in one shard of channels.
func coolingKey(shard int) string { return fmt.Sprintf("{c%02d}:cooling", shard) }

// probeClaimKey says that a channel was probed lately.
func probeClaimKey(channel string) string { return channelTag(channel) + ":probed:" + channel }

func statKey(channel string) string { return channelTag(channel) + ":stat:" + channel }

func recordKey(hash string) string { return "key:" + hash }
