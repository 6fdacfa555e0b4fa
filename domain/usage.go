package domain

import (
	"slices"
	"strings"
)

// Usage is the canonical count of what one attempt used (PROTOCOLS §6). The
// provider families count differently; wire normalises, everything behind it
// reads only this. It is comparable: nothing was used when it is zero.
type Usage struct {
	// InputUncached, CacheRead and CacheWrite are disjoint; their sum is the prompt.
	InputUncached int64
	CacheRead     int64
	CacheWrite    int64
	// CacheWrite1h is the part of CacheWrite with the one-hour TTL.
	CacheWrite1h int64
	// Output is all that was generated; Reasoning is the part of it that was hidden.
	Output    int64
	Reasoning int64

	// CacheWrite30m and CacheWrite12h are further parts of CacheWrite. What no
	// TTL claims was written for the provider's shortest one.
	CacheWrite30m int64
	CacheWrite12h int64
	// InputAudio and InputImage are disjoint parts of InputUncached.
	InputAudio int64
	InputImage int64
	// OutputAudio and OutputImage are parts of Output, disjoint from each other
	// and from Reasoning.
	OutputAudio int64
	OutputImage int64
	// Tools counts what is charged by the piece, by Tool; a client's functions
	// are not among them.
	Tools [ToolKinds]int64
	// Tier is the service tier that was really used, such as "priority"; "" is
	// the standard one (see NormalTier).
	Tier string
}

// Input is the whole prompt: uncached, read from cache and written to it.
func (u Usage) Input() int64 { return u.InputUncached + u.CacheRead + u.CacheWrite }

// Total is prompt plus output.
func (u Usage) Total() int64 { return u.Input() + u.Output }

// Tool is what a provider may charge for by the piece instead of by the token:
// a call of a tool that it runs, or a unit of work that has no tokens.
type Tool int

// The tools that answers count.
const (
	ToolWebSearch Tool = iota
	ToolWebFetch
	ToolFileSearch
	ToolCodeInterpreter
	ToolComputer
	ToolImageGeneration
	ToolMCP
	// ToolSearchUnit is one query over up to a hundred documents (rerank).
	ToolSearchUnit
	// ToolAudioSecond is a second of sound that was listened to, begun ones whole.
	ToolAudioSecond
	// ToolCharacter is a character that was spoken.
	ToolCharacter
	// ToolCall is one request to a path that Keyway does not read.
	ToolCall
	// ToolKinds is how many there are.
	ToolKinds
)

var toolNames = [ToolKinds]string{
	"web_search", "web_fetch", "file_search", "code_interpreter", "computer", "image_generation", "mcp",
	"search_unit", "audio_second", "character", "call",
}

// String is the tool's name in configuration, ledger and metrics.
func (t Tool) String() string {
	if t < 0 || t >= ToolKinds {
		return "unknown"
	}
	return toolNames[t]
}

// ToolNamed finds a tool by its name; ok is false for one that is not known.
func ToolNamed(name string) (t Tool, ok bool) {
	i := slices.Index(toolNames[:], name)
	return Tool(i), i >= 0
}

// ToolNames lists the names of all tools.
func ToolNames() []string { return slices.Clone(toolNames[:]) }

// maxTierLength bounds a provider's word for a tier, in bytes.
const maxTierLength = 32

// NormalTier is a provider's service tier in one form: lower case, and "" for
// every word that means the standard one.
func NormalTier(tier string) string {
	tier = strings.ToLower(strings.ToValidUTF8(tier, ""))
	switch tier {
	case "default", "standard", "auto", "on_demand":
		return ""
	}
	if len(tier) > maxTierLength {
		tier = strings.ToValidUTF8(tier[:maxTierLength], "")
	}
	return tier
}
