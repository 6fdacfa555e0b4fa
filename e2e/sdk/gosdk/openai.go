package gosdk

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"keyway/e2e/sdk/sdkcase"
)

func (r *run) openAIClient(hc *http.Client) openai.Client {
	options := []option.RequestOption{
		option.WithBaseURL(r.env.BaseURL + "/v1/"), option.WithAPIKey(r.APIKey), option.WithHTTPClient(hc),
		option.WithMaxRetries(r.MaxRetries), option.WithRequestTimeout(r.timeout()), option.WithMiddleware(r.observe),
	}
	for name, value := range r.Headers {
		options = append(options, option.WithHeader(name, value))
	}
	for name, value := range r.Body {
		options = append(options, option.WithJSONSet(name, value))
	}
	return openai.NewClient(options...)
}

func toolSchema() map[string]any {
	return map[string]any{"type": "object", "properties": toolProperties, "required": []string{"city"}}
}

func (r *run) streamOptions() openai.ChatCompletionStreamOptionsParam {
	var o openai.ChatCompletionStreamOptionsParam
	if r.IncludeUsage != nil {
		o.IncludeUsage = openai.Bool(*r.IncludeUsage)
	}
	return o
}

func (r *run) chat(ctx context.Context, client openai.Client) error {
	params := openai.ChatCompletionNewParams{
		Model:    r.Model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(r.Prompt)},
	}
	if r.System != "" {
		params.Messages = append([]openai.ChatCompletionMessageParamUnion{openai.SystemMessage(r.System)}, params.Messages...)
	}
	if r.MaxTokens != 0 {
		params.MaxCompletionTokens = openai.Int(int64(r.MaxTokens))
	}
	if r.N != 0 {
		params.N = openai.Int(int64(r.N))
	}
	if r.Tools {
		params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: toolName, Description: openai.String(toolText), Parameters: toolSchema(),
		})}
		params.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}
	}
	if r.Stream {
		params.StreamOptions = r.streamOptions()
		return drain(r, client.Chat.Completions.NewStreaming(ctx, params), r.chatChunk)
	}
	done, err := client.Chat.Completions.New(ctx, params)
	if err != nil {
		return err
	}
	r.result.ID, r.result.Model, r.result.Usage = done.ID, done.Model, usageJSON(done.Usage.RawJSON())
	if len(done.Choices) == 0 {
		return nil
	}
	choice := done.Choices[0]
	r.result.Text, r.result.FinishReason = choice.Message.Content, choice.FinishReason
	for _, call := range choice.Message.ToolCalls {
		r.result.ToolCalls = append(r.result.ToolCalls, sdkcase.ToolCall{Name: call.Function.Name, Arguments: call.Function.Arguments})
	}
	return nil
}

func (r *run) chatChunk(chunk openai.ChatCompletionChunk) {
	r.result.ID, r.result.Model = chunk.ID, chunk.Model
	if raw := usageJSON(chunk.Usage.RawJSON()); raw != nil {
		r.result.Usage = raw
	}
	for _, choice := range chunk.Choices {
		if choice.Index != 0 {
			continue
		}
		r.result.Text += choice.Delta.Content
		if choice.FinishReason != "" {
			r.result.FinishReason = choice.FinishReason
		}
		for _, call := range choice.Delta.ToolCalls {
			if int(call.Index) == len(r.result.ToolCalls) {
				r.result.ToolCalls = append(r.result.ToolCalls, sdkcase.ToolCall{Name: call.Function.Name})
			}
			r.result.ToolCalls[call.Index].Arguments += call.Function.Arguments
		}
	}
}

func (r *run) completions(ctx context.Context, client openai.Client) error {
	params := openai.CompletionNewParams{
		Model:  openai.CompletionNewParamsModel(r.Model),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(r.Prompt)},
	}
	if r.MaxTokens != 0 {
		params.MaxTokens = openai.Int(int64(r.MaxTokens))
	}
	if r.Stream {
		params.StreamOptions = r.streamOptions()
		return drain(r, client.Completions.NewStreaming(ctx, params), r.completionChunk)
	}
	done, err := client.Completions.New(ctx, params)
	if err != nil {
		return err
	}
	r.completionChunk(*done)
	return nil
}

