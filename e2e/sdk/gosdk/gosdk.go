package gosdk

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"keyway/e2e/sdk/sdkcase"
)

// Run runs cases one after another and returns one result for each, in order.
func Run(ctx context.Context, env sdkcase.Env, cases []sdkcase.Case) []sdkcase.Result {
	results := make([]sdkcase.Result, len(cases))
	for i, c := range cases {
		results[i] = runCase(ctx, env, c)
	}
	return results
}

// run is one case and the result that grows while it runs. Only one goroutine
// touches it.
type run struct {
	sdkcase.Case
	env    sdkcase.Env
	begin  time.Time
	result sdkcase.Result
}

func runCase(ctx context.Context, env sdkcase.Env, c sdkcase.Case) sdkcase.Result {
	if c.Model == "" {
		c.Model = env.Model
	}
	if c.APIKey == "" {
		c.APIKey = env.APIKey
	}
	if c.TimeoutSeconds == 0 {
		c.TimeoutSeconds = 60
	}
	// A transport of its own ends its connections with the case.
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	r := &run{Case: c, env: env, begin: time.Now(), result: sdkcase.Result{Case: c.Name}}
	if err := r.call(ctx, &http.Client{Transport: transport}); err != nil {
		r.result.Error = describe(err)
	} else {
		r.result.OK = true
	}
	r.result.Ms = r.ms()
	return r.result
}

// call calls the case's operation.
func (r *run) call(ctx context.Context, hc *http.Client) error {
	openAI, anthropic := r.openAIClient(hc), r.anthropicClient(hc)
	switch r.API {
	case sdkcase.Chat:
		return r.chat(ctx, openAI)
	case sdkcase.Completions:
		return r.completions(ctx, openAI)
	case sdkcase.Responses:
		return r.responses(ctx, openAI)
	case sdkcase.Embeddings:
		return r.embeddings(ctx, openAI)
	case sdkcase.Messages:
		return r.messages(ctx, anthropic)
	case sdkcase.CountTokens:
		return r.countTokens(ctx, anthropic)
	case sdkcase.AnthropicModels:
		return r.anthropicModels(ctx, anthropic)
	case sdkcase.Models:
		return r.models(ctx, openAI)
	case sdkcase.Stored:
		return r.stored(ctx, openAI)
	case sdkcase.InputTokens:
		return r.inputTokens(ctx, openAI)
	case sdkcase.Compact:
		return r.compact(ctx, openAI)
	case sdkcase.Speech:
		return r.speech(ctx, openAI)
	case sdkcase.Transcriptions:
		return r.transcriptions(ctx, openAI)
	case sdkcase.Images:
		return r.images(ctx, openAI)
	}
	return fmt.Errorf("call operation %q: unknown", r.API)
}

func (r *run) timeout() time.Duration {
	return time.Duration(r.TimeoutSeconds * float64(time.Second))
}

func (r *run) ms() float64 { return float64(time.Since(r.begin).Microseconds()) / 1000 }

// observe is a middleware of both SDKs; it counts requests and notes the last
// response's status and headers.
func (r *run) observe(req *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	r.result.Attempts++
	resp, err := next(req)
	if resp != nil {
		r.result.Status = resp.StatusCode
		r.result.Headers = make(map[string]string, len(resp.Header))
		for name, values := range resp.Header {
			r.result.Headers[strings.ToLower(name)] = strings.Join(values, ", ")
		}
	}
	return resp, err
}

// chunk counts one chunk and reports whether the case wants to leave now.
func (r *run) chunk() bool {
	if r.result.Chunks == 0 {
		r.result.FirstChunkMs = r.ms()
	}
	r.result.Chunks++
	if r.result.Chunks == r.CancelAfter {
		r.result.Cancelled = true
	}
	return r.result.Cancelled
}

// stream is what both SDKs' streams offer.
type stream[T any] interface {
	Next() bool
	Current() T
	Err() error
	Close() error
}

// drain hands every chunk of s to take until the stream ends or the case leaves.
func drain[T any](r *run, s stream[T], take func(T)) error {
	for s.Next() {
		take(s.Current())
		if r.chunk() {
			return s.Close()
		}
	}
	return errors.Join(s.Err(), s.Close())
}

const (
	toolName = "get_weather"
	toolText = "Tells the weather of a city."
)

// toolProperties is the schema of the tool's arguments.
var toolProperties = map[string]any{"city": map[string]any{"type": "string"}}

// describe is what a program can learn from an SDK's error.
func describe(err error) *sdkcase.Error {
	if e := describeOpenAI(err); e != nil {
		return e
	}
	if e := describeAnthropic(err); e != nil {
		return e
	}
	// A joined error has no name of its own worth telling.
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) == 1 {
		err = joined.Unwrap()[0]
	}
	return &sdkcase.Error{Class: fmt.Sprintf("%T", err), Message: err.Error()}
}
