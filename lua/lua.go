package lua

import (
	"crypto/sha1" //nolint:gosec // the store's protocol names scripts by SHA-1
	"embed"
	"encoding/hex"
)

//go:embed *.lua
var files embed.FS

// Script is one act on the regional store. It is immutable.
type Script struct {
	// Name is the file's name without ".lua".
	Name string
	// Source is the text that EVAL takes.
	Source string
	// SHA is the SHA-1 of Source in hex, the name that EVALSHA takes.
	SHA string
}

// The scripts, one for each file of this folder; the contract of each is its header.
var (
	Reserve     = load("reserve")
	Settle      = load("settle")
	Renew       = load("renew")
	SlotAcquire = load("slot_acquire")
	SlotRelease = load("slot_release")
	Expired     = load("expired")
	Calibrate   = load("calibrate")
	Correct     = load("correct")
	Credit      = load("credit")
	Advance     = load("advance")
	Rebuild     = load("rebuild")
	Follow      = load("follow")

	CooldownSet   = load("cooldown_set")
	CooldownRead  = load("cooldown_read")
	CooldownClaim = load("cooldown_claim")
	CooldownClear = load("cooldown_clear")
	StatLearn     = load("stat_learn")
	LeaseTake     = load("lease_take")
)

// All lists every script, for loading them ahead of their first use.
func All() []*Script {
	return []*Script{
		Reserve, Settle, Renew, SlotAcquire, SlotRelease, Expired, Calibrate, Correct, Credit, Advance, Rebuild, LeaseTake, Follow,
		CooldownSet, CooldownRead, CooldownClaim, CooldownClear, StatLearn,
	}
}

func load(name string) *Script {
	source, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic("lua: no file for script " + name) // impossible in a binary whose tests ran
	}
	sum := sha1.Sum(source) //nolint:gosec // a name, not a proof
	return &Script{Name: name, Source: string(source), SHA: hex.EncodeToString(sum[:])}
}
