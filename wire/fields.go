package wire

// requestField is a top-level member that Peek reads or counts; each may stand once.
type requestField uint8

const (
	fieldUnknown requestField = iota
	fieldModel
	fieldStream
	fieldStreamOptions
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldMaxOutputTokens
	fieldN
	fieldBestOf
	fieldBackground
	fieldPreviousResponse
	fieldConversation
	fieldCacheKey
	fieldMessages
	fieldInput
	fieldPrompt
	fieldInstructions
	fieldSystem
	fieldTools
	fieldFunctions
	fieldFormat
	fieldText
	fieldOutputConfig
	fieldDocuments
	fieldSize
	fieldQuality
	// The fields below are not part of the prompt.
	fieldUser
	fieldMetadata
	fieldServiceTier
	fieldSafetyID
	fieldInclude
)

func fieldOf(key []byte) requestField {
	switch string(key) {
	case "model":
		return fieldModel
	case "stream":
		return fieldStream
	case "stream_options":
		return fieldStreamOptions
	case "max_tokens":
		return fieldMaxTokens
	case "max_completion_tokens":
		return fieldMaxCompletionTokens
	case "max_output_tokens":
		return fieldMaxOutputTokens
	case "n":
		return fieldN
	case "best_of":
		return fieldBestOf
	case "background":
		return fieldBackground
	case "previous_response_id":
		return fieldPreviousResponse
	case "conversation":
		return fieldConversation
	case "prompt_cache_key":
		return fieldCacheKey
	}
	return promptFieldOf(key)
}

func promptFieldOf(key []byte) requestField {
	switch string(key) {
	case "messages":
		return fieldMessages
	case "input":
		return fieldInput
	case "prompt":
		return fieldPrompt
	case "instructions":
		return fieldInstructions
	case "system":
		return fieldSystem
	case "tools":
		return fieldTools
	case "functions":
		return fieldFunctions
	case "response_format":
		return fieldFormat
	case "text":
		return fieldText
	case "output_config":
		return fieldOutputConfig
	case "documents":
		return fieldDocuments
	case "size":
		return fieldSize
	case "quality":
		return fieldQuality
	case "user":
		return fieldUser
	case "metadata":
		return fieldMetadata
	case "service_tier":
		return fieldServiceTier
	case "safety_identifier":
		return fieldSafetyID
	case "include":
		return fieldInclude
	}
	return fieldUnknown
}
