package authz

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/config"
	"keyway/domain"
)

func TestOperations(t *testing.T) {
	t.Parallel()
	snap := &config.Snapshot{Raw: []config.RawPath{{Path: "/v1/files/tmp", Model: "tmp"}, {Path: "/v1/files", Model: "files"}}}
	for line, want := range map[string]operation{
		"POST /v1/chat/completions":             {api: domain.APIChat},
		"POST /v1/messages/count_tokens?beta=1": {api: domain.APICountTokens},
		"POST /v1/responses/compact":            {api: domain.APICompact},
		"POST /v1/responses/input_tokens":       {api: domain.APIInputTokens},
		"GET /v1/models":                        {api: domain.APIModels},
		"GET /v1/models/":                       {api: domain.APIModels},
		"GET /v1/models/a%2Fb:c":                {api: domain.APIModels, resource: "a/b:c"},
		"GET /v1/models/a/b":                    {api: domain.APIModels, resource: "a/b"},
		"GET /v1/responses/resp_1?stream=true":  {api: domain.APIStored, resource: "resp_1"},
		"DELETE /v1/responses/resp_1":           {api: domain.APIStored, resource: "resp_1"},
		"POST /v1/responses/resp_1/cancel":      {api: domain.APIStored, resource: "resp_1"},
		"GET /v1/responses/resp_1/input_items":  {api: domain.APIStored, resource: "resp_1"},
		"PATCH /v1/files":                       {api: domain.APIRawOpenAI, resource: "files"},
		"GET /v1/files/a/b?c=d":                 {api: domain.APIRawOpenAI, resource: "files"},
		"GET /v1/files/tmp/x":                   {api: domain.APIRawOpenAI, resource: "tmp"},
	} {
		method, target, _ := strings.Cut(line, " ")
		got, err := operationOf(snap, Request{Method: method, Target: target})
		require.NoError(t, err, line)
		want.path = pathOf(target)
		assert.Equal(t, want, got, line)
	}
	got, err := operationOf(snap, Request{Method: http.MethodGet, Target: "/v1/files", Headers: map[string]string{"anthropic-version": "x"}})
	require.NoError(t, err)
	require.Equal(t, domain.APIRawAnthropic, got.api)
	for line, code := range map[string]domain.Code{
		"GET /v1/chat/completions":              domain.CodeMethod,
		"POST /v1/models":                       domain.CodeMethod,
		"POST /v1/responses/resp_1":             domain.CodeMethod,
		"GET /v1/responses/resp_1/cancel":       domain.CodeMethod,
		"GET /v1/responses/compact":             domain.CodeMethod,
		"GET /v1/responses/input_tokens":        domain.CodeMethod,
		"OPTIONS /v1/files":                     domain.CodeMethod,
		"CONNECT /v1/files":                     domain.CodeMethod,
		"GET /v1/modelsx":                       domain.CodeNotFound,
		"GET /v1/models/%zz":                    domain.CodeNotFound,
		"GET /v1/responses/":                    domain.CodeNotFound,
		"GET /v1/responses/a/b":                 domain.CodeNotFound,
		"GET /v1/responses/a/input_items/b":     domain.CodeNotFound,
		"GET /v1/responses/..":                  domain.CodeNotFound,
		"GET /v1/responses/a%2fb":               domain.CodeNotFound,
		"GET /v1/filesystem":                    domain.CodeNotFound,
		"GET /v1/files/":                        domain.CodeNotFound,
		"GET /v1/files/../chat/completions":     domain.CodeNotFound,
		"GET /v1/files/a//b":                    domain.CodeNotFound,
		"GET /v1/files/a%2e":                    domain.CodeNotFound,
		"GET /v1/files/a;b":                     domain.CodeNotFound,
		"POST /v1/chat/completions/":            domain.CodeNotFound,
		"POST /v1/Chat/completions":             domain.CodeNotFound,
		"POST https://x.example/v1/completions": domain.CodeNotFound,
	} {
		method, target, _ := strings.Cut(line, " ")
		_, err := operationOf(snap, Request{Method: method, Target: target})
		require.Error(t, err, line)
		assert.Equal(t, code, domain.AsError(err).Code, line)
	}
}

