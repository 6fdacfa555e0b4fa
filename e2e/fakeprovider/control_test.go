package fakeprovider_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/e2e/fakeprovider"
)

// control calls a control path and returns status and body.
func control(t *testing.T, method, url, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := client(t).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, raw
}

func TestControl(t *testing.T) {
	t.Parallel()
	s, err := fakeprovider.New(fakeprovider.Options{
		Faces:       []fakeprovider.FaceOptions{{Name: "a", WantKey: key}, {Name: "b"}},
		ControlAddr: "127.0.0.1:0",
	})
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(s.Close)
	a, b, ctl := s.Face("a").URL(), s.Face("b").URL(), s.ControlURL()
	status := func(face string) int {
		return post(t, face+"/v1/chat/completions", chatPlain, "Authorization", "Bearer "+key).StatusCode
	}
	steps := []struct {
		method, url, body string
		want              int
		wantA, wantB      int
	}{
		{"POST", ctl + "/_script?face=a", `{"status":404}`, 204, 404, 200},
		{"POST", a + "/_script?mode=queue", `[{"status":501},{"status":200}]`, 204, 501, 200},
		{"POST", b + "/_script", `{"status":403}`, 204, 200, 403},
		{"DELETE", ctl + "/_script", ``, 204, 200, 200},
		{"POST", ctl + "/_script", `{"status":418}`, 204, 418, 418},
		{"POST", ctl + "/_script", `{"nope":1}`, 400, 418, 418},
		{"POST", ctl + "/_script", `[{},{}]`, 400, 418, 418},
		{"POST", ctl + "/_script?face=zzz", `{}`, 400, 418, 418},
		{"DELETE", a + "/_script", ``, 204, 200, 418},
		{"POST", ctl + "/_tls?handshake_delay_ms=0", ``, 204, 200, 418},
		{"POST", ctl + "/_tls", ``, 400, 200, 418},
	}
	for _, step := range steps {
		got, _ := control(t, step.method, step.url, step.body)
		assert.Equal(t, step.want, got, step)
		assert.Equal(t, step.wantA, status(a), step)
		assert.Equal(t, step.wantB, status(b), step)
	}
	count := func(query string) int {
		_, raw := control(t, "GET", query, "")
		var records []fakeprovider.Record
		require.NoError(t, json.Unmarshal(raw, &records))
		return len(records)
	}
	n := len(steps)
	assert.Equal(t, 2*n, count(ctl+"/_records"))
	assert.Equal(t, n, count(a+"/_records"))
	assert.Equal(t, 1, count(ctl+"/_records?status=404"))
	assert.Equal(t, 3, count(ctl+"/_records?limit=3"))
	assert.Equal(t, 2*n-5, count(ctl+"/_records?since=5"))
	assert.Equal(t, 2*n, count(ctl+"/_records?path=/v1/chat/completions&model=m&end=completed"))
	assert.Equal(t, 0, count(ctl+"/_records?path=/v1/messages"))
	_, raw := control(t, "GET", ctl+"/_open", "")
	assert.JSONEq(t, `{"open":0}`, string(raw))
	_, raw = control(t, "GET", ctl+"/_ca", "")
	assert.Equal(t, s.CAPEM(), raw)
	control(t, "DELETE", ctl+"/_records", "")
	assert.Equal(t, 0, count(ctl+"/_records"))
}

func TestRecord(t *testing.T) {
	t.Parallel()
	s := start(t)
	got := post(t, s.Face("a").URL()+"/base/chat/completions?a=1&b=2", chatPlain, "x-case", "one", "x-case", "two")
	rec := ended(t, s, 1)
	assert.Equal(t, "POST", rec.Method)
	assert.Equal(t, "/base/chat/completions", rec.Path)
	assert.Equal(t, "a=1&b=2", rec.Query)
	assert.Equal(t, s.Face("a").Addr(), rec.Host)
	assert.Equal(t, []string{"one", "two"}, rec.Header.Values("x-case"))
	assert.Equal(t, chatPlain, string(rec.Body))
	assert.EqualValues(t, len(chatPlain), rec.BodyBytes)
	assert.Equal(t, got.Header.Get("x-request-id"), rec.RequestID)
	assert.Equal(t, fakeprovider.Usage{InputUncached: 2, Output: 8}, *rec.Usage)
	assert.Equal(t, "HTTP/1.1", rec.Proto)
	assert.Equal(t, 200, rec.Status)

	large := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 70<<10) + `"}]}`
	post(t, s.Face("a").URL()+"/v1/chat/completions", large)
	rec = ended(t, s, 2)
	assert.Nil(t, rec.Body, "a body over 64 KiB is not kept")
	assert.EqualValues(t, len(large), rec.BodyBytes)
	assert.Len(t, s.Face("a").Records(), 2)
	s.ClearRecords()
	assert.Empty(t, s.Records())
}

func TestRunAndOptions(t *testing.T) {
	t.Parallel()
	_, err := fakeprovider.New(fakeprovider.Options{})
	require.Error(t, err)
	_, err = fakeprovider.New(fakeprovider.Options{Faces: []fakeprovider.FaceOptions{{Name: "a"}, {Name: "a"}}})
	require.Error(t, err)

	first := start(t)
	second, err := fakeprovider.New(fakeprovider.Options{Faces: []fakeprovider.FaceOptions{{Name: "a", Addr: first.Face("a").Addr()}}})
	require.NoError(t, err)
	require.ErrorContains(t, second.Run(t.Context()), first.Face("a").Addr())

	third, err := fakeprovider.New(fakeprovider.Options{Faces: []fakeprovider.FaceOptions{{Name: "a"}}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, third.Run(ctx))
}

func TestCloseEndsRunningRequests(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.Face("a").Script(fakeprovider.Script{HangAfter: &fakeprovider.Point{}})
	conn := dialRaw(t, s.Face("a"), chatStream)
	buf := make([]byte, 1)
	_, err := conn.Read(buf)
	require.NoError(t, err)
	s.Close()
	assert.Equal(t, fakeprovider.EndStopped, s.Records()[0].End)
}

// A thousand streams at once all end right, and nothing stays open.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	const streams = 1000
	s := start(t)
	s.Face("a").Script(fakeprovider.Script{DelayBetweenMs: 20})
	c := h2cClient(t)
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() {
			got := send(t, c, s.Face("a").URL()+"/v1/chat/completions", chatStream)
			assert.NoError(t, got.err)
			assert.True(t, strings.HasSuffix(string(got.body), "data: [DONE]\n\n"))
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	records, err := s.WaitRecords(ctx, func([]fakeprovider.Record) bool { return s.Open() == 0 })
	require.NoError(t, err)
	require.Len(t, records, streams)
	for _, r := range records {
		assert.Equal(t, fakeprovider.EndCompleted, r.End)
	}
}
