package gosdk_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"keyway/e2e/fakeprovider"
	"keyway/e2e/sdk/gosdk"
	"keyway/e2e/sdk/sdkcase"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What all languages share is tested in package sdk; here is what only a call
// in the same process can do.
func TestRun(t *testing.T) {
	t.Parallel()
	provider, err := fakeprovider.New(fakeprovider.Options{Faces: []fakeprovider.FaceOptions{{Name: "a"}}})
	require.NoError(t, err)
	require.NoError(t, provider.Start())
	t.Cleanup(provider.Close)
	env := sdkcase.Env{BaseURL: provider.Face("a").URL(), APIKey: "k", Model: "m"}

	results := gosdk.Run(t.Context(), env, []sdkcase.Case{
		{Name: "one", API: sdkcase.Chat, Prompt: "hi", Headers: map[string]string{"X-Case": "1"}, Body: map[string]any{"seed": 7}},
		{Name: "two", API: "poetry"},
	})
	require.Len(t, results, 2)
	assert.True(t, results[0].OK)
	require.NotNil(t, results[1].Error)
	assert.Contains(t, results[1].Error.Message, "poetry")
	record := provider.Records()[0]
	assert.Equal(t, "1", record.Header.Get("X-Case"))
	assert.Contains(t, string(record.Body), `"seed":7`)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results = gosdk.Run(ctx, env, []sdkcase.Case{{Name: "late", API: sdkcase.Messages, Stream: true}})
	require.NotNil(t, results[0].Error)
	assert.Contains(t, results[0].Error.Message, "canceled")
}
