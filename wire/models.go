package wire

import (
	"slices"

	"keyway/domain"
)

// The model list in the shapes of the vendors. Nobody knows when a model of a
// gateway was made, so that is said to be the beginning of time, which is what
// vendors do where they do not know.
type (
	openAIModel struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	openAIModels struct {
		Object string        `json:"object"`
		Data   []openAIModel `json:"data"`
	}
	anthropicModel struct {
		Type        string `json:"type"`
		ID          string `json:"id"`
		DisplayName string `json:"display_name"`
		CreatedAt   string `json:"created_at"`
	}
	anthropicModels struct {
		Data    []anthropicModel `json:"data"`
		HasMore bool             `json:"has_more"`
		FirstID *string          `json:"first_id"`
		LastID  *string          `json:"last_id"`
	}
)

// ModelPage is which part of the list of models a client of the Anthropic
// dialect asks for; others get it whole.
type ModelPage struct {
	// After and Before are names; "" for the beginning and the end.
	After, Before string
	// Limit is how many it takes at most.
	Limit int
}

// ModelList is the answer to a request for the models.
func ModelList(d domain.Dialect, names []string, page ModelPage) []byte {
	if d != domain.DialectAnthropic {
		list := openAIModels{Object: "list", Data: []openAIModel{}}
		for _, name := range names {
			list.Data = append(list.Data, openAIModelOf(name))
		}
		return marshal(list)
	}
	if i := slices.Index(names, page.After); i >= 0 {
		names = names[i+1:]
	}
	list := anthropicModels{Data: []anthropicModel{}}
	if i := slices.Index(names, page.Before); i >= 0 {
		from := max(0, i-page.Limit)
		list.HasMore = from > 0
		names = names[from:i]
	} else if len(names) > page.Limit {
		list.HasMore, names = true, names[:page.Limit]
	}
	for _, name := range names {
		list.Data = append(list.Data, anthropicModelOf(name))
	}
	if len(names) > 0 {
		list.FirstID, list.LastID = &names[0], &names[len(names)-1]
	}
	return marshal(list)
}

// ModelEntry is the answer to a request for one model.
func ModelEntry(d domain.Dialect, name string) []byte {
	if d == domain.DialectAnthropic {
		return marshal(anthropicModelOf(name))
	}
	return marshal(openAIModelOf(name))
}

func openAIModelOf(name string) openAIModel {
	return openAIModel{ID: name, Object: "model", OwnedBy: "keyway"}
}

func anthropicModelOf(name string) anthropicModel {
	return anthropicModel{Type: "model", ID: name, DisplayName: name, CreatedAt: "1970-01-01T00:00:00Z"}
}
