package fakeprovider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// operation is what a path asks for.
type operation string

const (
	opChat        operation = "chat"
	opCompletions operation = "completions"
	opResponses   operation = "responses"
	opMessages    operation = "messages"
	opEmbeddings  operation = "embeddings"
	opCountTokens operation = "count_tokens"
	opInputTokens operation = "input_tokens"
	opCompact     operation = "compact"
	opRerank      operation = "rerank"

	opSpeech         operation = "speech"
	opTranscriptions operation = "transcriptions"
	opTranslations   operation = "translations"
	opImages         operation = "images"
	opImageEdits     operation = "image_edits"

	// opStored is what is asked of a stored response, opFiles a path that is no operation.
	opStored operation = "stored"
	opFiles  operation = "files"
)

func (o operation) anthropic() bool { return o == opMessages || o == opCountTokens }

var operationSuffixes = []struct {
	suffix string
	op     operation
}{
	{"/chat/completions", opChat},
	{"/completions", opCompletions},
	{"/responses", opResponses},
	{"/responses/input_tokens", opInputTokens},
	{"/responses/compact", opCompact},
	{"/rerank", opRerank},
	{"/audio/speech", opSpeech},
	{"/audio/transcriptions", opTranscriptions},
	{"/audio/translations", opTranslations},
	{"/images/generations", opImages},
	{"/images/edits", opImageEdits},
	{"/messages/count_tokens", opCountTokens},
	{"/messages", opMessages},
	{"/embeddings", opEmbeddings},
}

// operationAt finds the operation whose path ends the URL's path, whatever the
// provider's base path is; "" for an unknown one.
func operationAt(path string) operation {
	for _, known := range operationSuffixes {
		if strings.HasSuffix(path, known.suffix) {
			return known.op
		}
	}
	switch {
	case strings.Contains(path, "/responses/"):
		return opStored
	case strings.HasSuffix(path, "/files"), strings.Contains(path, "/files/"):
		return opFiles
	}
	return ""
}

// call is one request as the answer needs it.
type call struct {
	op operation
	// seq is the number of the request at this server; all ids come from it.
	seq   uint64
	model string

	stream       bool
	includeUsage bool
	n            int
	// outputCap is the smallest cap in the body; 0 is none.
	outputCap int
	// promptWords counts every word of the prompt; lastUser is its last user text.
	promptWords int64
	lastUser    string
	// tool is the first tool's name; toolForced that the caller insists on a call.
	tool       string
	toolForced bool
	// inputs are the token counts of the texts to embed.
	inputs     []int64
	dimensions int
	base64     bool
	// documents are to be ranked, characters to be spoken, files to be read.
	documents, files int
	characters       int64
	// format is the response_format of an operation about sound.
	format string
	// transient: the response is not to be stored.
	transient bool
	// background: the response is made when its request is over.
	background bool
}

// responseID names the response that c makes.
func (c *call) responseID() string { return fmt.Sprintf("resp_fake_%d", c.seq) }

func (c *call) requestID() string { return fmt.Sprintf("req_fake_%d", c.seq) }

// requestBody is the union of what the operations send, as far as it matters here.
type requestBody struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	N                   int             `json:"n"`
	MaxTokens           int             `json:"max_tokens"`
	MaxCompletionTokens int             `json:"max_completion_tokens"`
	MaxOutputTokens     int             `json:"max_output_tokens"`
	Messages            []turn          `json:"messages"`
	System              json.RawMessage `json:"system"`
	Instructions        json.RawMessage `json:"instructions"`
	Prompt              json.RawMessage `json:"prompt"`
	Input               json.RawMessage `json:"input"`
	Tools               []struct {
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	} `json:"tools"`
	ToolChoice     json.RawMessage   `json:"tool_choice"`
	Dimensions     int               `json:"dimensions"`
	EncodingFormat string            `json:"encoding_format"`
	Query          string            `json:"query"`
	Documents      []json.RawMessage `json:"documents"`
	StreamFormat   string            `json:"stream_format"`
	Store          *bool             `json:"store"`
	Background     json.RawMessage   `json:"background"`
}

type turn struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// parseCall reads a request body. An error is the client's fault.
func parseCall(op operation, raw []byte) (*call, error) {
	var b requestBody
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, fmt.Errorf("parse request body: %w", err)
	}
	if b.Model == "" {
		return nil, fmt.Errorf("you must provide a model parameter")
	}
	c := &call{
		op: op, model: b.Model, stream: b.Stream, n: max(b.N, 1),
		includeUsage: b.StreamOptions.IncludeUsage,
		dimensions:   b.Dimensions, base64: b.EncodingFormat == "base64",
		documents: len(b.Documents), transient: b.Store != nil && !*b.Store,
		background: op == opResponses && string(b.Background) == "true",
	}
	if op == opSpeech {
		c.stream = b.StreamFormat == "sse"
		c.characters = int64(utf8.RuneCountInString(textOf(b.Input)))
	}
	for _, limit := range []int{b.MaxTokens, b.MaxCompletionTokens, b.MaxOutputTokens} {
		if limit > 0 && (c.outputCap == 0 || limit < c.outputCap) {
			c.outputCap = limit
		}
	}
	if len(b.Tools) > 0 {
		c.tool = b.Tools[0].Name + b.Tools[0].Function.Name
		c.toolForced = forcesTool(b.ToolChoice)
	}
	c.readPrompt(&b)
	return c, nil
}