// No path that is metered may pass raw, however it is written.
func TestMeteredPathsNeverPassRaw(t *testing.T) {
	t.Parallel()
	snap := &config.Snapshot{Raw: []config.RawPath{{Path: "/v1", Model: "all"}}} // more than a configuration may have
	for _, path := range []string{
		"/v1/chat/completions", "/V1/Chat/Completions", "/v1/chat/completions/x", "/v1/responses", "/v1/messages/batches/x/../..",
		"/v1/messages/x", "/v1/models", "/v1/MODELS/x", "/v1/audio/speech/", "/v1/images/Edits",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPatch} {
			op, err := operationOf(snap, Request{Method: method, Target: path})
			assert.True(t, err != nil || !op.api.IsRaw(), "%s %s", method, path)
		}
	}
	op, err := operationOf(snap, Request{Method: http.MethodGet, Target: "/v1/messages/batches/b_1"})
	require.NoError(t, err)
	require.Equal(t, domain.APIRawAnthropic, op.api)
}

func TestModelsAreAnsweredWithoutAReservation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reconfigure(func(s *config.Snapshot) {
		s.Models["secret"] = domain.Model{Name: "secret", Channels: []string{"a"}}
		s.Models["idle"] = domain.Model{Name: "idle"}
		s.Models["files"] = domain.Model{Name: "files", Channels: []string{"a"}, Raw: []string{"/v1/files"}}
		s.Aliases = map[string]domain.Alias{"latest": {Name: "latest", Model: "m"}, "dark": {Name: "dark", Model: "secret"}}
		s.ModelNames = []string{"dark", "files", "idle", "latest", "lonely", "m", "secret"}
	})
	f.setKey(domain.VirtualKey{ID: "key_1", Identity: "acme", Models: []string{"m", "l*", "idle", "files"}, State: domain.KeyActive})
	list := func(headers map[string]string) []string {
		r := f.request("")
		r.Method, r.Target = http.MethodGet, "/v1/models"
		maps.Copy(r.Headers, headers)
		got, err := f.server.check(t.Context(), r)
		require.NoError(t, err)
		var body struct{ Data []struct{ ID string } }
		require.NoError(t, json.Unmarshal(got.Answer, &body))
		var names []string
		for _, m := range body.Data {
			names = append(names, m.ID)
		}
		return names
	}
	assert.Equal(t, []string{"latest", "m"}, list(nil))
	assert.Equal(t, []string{"lonely"}, list(map[string]string{"anthropic-version": "2023-06-01"}), "the other channels do not speak it")
	assert.Empty(t, f.reservations.admitted)
}

// What is free holds nothing but its own limit, whatever the policies have.
func TestFreeRequestsHoldNoMoney(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reconfigure(func(s *config.Snapshot) {
		s.Policies["p"] = domain.Policy{RPM: 10, TPM: 10, InFlight: 10, BudgetDayMicros: 10, ImagesDay: 10, CountTokensRPM: 7}
		s.Policies["shared"] = domain.Policy{BudgetMonthMicros: 10, InjectCap: true}
		s.Prepaid = map[string]bool{"acme": true}
	})
	r := f.request(`{"model":"m","input":"` + strings.Repeat("long ", 90) + `"}`)
	r.Target = "/v1/responses/input_tokens"
	got, err := f.server.check(t.Context(), r)
	require.NoError(t, err)
	d := got.Decision
	require.Len(t, d.Holds, 1)
	assert.Equal(t, domain.Hold{Kind: domain.LimitCountTokens, Scope: domain.ScopeKey, ID: "key_1", Limit: 7, Amount: 1}, d.Holds[0])
	assert.Zero(t, d.PromptTokens+d.OutputCap+d.Price.Input+d.Price.Output)
	assert.Empty(t, d.Class)
	assert.Len(t, d.Candidates[0].Patches, 1, "the name of the model, and no cap")
}
