package domain

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
	APIEmbeddings  API = "embeddings"
)

// Dialect returns the wire family in which a is spoken.
func (a API) Dialect() Dialect {
	if a == APIMessages {
		return DialectAnthropic
	}
	return DialectOpenAI
}

// Path returns the path of a as the SDKs send it, such as
// "/v1/chat/completions"; "" for an unknown operation.
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

var apiByPath = map[string]API{
	"/v1/chat/completions": APIChat,
	"/v1/completions":      APICompletions,
	"/v1/responses":        APIResponses,
	"/v1/messages":         APIMessages,
	"/v1/embeddings":       APIEmbeddings,
}

// APIForPath returns the operation at path (without query); ok is false for a
// path that Keyway does not serve.
func APIForPath(path string) (api API, ok bool) {
	api, ok = apiByPath[path]
	return api, ok
}

// DialectForPath returns the dialect in which an answer for path must be
// written, also when the path itself is not served: everything under
// /v1/messages is Anthropic's, all else OpenAI's.
func DialectForPath(path string) Dialect {
	const messages = "/v1/messages"
	if path == messages || (len(path) > len(messages) && path[:len(messages)+1] == messages+"/") {
		return DialectAnthropic
	}
	return DialectOpenAI
}
