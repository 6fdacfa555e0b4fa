package e2e

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/sdk"
	"keyway/e2e/sdk/sdkcase"
)

// TestCorpusThroughOfficialSDKs lets the SDKs read every recording that they
// have a reader for. What an SDK makes of a whole answer is what it makes of the
// provider's own; it raises for nothing but an error, or a stream cut short,
// which Keyway tells; and the usage that it shows is the recording's.
func TestCorpusThroughOfficialSDKs(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	var (
		cases    []sdkcase.Case
		replayed []recording
		asked    = true
	)
	for _, r := range corpus(t) {
		if !r.hasSDK() {
			continue
		}
		c := sdkcase.Case{Name: r.name, API: sdkcase.API(r.api), Stream: r.stream, Prompt: "[[fake:" + r.script(`,"cut_every":41`) + "]]"}
		if r.counts() {
			c.IncludeUsage = &asked
		}
		if r.name == "embeddings/floats" {
			c.EncodingFormat = "float"
		}
		cases, replayed = append(cases, c), append(replayed, r)
	}
	for _, lang := range sdk.Langs() {
		t.Run(string(lang), func(t *testing.T) {
			t.Parallel()
			key, _ := s.key(t, "--identity", "wide", "--policy", "wide")
			results, err := sdk.Run(t.Context(), lang, sdkcase.Env{BaseURL: s.ready.BaseURL, APIKey: key, Model: "only-a"}, cases)
			require.NoError(t, err)
			direct, err := sdk.Run(t.Context(), lang, sdkcase.Env{BaseURL: s.provider.Face("a").URL(), APIKey: faceKey("a"), Model: "m"}, cases)
			require.NoError(t, err)
			for i, result := range results {
				if replayed[i].want.Terminal {
					assert.Equal(t, withoutTimes(direct[i]), withoutTimes(result), replayed[i].name)
				}
				replayed[i].checkSDK(t, lang, result)
			}
		})
	}
}

// withoutTimes is r without what differs from run to run.
func withoutTimes(r sdkcase.Result) sdkcase.Result {
	r.Headers, r.FirstChunkMs, r.Ms = nil, 0, 0
	if r.Error != nil {
		e := *r.Error
		e.RequestID = ""
		r.Error = &e
	}
	return r
}

// hasSDK reports whether the SDKs of all languages have a reader for r.
func (r recording) hasSDK() bool {
	if r.stream {
		return r.api.Streams()
	}
	// A document that is not the operation's is nothing that an SDK promises to read.
	return (r.api.Streams() || r.api == domain.APIEmbeddings) && r.want.Terminal && !r.want.Failed
}

// Where an SDK reads an answer otherwise than Keyway does, with Keyway and without.
var (
	// sdkOverlooks are errors that it takes for nothing.
	sdkOverlooks = map[string][]sdk.Lang{
		"chat/error_flat":                   sdk.Langs(),
		"chat/error_in_a_choice":            sdk.Langs(),
		"messages/error_without_event_line": sdk.Langs(),
		"responses/error_flat":              {sdk.Python, sdk.Go},
	}
	// sdkStumbles are whole answers over which it falls.
	sdkStumbles = map[string][]sdk.Lang{
		"chat/error_null":            {sdk.Go},
		"chat/unreadable_frame":      sdk.Langs(),
		"chat/no_blank_lines":        sdk.Langs(),
		"chat/logprobs_not_a_number": {sdk.Go, sdk.Node},
		"chat/document_not_a_number": {sdk.Go, sdk.Node},
	}
	// sdkMisreads are usages that it shows otherwise: those contradict themselves,
	// are written as no SDK reads them, or stand where none looks.
	sdkMisreads = []string{
		"chat/cached_beyond_prompt", "chat/thinking_outside_completion", "chat/usage_as_fraction_and_text",
		"chat/usage_in_a_choice", "chat/usage_in_x_groq", "responses/cancelled", "responses/ended_by_another_name",
	}
)

func (r recording) checkSDK(t *testing.T, lang sdk.Lang, result sdkcase.Result) {
	t.Helper()
	assert.Equal(t, 1, result.Attempts, r.name)
	// The SDKs hand over a response that failed and raise nothing.
	raises := !r.want.Terminal || r.want.Failed && result.LastEvent != "response.failed"
	raises = raises && !slices.Contains(sdkOverlooks[r.name], lang) || slices.Contains(sdkStumbles[r.name], lang)
	assert.Equal(t, raises, !result.OK, "%s: %+v", r.name, result.Error)
	if raises || !r.want.HasUsage || slices.Contains(sdkMisreads, r.name) {
		return
	}
	counts, shown := result.Counts()
	assert.True(t, shown, r.name)
	u := r.want.Usage
	want := sdkcase.Counts{Input: u.Input(), CacheRead: u.CacheRead, CacheWrite: u.CacheWrite, Output: u.Output, Reasoning: u.Reasoning}
	if r.api == domain.APIMessages {
		// Counts reads no field for what was thought there, and input is what was not cached.
		want.Input, want.Reasoning = u.InputUncached, counts.Reasoning
	}
	assert.Equal(t, want, counts, r.name)
}
