package sdkcase

import "encoding/json"

// Env is where all cases of a run go.
type Env struct {
	// BaseURL without a path, such as http://127.0.0.1:8080: the OpenAI SDKs
	// get it with "/v1", the Anthropic SDKs as it is.
	BaseURL string
	APIKey  string
	// Model is used by cases that name none.
	Model string
}

// API is the operation that a case calls.
type API string

// The operations.
const (
	Chat        API = "chat"
	Completions API = "completions"
	Responses   API = "responses"
	Messages    API = "messages"
	CountTokens API = "count_tokens"
	Embeddings  API = "embeddings"
	InputTokens API = "input_tokens"
	// Compact makes a response and compacts what came of it; Text is what stands
	// for the conversation then, FinishReason the types of all items with commas between.
	Compact API = "compact"
	// Models and AnthropicModels list all models, the latter two a page; the
	// result's Text is their names with commas between. Then they get the case's own.
	Models          API = "models"
	AnthropicModels API = "anthropic_models"
	// Stored makes a response, reads it whole and as a stream, lists its input,
	// cancels it (FinishReason is then its status) and deletes it.
	Stored API = "stored"
	// Speech has the SHA-256 of the sound, in hex, for its Text.
	Speech         API = "speech"
	Transcriptions API = "transcriptions"
	// Images asks for two; Text is how many came.
	Images API = "images"
)

// Case is one call of an SDK. Zero fields are left to the SDK's default,
// unless said otherwise.
type Case struct {
	Name string `json:"name"`
	API  API    `json:"api"`
	// Model and APIKey replace those of Env.
	Model  string `json:"model,omitempty"`
	APIKey string `json:"api_key,omitempty"`
	Prompt string `json:"prompt,omitempty"`
	System string `json:"system,omitempty"`
	Stream bool   `json:"stream,omitempty"`
	// IncludeUsage sets stream_options.include_usage of chat and completions; nil does not.
	IncludeUsage *bool `json:"include_usage,omitempty"`
	// MaxTokens is the output cap under the operation's own name; messages default to 256.
	MaxTokens int `json:"max_tokens,omitempty"`
	// N is the number of choices of a chat; the result shows the first.
	N int `json:"n,omitempty"`
	// Tools offers the tool get_weather(city) and insists on a call.
	Tools bool `json:"tools,omitempty"`
	// Inputs are the texts to embed; nil embeds Prompt.
	Inputs         []string `json:"inputs,omitempty"`
	EncodingFormat string   `json:"encoding_format,omitempty"`
	Dimensions     int      `json:"dimensions,omitempty"`
	// MaxRetries is the SDK's setting of that name; unlike the SDKs' default, 0 is none.
	MaxRetries int `json:"max_retries,omitempty"`
	// TimeoutSeconds is the SDK's own timeout of a request; 0 is 60.
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
	// CancelAfter closes the stream after that many chunks; 0 never does.
	CancelAfter int `json:"cancel_after,omitempty"`
	// Headers and Body are added to the request by the SDK's own means.
	Headers map[string]string `json:"headers,omitempty"`
	Body    map[string]any    `json:"body,omitempty"`
}

// Result is what the SDK made of a case.
type Result struct {
	Case string `json:"case"`
	// OK means that the SDK raised nothing; a cancelled case is OK too.
	OK        bool `json:"ok"`
	Cancelled bool `json:"cancelled,omitempty"`
	// Text is that of the first choice.
	Text      string     `json:"text"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
	// Chunks is how many chunks or events the SDK handed over; 0 for a whole answer.
	Chunks int `json:"chunks"`
	// LastEvent is the type of the last event of a responses or messages stream.
	LastEvent string `json:"last_event,omitempty"`
	// FinishReason is finish_reason, stop_reason, or a response's status or
	// the reason why it is incomplete.
	FinishReason string `json:"finish_reason,omitempty"`
	// Usage is the SDK's usage object as JSON; nil when it had none.
	Usage json.RawMessage `json:"usage,omitempty"`
	ID    string          `json:"id,omitempty"`
	Model string          `json:"model,omitempty"`
	// Embeddings are the vectors, in order.
	Embeddings [][]float64 `json:"embeddings,omitempty"`
	Error      *Error      `json:"error,omitempty"`
	// Attempts counts the HTTP requests; Status and Headers (names in lower
	// case) are of the last response, if one came.
	Attempts int               `json:"attempts"`
	Status   int               `json:"status,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"`
	// FirstChunkMs and Ms are since the call began.
	FirstChunkMs float64 `json:"first_chunk_ms,omitempty"`
	Ms           float64 `json:"ms"`
}

// ToolCall is one call of a tool; Arguments is JSON text.
type ToolCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Error is what a program can learn from an SDK's error. Fields that the SDK
// does not offer are empty.
type Error struct {
	// Class is the name of the exception, or the Go type.
	Class     string `json:"class"`
	Status    int    `json:"status,omitempty"`
	Type      string `json:"type,omitempty"`
	Code      string `json:"code,omitempty"`
	Param     string `json:"param,omitempty"`
	Message   string `json:"message"`
	RequestID string `json:"request_id,omitempty"`
}

// Counts are the token counts of a usage object in its dialect's own terms:
// Input includes cached tokens for OpenAI's operations and not for messages.
type Counts struct {
	Input      int64
	CacheRead  int64
	CacheWrite int64
	Output     int64
	Reasoning  int64
}

// Counts reads the result's usage; ok is false when there is none.
func (r Result) Counts() (counts Counts, ok bool) {
	type details struct {
		Cached     int64 `json:"cached_tokens"`
		CacheWrite int64 `json:"cache_write_tokens"`
		Reasoning  int64 `json:"reasoning_tokens"`
	}
	var u *struct {
		Prompt        int64   `json:"prompt_tokens"`
		Completion    int64   `json:"completion_tokens"`
		Input         int64   `json:"input_tokens"`
		Output        int64   `json:"output_tokens"`
		CacheRead     int64   `json:"cache_read_input_tokens"`
		CacheCreation int64   `json:"cache_creation_input_tokens"`
		PromptDetails details `json:"prompt_tokens_details"`
		OutputDetails details `json:"completion_tokens_details"`
		InDetails     details `json:"input_tokens_details"`
		OutDetails    details `json:"output_tokens_details"`
	}
	if len(r.Usage) == 0 || json.Unmarshal(r.Usage, &u) != nil || u == nil {
		return Counts{}, false
	}
	// Each dialect fills its own names alone, so the sums pick the one present.
	return Counts{
		Input:      u.Prompt + u.Input,
		Output:     u.Completion + u.Output,
		CacheRead:  u.CacheRead + u.PromptDetails.Cached + u.InDetails.Cached,
		CacheWrite: u.CacheCreation + u.PromptDetails.CacheWrite + u.InDetails.CacheWrite,
		Reasoning:  u.OutputDetails.Reasoning + u.OutDetails.Reasoning,
	}, true
}
