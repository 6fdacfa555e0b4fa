package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"keyway/domain"
)

// What a compacted conversation repeats of the client's own messages is no output,
// where no usage tells what is.
func TestCompactionWithoutUsage(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatchOptions{API: domain.APICompact, Format: FormatJSON})
	w.Write([]byte(`{"id":"resp_1","object":"response.compaction","output":[` +
		`{"type":"message","role":"user","content":[{"type":"input_text","text":"What is the weather in Paris, and why does it rain so often?"}]},` +
		`{"type":"compaction","encrypted_content":"ZzAx"}]}`))
	r := w.Result()
	u, source := r.Count(30)
	assert.Equal(t, domain.SourceEstimate, source)
	assert.Equal(t, int64(30), u.InputUncached)
	assert.Positive(t, u.Output)
	assert.Less(t, u.Output, int64(8))
}
