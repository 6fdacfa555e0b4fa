package e2e

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
	"keyway/e2e/fakeprovider"
	"keyway/e2e/sdk"
	"keyway/e2e/sdk/sdkcase"
)

// What the official SDKs have besides chat, responses and messages.
func TestOfficialSDKsOnOtherPaths(t *testing.T) {
	t.Parallel()
	s := sharedStack(t)
	const usage = `[[fake:{"usage":{"input_uncached":31,"output":11},"count":2}]] hello`
	spoken := digestOf(fakeprovider.Sound(int64(len("Hello."))))
	counts := sdkcase.Counts{Input: 31, Output: 11}
	checks := []struct {
		sdkcase.Case
		text, finish string
		counts       sdkcase.Counts
		rows         map[domain.API]int
	}{
		{Case: sdkcase.Case{API: sdkcase.Models, Model: "two"}, text: "drawn,heard,only-a,spoken,two"},
		{Case: sdkcase.Case{API: sdkcase.AnthropicModels, Model: "only-a"}, text: "drawn,heard,only-a,spoken,two"},
		{Case: sdkcase.Case{API: sdkcase.CountTokens, Prompt: "one two three"}, counts: sdkcase.Counts{Input: 3}, rows: map[domain.API]int{domain.APICountTokens: 1}},
		{Case: sdkcase.Case{API: sdkcase.InputTokens, Prompt: "one two three"}, counts: sdkcase.Counts{Input: 3}, rows: map[domain.API]int{domain.APIInputTokens: 1}},
		{
			Case: sdkcase.Case{API: sdkcase.Stored, Prompt: usage}, text: fakeprovider.Text(2), finish: "cancelled", counts: counts,
			rows: map[domain.API]int{domain.APIResponses: 1, domain.APIStored: 5},
		},
		{
			Case: sdkcase.Case{API: sdkcase.Compact, Prompt: usage}, text: base64.StdEncoding.EncodeToString([]byte(fakeprovider.Text(2))),
			finish: "message,compaction", counts: counts, rows: map[domain.API]int{domain.APIResponses: 1, domain.APICompact: 1},
		},
		{Case: sdkcase.Case{API: sdkcase.Speech, Model: "spoken", Prompt: "Hello."}, text: spoken, rows: map[domain.API]int{domain.APISpeech: 1}},
		{Case: sdkcase.Case{API: sdkcase.Transcriptions, Model: "heard", Prompt: usage}, text: fakeprovider.Text(2), counts: counts, rows: map[domain.API]int{domain.APITranscriptions: 1}},
		{Case: sdkcase.Case{API: sdkcase.Images, Model: "drawn", Prompt: usage}, text: "2", counts: counts, rows: map[domain.API]int{domain.APIImages: 1}},
	}
	var cases []sdkcase.Case
	rows, wanted := 0, map[domain.API]int{}
	for i := range checks {
		checks[i].Name = string(checks[i].API)
		cases = append(cases, checks[i].Case)
		for api, n := range checks[i].rows {
			rows += n
			wanted[api] += n
		}
	}
	for _, lang := range sdk.Langs() {
		t.Run(string(lang), func(t *testing.T) {
			t.Parallel()
			key, id := s.key(t, "--identity", "wide", "--models", "two,only-a,spoken,heard,drawn")
			results, err := sdk.Run(t.Context(), lang, sdkcase.Env{BaseURL: s.ready.BaseURL, APIKey: key, Model: "only-a"}, cases)
			require.NoError(t, err)
			found := map[domain.API]int{}
			for _, r := range s.records(t, id, rows) {
				require.Equal(t, domain.OutcomeSuccess, r.Outcome, "%+v", r)
				if found[r.API]++; r.API.Free() {
					require.Zero(t, r.CostMicros, "%+v", r)
				}
			}
			for i, result := range results {
				c := checks[i]
				require.True(t, result.OK, "%s: %+v", c.Name, result.Error)
				assert.Equal(t, c.text, result.Text, c.Name)
				if c.finish != "" {
					assert.Equal(t, c.finish, result.FinishReason, c.Name)
				}
				if c.API == sdkcase.Stored {
					assert.Equal(t, "response.completed", result.LastEvent, c.Name)
				}
				got, _ := result.Counts()
				assert.Equal(t, c.counts, got, "%s: %s", c.Name, result.Usage)
			}
			assert.Equal(t, wanted, found, "rows by operation")
		})
	}
}
