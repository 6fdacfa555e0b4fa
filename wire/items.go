package wire

import "keyway/domain"

// toolCalls counts the calls of a provider's tools, by domain.Tool.
type toolCalls [domain.ToolKinds]int64

// noTool is an item that nobody charges for by the call: text, reasoning, a
// client's own function.
const noTool = domain.ToolKinds

func (c *toolCalls) add(t domain.Tool) {
	if t < noTool {
		c[t]++
	}
}

// itemCount counts the tool calls among the output items of a Responses
// answer. A stream tells each item when it is done, and all of them again in
// its last event; a document has only the list.
type itemCount struct {
	streamed toolCalls
	// listed is what the list of the current event or document held so far.
	listed toolCalls
	// last is the list of the answer's end.
	last toolCalls
}

// end takes the list that was read as that of the whole answer.
func (c *itemCount) end() { c.last = c.listed }

// itemEnded is called by the scanner at the end of every element of output.
func (w *Watcher) itemEnded() {
	w.items.listed.add(w.itemTool())
	w.scan.slots[slotItemType].kind, w.scan.slots[slotItemAction].kind = 0, 0
}

// itemTool is the tool that the item just read is a call of.
func (w *Watcher) itemTool() domain.Tool {
	switch w.string(slotItemType) {
	case "web_search_call":
		// Opening a page that a search found is part of that search.
		if w.scan.slots[slotItemAction].kind != 0 && !w.is(slotItemAction, "search") {
			return noTool
		}
		return domain.ToolWebSearch
	case "file_search_call":
		return domain.ToolFileSearch
	case "code_interpreter_call":
		return domain.ToolCodeInterpreter
	case "computer_call":
		return domain.ToolComputer
	case "image_generation_call":
		return domain.ToolImageGeneration
	case "mcp_call":
		return domain.ToolMCP
	}
	return noTool
}

// toolCalls are the calls known so far. A stream that was cut has no list, and
// some servers end with an empty one.
func (w *Watcher) toolCalls() toolCalls {
	calls := w.tally.tools()
	for t := range calls {
		calls[t] = max(calls[t], w.items.streamed[t], w.items.last[t])
	}
	return calls
}

// usedTier is the tier of the answer: the usage's own word in a Messages
// answer, the answer's in the others.
func (w *Watcher) usedTier() string {
	if w.opts.API.Dialect() == domain.DialectAnthropic {
		return w.tally.usedTier()
	}
	return domain.NormalTier(w.result.ServiceTier)
}
