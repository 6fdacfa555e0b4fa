package wire

import (
	"strings"

	"keyway/domain"
)

// The slots of a scanner: what an answer of any API may tell.
const (
	slotID int8 = iota
	slotModel
	slotTier
	slotUsage
	slotInnerUsage
	slotStartUsage
	slotChoices
	slotChoice
	slotIndex
	slotFinish
	slotError
	slotErrorType
	slotErrorCode
	slotErrorMessage
	slotObject
	slotType
	slotCode
	slotMessage
	slotSequence
	slotStatus
	slotReason
	slotFallback
	slotItemType
	slotItemAction
	slotDuration
	slotCount

	noSlot int8 = -1
)

// What a scanner does with a value, besides noting that it came.
const (
	keepRaw uint8 = 1 << iota
	isText
	reportEnd
)

const (
	noNode   uint8 = 0 // a place that nobody asked for
	rootNode uint8 = 1
)

// path is one wanted place. Keys are separated by dots; a trailing [] stands
// for every element of an array.
type path struct {
	at   string
	slot int8
	does uint8
}

// pathTable is a tree of the wanted keys. It is not changed once built.
type pathTable struct{ nodes []pathNode }

type pathNode struct {
	slot    int8
	does    uint8
	element uint8
	keys    []pathKey
}

type pathKey struct {
	name string
	node uint8
}

func newPathTable(lists ...[]path) *pathTable {
	t := &pathTable{nodes: []pathNode{{slot: noSlot}, {slot: noSlot}}}
	for _, list := range lists {
		for _, p := range list {
			n := rootNode
			for key := range strings.SplitSeq(p.at, ".") {
				name, isArray := strings.CutSuffix(key, "[]")
				n = t.addKey(n, name)
				if isArray {
					n = t.addElement(n)
				}
			}
			t.nodes[n].slot, t.nodes[n].does = p.slot, p.does
		}
	}
	// An object that stands in a list of its own is read as if it stood alone:
	// some gateways wrap their errors so (PROTOCOLS §7.2).
	t.nodes[rootNode].element = rootNode
	return t
}

func (t *pathTable) child(n uint8, name []byte) uint8 {
	for _, k := range t.nodes[n].keys {
		if k.name == string(name) {
			return k.node
		}
	}
	return noNode
}

func (t *pathTable) addKey(n uint8, name string) uint8 {
	if c := t.child(n, []byte(name)); c != noNode {
		return c
	}
	c := t.add()
	t.nodes[n].keys = append(t.nodes[n].keys, pathKey{name: name, node: c})
	return c
}

func (t *pathTable) addElement(n uint8) uint8 {
	if t.nodes[n].element == noNode {
		t.nodes[n].element = t.add()
	}
	return t.nodes[n].element
}

func (t *pathTable) add() uint8 {
	t.nodes = append(t.nodes, pathNode{slot: noSlot})
	return uint8(len(t.nodes) - 1)
}

// pathsFor returns the table of an answer; nil for an API that is not watched.
func pathsFor(api domain.API, format Format) *pathTable {
	switch api {
	case domain.APIChat, domain.APICompletions:
		return chatPaths
	case domain.APIEmbeddings, domain.APIRerank:
		return embeddingsPaths
	case domain.APITranscriptions, domain.APITranslations:
		return transcriptPaths
	case domain.APISpeech:
		return speechPaths
	case domain.APIImages, domain.APIImageEdits:
		return imagesPaths
	case domain.APIResponses:
		if format == FormatSSE {
			return responsesEventPaths
		}
		return responsesPaths
	case domain.APICompact:
		return compactPaths
	case domain.APIMessages:
		if format == FormatSSE {
			return messagesEventPaths
		}
		return messagesPaths
	}
	return nil
}

var errorPaths = []path{
	{"error", slotError, 0},
	{"error.type", slotErrorType, keepRaw},
	{"error.code", slotErrorCode, keepRaw},
	{"error.message", slotErrorMessage, keepRaw},
	// The flat form: the error's fields beside its name.
	{"type", slotType, keepRaw},
	{"object", slotObject, keepRaw},
	{"code", slotCode, keepRaw},
	{"message", slotMessage, keepRaw},
}

var embeddingsPaths = newPathTable(errorPaths, []path{
	{"id", slotID, keepRaw},
	{"model", slotModel, keepRaw},
	{"usage", slotUsage, keepRaw},
	// Cohere's word for the usage of a rerank.
	{"meta.billed_units", slotUsage, keepRaw},
})

// speechPaths are those of a stream; without one, the answer is sound.
var speechPaths = newPathTable(errorPaths, []path{
	{"usage", slotUsage, keepRaw},
})

var transcriptPaths = newPathTable(errorPaths, []path{
	{"usage", slotUsage, keepRaw},
	{"duration", slotDuration, keepRaw},
	{"delta", noSlot, isText},
	{"text", noSlot, isText},
})

