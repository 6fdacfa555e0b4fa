package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"keyway/domain"
)

// What a Responses answer last said of itself tells whether it goes on.
func TestUnfinishedResponses(t *testing.T) {
	t.Parallel()
	event := func(kind, status string) string {
		return "event: response." + kind + "\ndata: {\"type\":\"response." + kind + "\",\"response\":{\"id\":\"r\",\"status\":\"" + status + "\"}}\n\n"
	}
	for _, tc := range []struct {
		name, body            string
		format                Format
		unfinished, cancelled bool
	}{
		{"queued", `{"id":"r","status":"queued"}`, FormatJSON, true, false},
		{"in progress", `{"id":"r","status":"in_progress"}`, FormatJSON, true, false},
		{"completed", `{"id":"r","status":"completed"}`, FormatJSON, false, false},
		{"cancelled", `{"id":"r","status":"cancelled"}`, FormatJSON, false, true},
		{"cut off", `{"id":"r","status":"queued"`, FormatJSON, false, false},
		{"status of an item", `{"id":"r","output":[{"status":"in_progress"}]}`, FormatJSON, false, false},
		{"begun", event("created", "queued") + event("in_progress", "in_progress"), FormatSSE, true, false},
		{"ended", event("created", "queued") + event("completed", "completed"), FormatSSE, false, false},
		{"ended without a status", event("created", "queued") + "data: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\"}}\n\n", FormatSSE, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := NewWatcher(WatchOptions{API: domain.APIResponses, Format: tc.format})
			w.Write([]byte(tc.body))
			assert.Equal(t, tc.unfinished, w.Result().Unfinished)
			assert.Equal(t, tc.cancelled, w.Result().Cancelled)
		})
	}
}
