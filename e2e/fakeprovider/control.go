package fakeprovider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

func isControlPath(path string) bool { return strings.HasPrefix(path, "/_") }

// controlHandler serves the control paths for face, or for all faces when face is nil.
func (s *Server) controlHandler(face *Face) http.Handler {
	c := &control{server: s, face: face}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /_script", answering(c.postScript))
	mux.HandleFunc("DELETE /_script", answering(c.deleteScript))
	mux.HandleFunc("GET /_records", answering(c.getRecords))
	mux.HandleFunc("DELETE /_records", answering(c.deleteRecords))
	mux.HandleFunc("GET /_open", answering(c.getOpen))
	mux.HandleFunc("POST /_tls", answering(c.postTLS))
	mux.HandleFunc("GET /_ca", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(s.ca.pem) // the reader may be gone
	})
	return mux
}

// control is the HTTP side of scripts and records.
type control struct {
	server *Server
	face   *Face
}

// answering turns a function of the request into a handler: its value as JSON,
// 204 for nil, 400 with the reason for an error.
func answering(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := f(r)
		status := http.StatusOK
		switch {
		case err != nil:
			status, value = http.StatusBadRequest, map[string]string{"error": err.Error()}
		case value == nil:
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(value) // the reader may be gone
	}
}

// faces returns the faces that r concerns.
func (c *control) faces(r *http.Request) ([]*Face, error) {
	if name := r.URL.Query().Get("face"); name != "" {
		f := c.server.Face(name)
		if f == nil {
			return nil, fmt.Errorf("no face %q", name)
		}
		return []*Face{f}, nil
	}
	if c.face != nil {
		return []*Face{c.face}, nil
	}
	return c.server.faces, nil
}

func (c *control) postScript(r *http.Request) (any, error) {
	faces, err := c.faces(r)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("read scripts: %w", err)
	}
	scripts, err := parseScripts(raw)
	if err != nil {
		return nil, err
	}
	queued := r.URL.Query().Get("mode") == "queue"
	if !queued && len(scripts) != 1 {
		return nil, errors.New("a sticky script must be one; use mode=queue for a list")
	}
	for _, f := range faces {
		if queued {
			f.Enqueue(scripts...)
		} else {
			f.Script(scripts[0])
		}
	}
	return nil, nil
}

// parseScripts reads one script or a list.
func parseScripts(raw []byte) ([]Script, error) {
	items := []json.RawMessage{raw}
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("[")) {
		if err := json.Unmarshal(raw, &items); err != nil {
			return nil, fmt.Errorf("parse list of scripts: %w", err)
		}
	}
	scripts := make([]Script, 0, len(items))
	for _, item := range items {
		s, err := ParseScript(item)
		if err != nil {
			return nil, err
		}
		scripts = append(scripts, s)
	}
	return scripts, nil
}

func (c *control) deleteScript(r *http.Request) (any, error) {
	faces, err := c.faces(r)
	for _, f := range faces {
		f.Reset()
	}
	return nil, err
}

func (c *control) deleteRecords(*http.Request) (any, error) {
	c.server.ClearRecords()
	return nil, nil
}

func (c *control) getOpen(*http.Request) (any, error) {
	return map[string]int{"open": c.server.Open()}, nil
}

func (c *control) postTLS(r *http.Request) (any, error) {
	faces, err := c.faces(r)
	if err != nil {
		return nil, err
	}
	ms, err := strconv.Atoi(r.URL.Query().Get("handshake_delay_ms"))
	if err != nil {
		return nil, fmt.Errorf("read handshake_delay_ms: %w", err)
	}
	for _, f := range faces {
		f.SetHandshakeDelay(time.Duration(ms) * time.Millisecond)
	}
	return nil, nil
}

func (c *control) getRecords(r *http.Request) (any, error) {
	q := r.URL.Query()
	faces, err := c.faces(r)
	if err != nil {
		return nil, err
	}
	var numbers [3]int
	for i, name := range []string{"status", "since", "limit"} {
		if q.Get(name) == "" {
			continue
		}
		if numbers[i], err = strconv.Atoi(q.Get(name)); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	status, since, limit := numbers[0], numbers[1], numbers[2]
	out := []Record{}
	for _, rec := range c.server.Records() {
		if concerns(faces, rec.Face) && rec.ID > uint64(max(since, 0)) &&
			(status == 0 || rec.Status == status) &&
			matches(q.Get("path"), rec.Path) && matches(q.Get("model"), rec.Model) && matches(q.Get("end"), string(rec.End)) {
			out = append(out, rec)
		}
	}
	if limit > 0 && len(out) > limit {
		out = out[len(out)-limit:]
	}
	return out, nil
}

func concerns(faces []*Face, name string) bool {
	for _, f := range faces {
		if f.options.Name == name {
			return true
		}
	}
	return false
}

func matches(want, got string) bool { return want == "" || want == got }