func (r *run) completionChunk(c openai.Completion) {
	r.result.ID, r.result.Model = c.ID, c.Model
	if raw := usageJSON(c.Usage.RawJSON()); raw != nil {
		r.result.Usage = raw
	}
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue
		}
		r.result.Text += choice.Text
		if choice.FinishReason != "" {
			r.result.FinishReason = string(choice.FinishReason)
		}
	}
}

func (r *run) responses(ctx context.Context, client openai.Client) error {
	params := responses.ResponseNewParams{
		Model: r.Model,
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(r.Prompt)},
	}
	if r.System != "" {
		params.Instructions = openai.String(r.System)
	}
	if r.MaxTokens != 0 {
		params.MaxOutputTokens = openai.Int(int64(r.MaxTokens))
	}
	if r.Tools {
		params.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction(toolName, toolSchema(), false)}
		params.ToolChoice.OfToolChoiceMode = openai.Opt(responses.ToolChoiceOptionsRequired)
	}
	if !r.Stream {
		done, err := client.Responses.New(ctx, params)
		if err != nil {
			return err
		}
		r.response(*done)
		return nil
	}
	return drain(r, client.Responses.NewStreaming(ctx, params), func(event responses.ResponseStreamEventUnion) {
		r.result.LastEvent = event.Type
		switch event.Type {
		case "response.output_text.delta":
			r.result.Text += event.Delta
		case "response.completed", "response.incomplete", "response.failed":
			r.response(event.Response)
		}
	})
}

func (r *run) response(done responses.Response) {
	r.result.ID, r.result.Model = done.ID, done.Model
	r.result.Text, r.result.FinishReason = done.OutputText(), string(done.Status)
	if reason := done.IncompleteDetails.Reason; reason != "" {
		r.result.FinishReason = reason
	}
	if raw := usageJSON(done.Usage.RawJSON()); raw != nil {
		r.result.Usage = raw
	}
	for _, item := range done.Output {
		if item.Type == "function_call" {
			call := item.AsFunctionCall()
			r.result.ToolCalls = append(r.result.ToolCalls, sdkcase.ToolCall{Name: call.Name, Arguments: call.Arguments})
		}
	}
}

func (r *run) embeddings(ctx context.Context, client openai.Client) error {
	params := openai.EmbeddingNewParams{Model: r.Model}
	if r.Inputs != nil {
		params.Input.OfArrayOfStrings = r.Inputs
	} else {
		params.Input.OfString = openai.String(r.Prompt)
	}
	if r.EncodingFormat != "" {
		params.EncodingFormat = openai.EmbeddingNewParamsEncodingFormat(r.EncodingFormat)
	}
	if r.Dimensions != 0 {
		params.Dimensions = openai.Int(int64(r.Dimensions))
	}
	done, err := client.Embeddings.New(ctx, params)
	if err != nil {
		return err
	}
	r.result.Model, r.result.Usage = done.Model, usageJSON(done.Usage.RawJSON())
	for _, item := range done.Data {
		r.result.Embeddings = append(r.result.Embeddings, item.Embedding)
	}
	return nil
}

// usageJSON is the usage object that the SDK read; nil where there was none.
func usageJSON(raw string) json.RawMessage {
	if raw == "" || raw == "null" {
		return nil
	}
	return json.RawMessage(raw)
}

// describeOpenAI reads an error of OpenAI's SDK; nil when err is another.
func describeOpenAI(err error) *sdkcase.Error {
	var api *openai.Error
	if errors.As(err, &api) {
		out := &sdkcase.Error{
			Class: "*openai.Error", Status: api.StatusCode, Type: api.Type, Code: api.Code,
			Param: api.Param, Message: api.Message,
		}
		if api.Response != nil {
			out.RequestID = api.Response.Header.Get("X-Request-Id")
		}
		return out
	}
	var inStream *ssestream.StreamError
	if errors.As(err, &inStream) {
		out := &sdkcase.Error{Class: "*ssestream.StreamError", Message: inStream.Message}
		var event struct {
			Error struct {
				Type    string `json:"type"`
				Code    string `json:"code"`
				Message string `json:"message"`
			} `json:"error"`
		}
		if json.Unmarshal(inStream.Event.Data, &event) == nil && event.Error.Message != "" {
			out.Type, out.Code, out.Message = event.Error.Type, event.Error.Code, event.Error.Message
		}
		return out
	}
	return nil
}
