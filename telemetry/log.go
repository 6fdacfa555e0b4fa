package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"

	"keyway/domain"
)

// LogFormat is how log lines are written.
type LogFormat string

// The formats. The zero value is LogText.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// ParseLogFormat returns the format called name, "text" or "json".
func ParseLogFormat(name string) (LogFormat, error) {
	switch f := LogFormat(name); f {
	case LogText, LogJSON:
		return f, nil
	}
	return "", fmt.Errorf("log format %q is neither %q nor %q", name, LogText, LogJSON)
}

// LogOptions of NewLogger. A zero field takes its default.
type LogOptions struct {
	// Service is the subcommand that logs, such as "authz"; "" adds no attribute.
	Service string
	// Format defaults to LogText.
	Format LogFormat
	// Level is the least level written; default slog.LevelInfo.
	Level slog.Leveler
}

// NewLogger returns a logger that writes to w. Messages are constant strings;
// what varies goes into attributes, RequestID and KeyID among them. A virtual
// key that slips into an attribute is written as its prefix only.
func NewLogger(w io.Writer, o LogOptions) *slog.Logger {
	level := o.Level
	if level == nil {
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: scrub}
	var h slog.Handler = slog.NewTextHandler(w, opts)
	if o.Format == LogJSON {
		h = slog.NewJSONHandler(w, opts)
	}
	l := slog.New(h)
	if o.Service != "" {
		l = l.With(slog.String("service", o.Service))
	}
	return l
}

// RequestID is the attribute that names a request.
func RequestID(id string) slog.Attr { return slog.String("request_id", id) }

// KeyID is the attribute that names a virtual key: its public id, never its secret.
func KeyID(id string) slog.Attr { return slog.String("key_id", id) }

// Err is the attribute that carries an error.
func Err(err error) slog.Attr { return slog.Any("error", err) }

var keyLike = regexp.MustCompile(domain.KeyPrefix + `[0-9A-Za-z]{16,}`)

// scrub is the last line against a key in the log, not the first: the types
// and call sites are. It looks at strings and errors, where an upstream's text
// could echo a client's credential.
func scrub(_ []string, a slog.Attr) slog.Attr {
	var text string
	switch a.Value.Kind() {
	case slog.KindString:
		text = a.Value.String()
	case slog.KindAny:
		err, ok := a.Value.Any().(error)
		if !ok {
			return a
		}
		text = err.Error()
	default:
		return a
	}
	// Nearly every text is clean, and looking for a prefix costs next to nothing.
	if strings.Contains(text, domain.KeyPrefix) {
		a.Value = slog.StringValue(keyLike.ReplaceAllString(text, domain.KeyPrefix+"[redacted]"))
	}
	return a
}
