package domain

import "strings"

// Dialect is the wire family a client or a provider speaks. It decides error
// shapes, header names and the credential's carrier.
type Dialect string

// The dialects of PROTOCOLS §7.
const (
	DialectOpenAI    Dialect = "openai"
	DialectAnthropic Dialect = "anthropic"
)

// Valid reports whether d is a dialect Keyway knows.
func (d Dialect) Valid() bool { return d == DialectOpenAI || d == DialectAnthropic }

// API is one metered operation of a dialect.
type API string

// The operations of SPEC §2.1 that are served.
const (
	APIChat        API = "chat"
	APICompletions API = "completions"
	APIResponses   API = "responses"
	APIMessages    API = "messages"
	// APICompact makes one item of a conversation, to be sent in its place.
	APICompact    API = "compact"
	APIEmbeddings API = "embeddings"
	APIRerank     API = "rerank"

	APISpeech         API = "speech"
	APITranscriptions API = "transcriptions"
	APITranslations   API = "translations"
	APIImages         API = "images"
	APIImageEdits     API = "image_edits"

	// APICountTokens and APIInputTokens count the tokens of a prompt, for free.
	APICountTokens API = "count_tokens"
	APIInputTokens API = "input_tokens"
	// APIStored is what is done with a response that a provider keeps: it was
	// paid for when it was made.
	APIStored API = "stored_response"
	// APIModels lists models. Keyway answers it by itself.
	APIModels API = "models"
	// APIRawOpenAI and APIRawAnthropic are paths that a model of the
	// configuration names and Keyway does not read: they are metered by the call.
	APIRawOpenAI    API = "raw_openai"
	APIRawAnthropic API = "raw_anthropic"
)

// Dialect returns the wire family in which a is spoken; that of APIModels is the
// request's own.
func (a API) Dialect() Dialect {
	switch a {
	case APIMessages, APICountTokens, APIRawAnthropic:
		return DialectAnthropic
	}
	return DialectOpenAI
}

// Toll is which limits a request takes from.
type Toll int

// The tolls.
const (
	// TollFull: every limit, and its price.
	TollFull Toll = iota
	// TollCall: free of tokens and money, so only requests are counted.
	TollCall
	// TollCount: free, and counted apart from everything else.
	TollCount
)

// Toll returns what a request of a takes.
func (a API) Toll() Toll {
	switch a {
	case APICountTokens, APIInputTokens:
		return TollCount
	case APIStored:
		return TollCall
	}
	return TollFull
}

// Free reports whether a costs neither tokens nor money.
func (a API) Free() bool { return a.Toll() != TollFull }

// IsRaw reports whether nothing of a request or its answer is read.
func (a API) IsRaw() bool { return a == APIRawOpenAI || a == APIRawAnthropic }

// MakesImages reports whether a answers with images.
func (a API) MakesImages() bool { return a == APIImages || a == APIImageEdits }

// Transcribes reports whether a turns sound into text.
func (a API) Transcribes() bool { return a == APITranscriptions || a == APITranslations }

// Continues reports whether a request of a may name a response or a conversation
// that its provider keeps.
func (a API) Continues() bool { return a == APIResponses || a == APICompact || a == APIInputTokens }

// Streams reports whether an answer of a may be a stream of text events.
func (a API) Streams() bool {
	switch a {
	case APIChat, APICompletions, APIResponses, APIMessages:
		return true
	}
	return false
}

// Path returns the path of a as the SDKs send it, such as
// "/v1/chat/completions"; "" for an operation that has more than one.
func (a API) Path() string {
	for path, api := range apiByPath {
		if api == a {
			return path
		}
	}
	return ""
}

// APIVersionPrefix is what a provider's base URL replaces in a client's path.
const APIVersionPrefix = "/v1"

// apiByPath are the operations that are a POST of a body to a path of their own.
var apiByPath = map[string]API{
	"/v1/chat/completions":       APIChat,
	"/v1/completions":            APICompletions,
	"/v1/responses":              APIResponses,
	"/v1/responses/compact":      APICompact,
	"/v1/responses/input_tokens": APIInputTokens,
	"/v1/messages":               APIMessages,
	"/v1/messages/count_tokens":  APICountTokens,
	"/v1/embeddings":             APIEmbeddings,
	"/v1/rerank":                 APIRerank,
	"/v1/audio/speech":           APISpeech,
	"/v1/audio/transcriptions":   APITranscriptions,
	"/v1/audio/translations":     APITranslations,
	"/v1/images/generations":     APIImages,
	"/v1/images/edits":           APIImageEdits,
}

// APIForPath returns the operation that is a POST to path (without query); ok
// is false for any other path.
func APIForPath(path string) (api API, ok bool) {
	api, ok = apiByPath[path]
	return api, ok
}

const (
	modelsPath    = "/v1/models"
	responsesPath = "/v1/responses/"
	messagesPath  = "/v1/messages"
)

// ModelAtPath returns the name in a path of the model list, as it is written
// there; "" for the list itself.
func ModelAtPath(path string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(path, modelsPath)
	if !ok || rest == "" || rest == "/" {
		return "", ok
	}
	return rest[1:], rest[0] == '/'
}

// StoredAtPath splits the path of a stored response into its id and what is
// asked of it: "" for the response itself, "cancel", "input_items".
func StoredAtPath(path string) (id, action string, ok bool) {
	rest, ok := strings.CutPrefix(path, responsesPath)
	if !ok {
		return "", "", false
	}
	id, action, deeper := strings.Cut(rest, "/")
	if id == "" || deeper && action != "cancel" && action != "input_items" {
		return "", "", false
	}
	return id, action, true
}

// IsMetered reports whether path, in any case and with slashes behind it, is
// one that Keyway reads, or lies below one: what stands there must not pass raw.
func IsMetered(path string) bool {
	path = strings.TrimRight(strings.ToLower(path), "/")
	if Within(path, modelsPath) {
		return true
	}
	for known := range apiByPath {
		if Within(path, known) && !Within(path, messagesPath+"/batches") {
			return true
		}
	}
	return false
}

// HoldsMetered reports whether a path that Keyway reads lies below path.
func HoldsMetered(path string) bool {
	for known := range apiByPath {
		if Within(known, path) {
			return true
		}
	}
	return Within(modelsPath, path)
}

// PlainPath reports whether every reader takes path for the same place, and
// how many segments it has: no escapes, no empty or dotted segments, nothing but
// letters, digits and -._~ between the slashes.
func PlainPath(path string) (plain bool, segments int) {
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return false, 0
	}
	for segment := range strings.SplitSeq(rest, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsFunc(segment, notPlain) {
			return false, 0
		}
		segments++
	}
	return true, segments
}

func notPlain(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._~", r)
}

// Within reports whether path is at or below base.
func Within(path, base string) bool {
	return path == base || len(path) > len(base) && path[:len(base)] == base && path[len(base)] == '/'
}

// DialectForPath returns the dialect in which an answer for path must be
// written, also when the path itself is not served: everything under
// /v1/messages is Anthropic's, all else OpenAI's.
func DialectForPath(path string) Dialect {
	if Within(path, messagesPath) {
		return DialectAnthropic
	}
	return DialectOpenAI
}
