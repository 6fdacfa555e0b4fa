package main

import (
	"fmt"
	"os"
	"strings"
)

// describe fills in what stays as it is while the region runs.
func (r *region) describe(state *readiness) {
	scheme := "http"
	if r.config.GetListener().GetTls() != nil {
		scheme = "https"
	}
	state.BaseURL = fmt.Sprintf("%s://%s", scheme, r.ingress())
	if models := r.config.GetModels(); len(models) > 0 {
		state.Model = models[0].GetName()
	}
	state.AdminURL = localURL(r.AdminPort)
	state.ProviderURL = localURL(r.ProviderPort)
	state.EnvoyAdminURL = localURL(r.EnvoyPort)
	state.Binary = r.binary
	state.RedisURL = r.storeURL()
	state.Ledger = r.Ledger
	state.Config = r.configFile
	state.Region = r.config.GetRegion()
	state.Dir = r.Root
	state.PID = os.Getpid()
	state.Services = map[string]service{
		procXDS: serviceAt(r.AdminPort), procAuthz: serviceAt(r.AuthzPort),
		procExtproc: serviceAt(r.ExtprocPort), procWorker: serviceAt(r.WorkerPort),
	}
}

// invitation is what `keyway up` prints once all runs: three commands that work
// when they are pasted as they stand.
func (r *region) invitation(state readiness) string {
	const prompt = "Say hello"
	return fmt.Sprintf(`
Keyway is ready on %[1]s. Try:

  # a streamed answer
  curl -N %[1]s/v1/chat/completions -H 'authorization: Bearer %[2]s' -H 'content-type: application/json' \
    -d '{"model":%[3]q,"stream":true,"messages":[{"role":"user","content":%[4]q}]}'

  # the same model, spoken to as Anthropic
  curl %[1]s/v1/messages -H 'x-api-key: %[2]s' -H 'anthropic-version: 2023-06-01' -H 'content-type: application/json' \
    -d '{"model":%[3]q,"max_tokens":64,"messages":[{"role":"user","content":%[4]q}]}'

  # what it cost
  %[5]s ledger --dir %[6]s

Scripts read %[7]s, logs are in %[8]s. Ctrl-C stops everything.
`, state.BaseURL, state.APIKey, state.Model, prompt, shellQuote(r.binary), shellQuote(r.Root), r.Ready, r.Logs)
}

// shellQuote writes an argument so that a shell takes it as one word.
func shellQuote(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
