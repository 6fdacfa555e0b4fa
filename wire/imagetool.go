package wire

import (
	"bytes"
	"encoding/json"

	"keyway/domain"
)

// imageTool is the type of the tool by which a model makes images.
const imageTool = "image_generation"

// ImagesAsked is how many images a request may make, as far as its body says: 1
// where a Responses request offers the tool for it, else 0. It reads the body
// whole only where the tool's name, or an escape that may hide it, stands in it.
func ImagesAsked(api domain.API, body []byte) int64 {
	if api != domain.APIResponses || !bytes.Contains(body, []byte(imageTool)) && !bytes.Contains(body, []byte(`\u00`)) {
		return 0
	}
	var request struct {
		Tools []json.RawMessage `json:"tools"`
	}
	if json.Unmarshal(body, &request) != nil {
		return 0 // tools that are no list offer nothing
	}
	for _, raw := range request.Tools {
		var tool struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(raw, &tool) == nil && tool.Type == imageTool {
			return 1
		}
	}
	return 0
}