var imagesPaths = newPathTable(errorPaths, []path{
	{"usage", slotUsage, keepRaw},
	{"data[]", noSlot, reportEnd},
})

// chatPaths serves chat and completions, as a stream and as one document.
var chatPaths = newPathTable(errorPaths, []path{
	{"id", slotID, keepRaw},
	{"model", slotModel, keepRaw},
	{"service_tier", slotTier, keepRaw},
	{"usage", slotUsage, keepRaw},
	// Moonshot streams usage in the last choice, Groq in a member of its own.
	{"choices[].usage", slotInnerUsage, keepRaw},
	{"x_groq.usage", slotInnerUsage, keepRaw},
	{"choices", slotChoices, 0},
	{"choices[]", slotChoice, reportEnd},
	{"choices[].index", slotIndex, keepRaw},
	{"choices[].finish_reason", slotFinish, keepRaw},
	{"choices[].error", slotError, 0},
	{"choices[].error.type", slotErrorType, keepRaw},
	{"choices[].error.code", slotErrorCode, keepRaw},
	{"choices[].error.message", slotErrorMessage, keepRaw},
	{"choices[].text", noSlot, isText},
}, chatText("choices[].delta."), chatText("choices[].message."))

func chatText(at string) []path {
	list := []path{}
	for _, key := range []string{
		"content", "content[].text", "content[].thinking[].text", "reasoning_content", "reasoning", "refusal", "audio.transcript",
		"tool_calls[].function.name", "tool_calls[].function.arguments", "tool_calls[].custom.name", "tool_calls[].custom.input",
		"function_call.name", "function_call.arguments",
	} {
		list = append(list, path{at + key, noSlot, isText})
	}
	return list
}

var responsesPaths = newPathTable(errorPaths, []path{
	{"id", slotID, keepRaw},
	{"model", slotModel, keepRaw},
	{"service_tier", slotTier, keepRaw},
	{"usage", slotUsage, keepRaw},
	{"status", slotStatus, keepRaw},
	{"incomplete_details.reason", slotReason, keepRaw},
	{"output[]", noSlot, reportEnd},
	{"output[].type", slotItemType, keepRaw},
	{"output[].action.type", slotItemAction, keepRaw},
	{"output[].content[].text", noSlot, isText},
	{"output[].content[].refusal", noSlot, isText},
	{"output[].summary[].text", noSlot, isText},
	{"output[].name", noSlot, isText},
	{"output[].arguments", noSlot, isText},
	{"output[].input", noSlot, isText},
})

// compactPaths are those of a compacted conversation: the client's own messages,
// which are no output, and one item that was made of the others.
var compactPaths = newPathTable(errorPaths, []path{
	{"id", slotID, keepRaw},
	{"model", slotModel, keepRaw},
	{"service_tier", slotTier, keepRaw},
	{"usage", slotUsage, keepRaw},
	{"output[].encrypted_content", noSlot, isText},
})

var responsesEventPaths = newPathTable(errorPaths, []path{
	{"sequence_number", slotSequence, keepRaw},
	{"delta", noSlot, isText},
	{"response.id", slotID, keepRaw},
	{"response.model", slotModel, keepRaw},
	{"response.service_tier", slotTier, keepRaw},
	{"response.usage", slotUsage, keepRaw},
	{"response.status", slotStatus, keepRaw},
	{"response.error.code", slotErrorCode, keepRaw},
	{"response.error.type", slotErrorType, keepRaw},
	{"response.error.message", slotErrorMessage, keepRaw},
	{"response.incomplete_details.reason", slotReason, keepRaw},
	{"item.type", slotItemType, keepRaw},
	{"item.action.type", slotItemAction, keepRaw},
	{"response.output[]", noSlot, reportEnd},
	{"response.output[].type", slotItemType, keepRaw},
	{"response.output[].action.type", slotItemAction, keepRaw},
})

var messagesPaths = newPathTable(errorPaths, []path{
	{"id", slotID, keepRaw},
	{"model", slotModel, keepRaw},
	{"usage", slotUsage, keepRaw},
	{"content[].text", noSlot, isText},
	{"content[].thinking", noSlot, isText},
	{"content[].name", noSlot, isText},
})

var messagesEventPaths = newPathTable(errorPaths, []path{
	// Here a message is an object, with a usage to be kept of its own.
	{"message", noSlot, 0},
	{"message.id", slotID, keepRaw},
	{"message.model", slotModel, keepRaw},
	{"message.usage", slotStartUsage, keepRaw},
	{"usage", slotUsage, keepRaw},
	{"content_block.to.model", slotFallback, keepRaw},
	{"content_block.text", noSlot, isText},
	{"content_block.thinking", noSlot, isText},
	{"content_block.name", noSlot, isText},
	{"delta.text", noSlot, isText},
	{"delta.thinking", noSlot, isText},
	{"delta.partial_json", noSlot, isText},
})
