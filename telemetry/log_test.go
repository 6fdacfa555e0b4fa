package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func TestLoggerJSON(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	l := NewLogger(&buf, LogOptions{Service: "worker", Format: LogJSON})
	l.Debug("not written")
	l.Info("settled", RequestID("req_1"), KeyID("key_1"), Err(errors.New("broken")))

	var line map[string]any
	require.NoError(t, json.Unmarshal(buf.Bytes(), &line), "one line, one object: %s", buf.String())
	delete(line, "time")
	assert.Equal(t, map[string]any{
		"level": "INFO", "msg": "settled", "service": "worker",
		"request_id": "req_1", "key_id": "key_1", "error": "broken",
	}, line)
}

func TestLoggerText(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	l := NewLogger(&buf, LogOptions{Level: slog.LevelDebug})
	l.Debug("written", RequestID("req_1"))
	assert.Contains(t, buf.String(), "level=DEBUG msg=written request_id=req_1")
	assert.NotContains(t, buf.String(), "service=")
}

func TestLoggerHidesVirtualKeys(t *testing.T) {
	t.Parallel()
	key, err := domain.NewKeySecret()
	require.NoError(t, err)
	for _, format := range []LogFormat{LogText, LogJSON} {
		var buf bytes.Buffer
		l := NewLogger(&buf, LogOptions{Format: format})
		l.With("bound", key).WithGroup("g").Warn("refused", "header", "Bearer "+key, Err(errors.New("bad key "+key)))
		assert.NotContains(t, buf.String(), key)
		assert.Contains(t, buf.String(), "kw_[redacted]")
	}
}

func TestParseLogFormat(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"text", "json"} {
		f, err := ParseLogFormat(name)
		require.NoError(t, err)
		assert.Equal(t, LogFormat(name), f)
	}
	_, err := ParseLogFormat("xml")
	require.ErrorContains(t, err, `"xml"`)
}
