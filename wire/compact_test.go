package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

// A compacted conversation is charged by its usage, at every split point; without
// one, what it repeats of the client's own messages is no output.
func TestCompaction(t *testing.T) {
	t.Parallel()
	const (
		head  = `{"id":"resp_1","object":"response.compaction","created_at":1764547200,"service_tier":"flex","output":[`
		items = `{"id":"msg_1","type":"message","status":"completed","role":"user","content":[{"type":"input_text","text":"What is the weather in Paris, and why does it rain so often?"}]},` +
			`{"id":"cmp_1","type":"compaction","encrypted_content":"ZzAx"}]`
		usage = `,"usage":{"input_tokens":139,"input_tokens_details":{"cached_tokens":100},"output_tokens":438,"output_tokens_details":{"reasoning_tokens":64},"total_tokens":577}}`
	)
	whole := []byte(head + items + usage)
	for cut := range whole {
		w := NewWatcher(WatchOptions{API: domain.APICompact, Format: FormatJSON})
		require.Equal(t, whole[:cut], w.Write(whole[:cut])[:cut:cut])
		w.Write(whole[cut:])
		r := w.Result()
		require.Equal(t, domain.Usage{InputUncached: 39, CacheRead: 100, Output: 438, Reasoning: 64, Tier: r.Usage.Tier}, r.Usage)
		require.True(t, r.HasUsage && r.Terminal)
		require.Equal(t, "resp_1", r.UpstreamID)
		require.Equal(t, "flex", r.ServiceTier)
	}

	w := NewWatcher(WatchOptions{API: domain.APICompact, Format: FormatJSON})
	w.Write([]byte(head + items + "}"))
	r := w.Result()
	u, source := r.Count(30)
	assert.Equal(t, domain.SourceEstimate, source)
	assert.Equal(t, int64(30), u.InputUncached)
	assert.Positive(t, u.Output)
	assert.Less(t, u.Output, int64(8))

	w = NewWatcher(WatchOptions{API: domain.APICompact, Format: FormatJSON})
	w.Write([]byte(`{"error":{"type":"server_error","code":null,"message":"no"}}`))
	assert.True(t, w.Result().Failed)
}
