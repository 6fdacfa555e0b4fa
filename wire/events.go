package wire

import (
	"bytes"
	"unicode/utf8"

	"keyway/domain"
)

// event judges one event of a stream by what the scanner found in its data.
func (w *Watcher) event(name []byte) {
	if !w.scan.done() && !bytes.Equal(name, []byte("error")) {
		return // no JSON, or cut off: nothing in it is to be believed
	}
	w.identify()
	if seq, ok := parseCount(w.raw(slotSequence), maxCount); ok {
		w.sequence = seq + 1
	}
	if w.isError(name) {
		w.fail()
	}
	switch w.opts.API {
	case domain.APIResponses:
		w.responsesEvent(name)
	case domain.APIMessages:
		w.messagesEvent(name)
	case domain.APISpeech, domain.APITranscriptions, domain.APITranslations, domain.APIImages, domain.APIImageEdits:
		w.mediaEvent(name)
	default:
		w.use(w.raw(slotInnerUsage))
		w.use(w.raw(slotUsage))
	}
}

// mediaEvent judges an event of a stream of sound, images or what was heard.
func (w *Watcher) mediaEvent(name []byte) {
	switch {
	case w.isType(name, "image_generation.completed"), w.isType(name, "image_edit.completed"):
		w.items.streamed.add(domain.ToolImageGeneration)
	case w.isType(name, "speech.audio.done"), w.isType(name, "transcript.text.done"):
	default:
		return
	}
	w.result.Terminal = true
	w.use(w.raw(slotUsage))
}

// document judges an answer that is one JSON document.
func (w *Watcher) document() {
	w.identify()
	w.result.Terminal = true
	w.items.end()
	if w.isError(nil) || w.is(slotStatus, "failed") {
		w.fail()
	}
	w.result.Incomplete = w.string(slotReason)
	w.use(w.raw(slotUsage))
	raw := w.raw(slotDuration) // a string in the answers of older models
	if seconds, ok := parseCeiling(bytes.Trim(raw, `"`)); ok && !w.hasUsage {
		w.tally.set(countSeconds, seconds)
		w.hasUsage = true
		w.lastRaw = append(append(append(w.lastRaw[:0], `{"duration":`...), raw...), '}')
	}
}

// responsesEvent takes in an event; one that is not known by its name ends the
// answer all the same when its response says so (response.cancelled, response.done).
func (w *Watcher) responsesEvent(name []byte) {
	switch {
	case w.isType(name, "response.completed"), w.is(slotStatus, "completed"), w.is(slotStatus, "cancelled"):
	case w.isType(name, "response.incomplete"), w.is(slotStatus, "incomplete"):
		w.result.Incomplete = w.string(slotReason)
	case w.isType(name, "response.failed"), w.is(slotStatus, "failed"):
		w.fail()
	case w.isType(name, "response.output_item.done"):
		w.items.streamed.add(w.itemTool())
		return
	default:
		return
	}
	w.result.Terminal, w.result.Unfinished = true, false
	w.items.end()
	w.use(w.raw(slotUsage))
}

func (w *Watcher) messagesEvent(name []byte) {
	if raw := w.raw(slotStartUsage); w.tally.apply(raw) {
		w.startRaw = append(w.startRaw[:0], raw...)
		w.input = true
	}
	w.use(w.raw(slotUsage))
	if w.isType(name, "message_stop") {
		w.result.Terminal = true
	}
}

// identify takes what names the answer; a later event that says otherwise wins.
func (w *Watcher) identify() {
	w.take(&w.result.UpstreamID, slotID)
	w.take(&w.result.ModelServed, slotModel)
	w.take(&w.result.ModelServed, slotFallback)
	w.take(&w.result.ServiceTier, slotTier)
	if w.opts.API == domain.APIResponses && w.scan.slots[slotStatus].kind == '"' {
		w.result.Unfinished = w.is(slotStatus, "queued") || w.is(slotStatus, "in_progress")
		w.result.Cancelled = w.is(slotStatus, "cancelled")
	}
}