// readPrompt counts the prompt and finds the last user text.
func (c *call) readPrompt(b *requestBody) {
	if c.op == opEmbeddings {
		c.readInputs(b.Input)
		return
	}
	for _, raw := range []json.RawMessage{b.System, b.Instructions} {
		c.promptWords += countWords(textOf(raw))
	}
	turns := b.Messages
	switch c.op {
	case opRerank:
		turns = []turn{{Role: "user", Content: marshal(b.Query)}}
		for _, document := range b.Documents {
			turns = append(turns, turn{Role: "document", Content: document})
		}
	case opSpeech:
		turns = []turn{{Role: "user", Content: b.Input}}
	case opImages, opImageEdits:
		turns = []turn{{Role: "user", Content: b.Prompt}}
	}
	if (c.op == opResponses || c.op == opCompact || c.op == opInputTokens) && json.Unmarshal(b.Input, &turns) != nil {
		turns = []turn{{Role: "user", Content: b.Input}}
	}
	if c.op == opCompletions {
		turns = []turn{{Role: "user", Content: b.Prompt}}
	}
	for _, t := range turns {
		text := textOf(t.Content)
		c.promptWords += countWords(text)
		if t.Role == "user" {
			c.lastUser = text
		}
	}
	c.promptWords = max(c.promptWords, 1)
}

// readInputs reads the four forms of an embedding input: text, texts, tokens
// and lists of tokens.
func (c *call) readInputs(raw json.RawMessage) {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		items = []json.RawMessage{raw}
	}
	var tokens []int64
	if len(items) > 0 && json.Unmarshal(raw, &tokens) == nil {
		items = []json.RawMessage{raw}
	}
	for _, item := range items {
		var ids []int64
		size := int64(0)
		if json.Unmarshal(item, &ids) == nil {
			size = int64(len(ids))
		} else {
			c.lastUser = textOf(item)
			size = countWords(c.lastUser)
		}
		c.inputs = append(c.inputs, max(size, 1))
		c.promptWords += max(size, 1)
	}
}

func forcesTool(raw json.RawMessage) bool {
	var choice struct {
		Type string `json:"type"`
	}
	var name string
	if json.Unmarshal(raw, &name) != nil && json.Unmarshal(raw, &choice) == nil {
		name = choice.Type
	}
	switch name {
	case "required", "any", "tool", "function":
		return true
	}
	return false
}

// textOf joins the text of a string, a content part or a list of either.
func textOf(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return ""
	}
	switch raw[0] {
	case '"':
		var s string
		_ = json.Unmarshal(raw, &s) // the outer document parsed, so this does
		return s
	case '[':
		var parts []json.RawMessage
		_ = json.Unmarshal(raw, &parts)
		texts := make([]string, 0, len(parts))
		for _, p := range parts {
			texts = append(texts, textOf(p))
		}
		return strings.Join(texts, " ")
	case '{':
		var part struct {
			Text    string          `json:"text"`
			Content json.RawMessage `json:"content"`
		}
		_ = json.Unmarshal(raw, &part)
		return part.Text + textOf(part.Content)
	}
	return ""
}

func countWords(s string) int64 {
	n, inWord := int64(0), false
	for i := range len(s) {
		space := s[i] <= ' '
		if !space && !inWord {
			n++
		}
		inWord = !space
	}
	return n
}

const markerOpen, markerClose = "[[fake:", "]]"

// markedScript finds the script inside the prompt; raw is nil when there is none.
func markedScript(prompt string) (raw []byte, err error) {
	at := strings.LastIndex(prompt, markerOpen)
	if at < 0 {
		return nil, nil
	}
	rest := prompt[at+len(markerOpen):]
	dec := json.NewDecoder(strings.NewReader(rest))
	var value json.RawMessage
	if err := dec.Decode(&value); err != nil {
		return nil, fmt.Errorf("read the marker's JSON: %w", err)
	}
	if !strings.HasPrefix(rest[dec.InputOffset():], markerClose) {
		return nil, fmt.Errorf("the marker does not end in %s", markerClose)
	}
	return value, nil
}

// splitModel takes the script off a model name such as name@{"status":429}.
func splitModel(model string) (name string, script []byte) {
	name, json, found := strings.Cut(model, "@{")
	if !found {
		return model, nil
	}
	return name, []byte("{" + json)
}
