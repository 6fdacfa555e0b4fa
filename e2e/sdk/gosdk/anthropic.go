package gosdk

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"keyway/e2e/sdk/sdkcase"
)

// defaultMaxTokens is what a messages case without MaxTokens asks for.
const defaultMaxTokens = 256

func (r *run) anthropicClient(hc *http.Client) anthropic.Client {
	options := []option.RequestOption{
		option.WithBaseURL(r.env.BaseURL), option.WithAPIKey(r.APIKey), option.WithHTTPClient(hc),
		option.WithMaxRetries(r.MaxRetries), option.WithRequestTimeout(r.timeout()), option.WithMiddleware(r.observe),
	}
	for name, value := range r.Headers {
		options = append(options, option.WithHeader(name, value))
	}
	for name, value := range r.Body {
		options = append(options, option.WithJSONSet(name, value))
	}
	return anthropic.NewClient(options...)
}

func (r *run) messages(ctx context.Context, client anthropic.Client) error {
	params := anthropic.MessageNewParams{
		Model: r.Model, MaxTokens: defaultMaxTokens,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(r.Prompt))},
	}
	if r.MaxTokens != 0 {
		params.MaxTokens = int64(r.MaxTokens)
	}
	if r.System != "" {
		params.System = []anthropic.TextBlockParam{{Text: r.System}}
	}
	if r.Tools {
		schema := anthropic.ToolInputSchemaParam{Properties: toolProperties, Required: []string{"city"}}
		params.Tools = []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(schema, toolName)}
		params.ToolChoice = anthropic.ToolChoiceUnionParam{OfAny: &anthropic.ToolChoiceAnyParam{}}
	}
	if r.Stream {
		return drain(r, client.Messages.NewStreaming(ctx, params), r.messageEvent)
	}
	done, err := client.Messages.New(ctx, params)
	if err != nil {
		return err
	}
	r.result.ID, r.result.Model, r.result.Usage = done.ID, done.Model, usageJSON(done.Usage.RawJSON())
	r.result.FinishReason = string(done.StopReason)
	for _, block := range done.Content {
		r.result.Text += block.Text
		if block.Type == "tool_use" {
			r.result.ToolCalls = append(r.result.ToolCalls, sdkcase.ToolCall{Name: block.Name, Arguments: string(block.Input)})
		}
	}
	return nil
}

func (r *run) messageEvent(event anthropic.MessageStreamEventUnion) {
	r.result.LastEvent = event.Type
	switch event.Type {
	case "message_start":
		r.result.ID, r.result.Model = event.Message.ID, event.Message.Model
		r.mergeUsage(event.Message.Usage.RawJSON())
	case "content_block_start":
		if event.ContentBlock.Type == "tool_use" {
			r.result.ToolCalls = append(r.result.ToolCalls, sdkcase.ToolCall{Name: event.ContentBlock.Name})
		}
	case "content_block_delta":
		r.result.Text += event.Delta.Text
		// The input of a server's tool comes the same way.
		if event.Delta.PartialJSON != "" && len(r.result.ToolCalls) > 0 {
			r.result.ToolCalls[len(r.result.ToolCalls)-1].Arguments += event.Delta.PartialJSON
		}
	case "message_delta":
		if event.Delta.StopReason != "" {
			r.result.FinishReason = string(event.Delta.StopReason)
		}
		r.mergeUsage(event.Usage.RawJSON())
	}
}

// mergeUsage lets the fields that are present replace what was: a stream's
// usage is cumulative.
func (r *run) mergeUsage(raw string) {
	merged := map[string]json.RawMessage{}
	for _, part := range []json.RawMessage{r.result.Usage, usageJSON(raw)} {
		var fields map[string]json.RawMessage
		if json.Unmarshal(part, &fields) == nil {
			maps.Copy(merged, fields)
		}
	}
	if len(merged) == 0 {
		return
	}
	// What was just decoded from JSON encodes.
	r.result.Usage, _ = json.Marshal(merged)
}

func (r *run) countTokens(ctx context.Context, client anthropic.Client) error {
	done, err := client.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{
		Model:    r.Model,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(r.Prompt))},
	})
	if err != nil {
		return err
	}
	r.result.Usage = usageJSON(done.RawJSON())
	return nil
}

// describeAnthropic reads an error of Anthropic's SDK; nil when err is another.
func describeAnthropic(err error) *sdkcase.Error {
	var api *anthropic.Error
	if !errors.As(err, &api) {
		return nil
	}
	var body struct {
		Error struct {
			Message string `json:"message"`
			Details struct {
				Code string `json:"error_code"`
			} `json:"details"`
		} `json:"error"`
	}
	out := &sdkcase.Error{Class: "*anthropic.Error", Status: api.StatusCode, Type: string(api.Type()), RequestID: api.RequestID}
	if json.Unmarshal([]byte(api.RawJSON()), &body) == nil {
		out.Message, out.Code = body.Error.Message, body.Error.Details.Code
	}
	if out.Message == "" {
		out.Message = api.Error()
	}
	return out
}