// use takes a usage object: the last one wins, field by field.
func (w *Watcher) use(raw []byte) {
	if !w.tally.apply(raw) {
		return // null is "not yet"
	}
	if w.opts.API == domain.APIRerank && !w.tally.has(countPrompt) && w.tally.has(countTotal) {
		w.tally.set(countPrompt, w.tally.count[countTotal])
	}
	w.hasUsage = true
	w.lastRaw = append(w.lastRaw[:0], raw...)
	w.counted = w.text.Tokens()
}

// isError reports whether the event or document is an error instead of an answer.
func (w *Watcher) isError(name []byte) bool {
	k := w.scan.slots[slotError].kind
	return w.choices.failed || k == '{' || k == '"' || w.isType(name, "error") || w.is(slotObject, "error")
}

// fail takes the error's fields, nested or flat. The first error stays.
func (w *Watcher) fail() {
	if w.result.Failed {
		return
	}
	w.result.Failed, w.result.Terminal = true, true
	e := &w.result.Error
	e.Type, e.Code, e.Message = w.string(slotErrorType), w.string(slotErrorCode), w.string(slotErrorMessage)
	if e.Type == "" && !w.is(slotType, "error") && !bytes.HasPrefix(w.raw(slotType), []byte(`"response.`)) {
		e.Type = w.string(slotType)
	}
	if e.Code == "" {
		e.Code = w.string(slotCode)
	}
	if e.Message == "" {
		e.Message = w.string(slotMessage)
	}
	e.Type, e.Code, e.Message = cut(e.Type), cut(e.Code), cut(e.Message)
}

// cut bounds a text of the provider's to maxErrorMessage bytes of whole characters.
func cut(s string) string {
	if len(s) <= maxErrorMessage {
		return s
	}
	n := maxErrorMessage
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// isType compares an event's own name, or the type in its data, with want.
func (w *Watcher) isType(name []byte, want string) bool {
	return string(name) == want || w.is(slotType, want)
}

// is reports whether the slot holds the string want, which has nothing to escape.
func (w *Watcher) is(slot int8, want string) bool {
	raw := w.raw(slot)
	return len(raw) == len(want)+2 && raw[0] == '"' && string(raw[1:len(raw)-1]) == want
}

// raw returns the slot's value as it came; nil when absent or too long.
func (w *Watcher) raw(slot int8) []byte {
	v := &w.scan.slots[slot]
	if v.kind == 0 || v.over {
		return nil
	}
	return v.raw
}

// string returns the slot's text: a string's characters (its beginning, when
// it was too long), a number's digits, "" for all else.
func (w *Watcher) string(slot int8) string {
	v := &w.scan.slots[slot]
	switch {
	case v.kind == '"' && v.over:
		return string(appendUnescaped(nil, v.raw[1:]))
	case v.kind == '"' && len(v.raw) >= 2:
		return string(appendUnescaped(nil, v.raw[1:len(v.raw)-1]))
	case isDigit(v.kind) && !v.over:
		return string(v.raw)
	}
	return ""
}

// take stores a slot's string where it says something new, so that a value
// repeated in every event costs nothing.
func (w *Watcher) take(to *string, slot int8) {
	raw := w.raw(slot)
	if len(raw) <= 2 || raw[0] != '"' || string(raw[1:len(raw)-1]) == *to {
		return
	}
	*to = w.string(slot)
}

// choiceSet follows which of the choices of a chat stream have finished.
type choiceSet struct {
	seen, finished [2]uint64
	// failed: one ended by an error.
	failed bool
}

// done reports whether every choice that began has its finish reason.
func (c *choiceSet) done() bool { return c.seen == c.finished && c.seen != [2]uint64{} }

// choiceEnded is called by the scanner at the end of every element of choices.
func (w *Watcher) choiceEnded() {
	index, _ := parseCount(w.raw(slotIndex), maxN-1) // absent is the first
	reason := w.raw(slotFinish)
	c := &w.choices
	c.seen[index/64] |= 1 << (index % 64)
	switch {
	case w.is(slotFinish, "error"):
		c.failed = true // OpenRouter's word; the error itself may stand here or beside
	case len(reason) > 2 && reason[0] == '"' && !w.is(slotFinish, "null"):
		c.finished[index/64] |= 1 << (index % 64)
	}
	w.scan.slots[slotIndex].kind, w.scan.slots[slotFinish].kind = 0, 0
}
