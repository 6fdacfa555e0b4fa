package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"

	"keyway/domain"
)

// configValues change the configuration of a region.
type configValues struct {
	// Extra is appended to the channel list, YAML.
	ExtraChannels string
	// Ceiling is that of the region, YAML; "" is none.
	Ceiling string
}

var (
	channelLines = regexp.MustCompile(`(?m)^(  - \{name: [^,]+, provider: [^,]+), (secret: )`)
	wideSlots    = regexp.MustCompile(`, slots: \d{3,}`)
)

// writeConfig writes the configuration file; xds picks it up by itself.
func (s *stack) writeConfig(v configValues) error {
	type face struct{ Name, URL, CA, Secret string }
	data := struct {
		configValues
		Port  int
		Dir   string
		Lease string
		Faces []face
		Rests []string
		// Voices are models that speak, priced by the character. Those of Hoarse have
		// channels of their own, whose connections break.
		Voices, Hoarse []string
		// Probed is the secret of the channel that is probed, wrong at first.
		Probed string
		// Lossy is the address of the lossy path.
		Lossy     string
		LossyPing time.Duration
	}{
		configValues: v, Dir: s.dir, Lease: lease.String(), Rests: resting,
		Voices: []string{"spoken", "voice-a", "voice-tlsa", "hoarse-1-a", "hoarse-1-tlsa", "hoarse-2-a", "hoarse-2-tlsa"}, Hoarse: []string{"1", "2"},
		Probed: s.probedSecret(),
		Lossy:  s.lossy.listener.Addr().String(), LossyPing: lossyPing,
	}
	if err := os.WriteFile(data.Probed, []byte("sk-test-nobodys\n"), 0o600); err != nil {
		return err
	}
	ca := filepath.Join(s.dir, "ca.pem")
	if err := os.WriteFile(ca, s.provider.CAPEM(), 0o600); err != nil {
		return err
	}
	for _, name := range faceNames {
		secret := filepath.Join(s.dir, name+".sk")
		if err := os.WriteFile(secret, []byte(faceKey(name)+"\n"), 0o600); err != nil {
			return err
		}
		f := face{Name: name, URL: s.provider.Face(name).URL(), Secret: secret}
		if strings.HasPrefix(name, "tls") {
			f.CA = ca
		}
		data.Faces = append(data.Faces, f)
	}
	if s.config == "" {
		s.config = filepath.Join(s.dir, "config.yaml")
	}
	if err := os.WriteFile(filepath.Join(s.dir, "native.sk"), []byte(faceKey("c")+"\n"), 0o600); err != nil {
		return err
	}
	port, err := s.listenerPort()
	if err != nil {
		return err
	}
	data.Port = port
	var out bytes.Buffer
	if err := configTemplate.Execute(&out, data); err != nil {
		return err
	}
	content := out.String()
	if domain.Egress(*egressForm) == domain.EgressNative {
		content = channelLines.ReplaceAllString(content, "$1, egress: native, $2")
		// With slots, a native channel would never be a fallback.
		content = wideSlots.ReplaceAllString(content, "")
	}
	next := s.config + ".next"
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.config)
}

// probedSecret is where the secret of the channel "probed" lies.
func (s *stack) probedSecret() string { return filepath.Join(s.dir, "probed.sk") }

// listenerPort is a free port, or the one that the region already has.
func (s *stack) listenerPort() (int, error) {
	if s.ready.BaseURL != "" {
		_, port, ok := strings.Cut(strings.TrimPrefix(s.ready.BaseURL, "http://"), ":")
		var n int
		if _, err := fmt.Sscanf(port, "%d", &n); !ok || err != nil {
			return 0, fmt.Errorf("base_url %q has no port", s.ready.BaseURL)
		}
		return n, nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// configTemplate is the region of the tests. A request of the model "m" costs
// one micro-unit a token, so that money is easy to reckon.
var configTemplate = template.Must(template.New("config").Parse(`
region: test
listener: {address: 127.0.0.1, port: {{.Port}}}
limits: {lease: {{.Lease}}}
# Most tests make a channel fail on purpose and want it to be tried again.
cooldown: {mode: observe, first: 200ms, min: 50ms}
providers:
{{- range .Faces}}
  - name: {{.Name}}
    dialects: [openai, anthropic]
    base_url: {{.URL}}/v1
    first_byte_limit: 20s
    {{- if .CA}}
    ca_file: {{.CA}}
    {{- end}}
{{- end}}
  - name: hasty
    dialects: [openai, anthropic]
    base_url: {{(index .Faces 0).URL}}/v1
    first_byte_limit: 300ms
  - {name: untrusted, dialects: [openai, anthropic], base_url: "{{(index .Faces 3).URL}}/v1"}
  - {name: without-tls, dialects: [openai, anthropic], base_url: "https://{{slice (index .Faces 0).URL 7}}/v1"}
  - name: refusing
    dialects: [openai, anthropic]
    base_url: http://127.0.0.1:1/v1
    first_byte_limit: 300ms
  - name: brisk-a
    dialects: [openai, anthropic]
    base_url: {{(index .Faces 0).URL}}/v1
    first_byte_limit: 1s
  - name: brisk-b
    dialects: [openai, anthropic]
    base_url: {{(index .Faces 1).URL}}/v1
    first_byte_limit: 1s
  - name: patient-a
    dialects: [openai, anthropic]
    base_url: {{(index .Faces 0).URL}}/v1
    first_byte_limit: 3600s
  - name: patient-tlsa
    dialects: [openai, anthropic]
    base_url: {{(index .Faces 3).URL}}/v1
    ca_file: {{(index .Faces 3).CA}}
    first_byte_limit: 3600s
  - name: lossy
    dialects: [openai, anthropic]
    base_url: https://{{.Lossy}}/v1
    ca_file: {{(index .Faces 4).CA}}
    first_byte_limit: 20s
    http2_ping: {{.LossyPing}}
channels:
{{- range .Faces}}
  - {name: {{.Name}}, provider: {{.Name}}, secret: "file:{{.Secret}}", priority: 1, slots: 5000, models: [{name: m, upstream: m-at-{{.Name}}}, {name: only-{{.Name}}, upstream: m}, {name: m-h2}]}
{{- end}}
  - {name: hasty, provider: hasty, secret: "file:{{(index .Faces 0).Secret}}", slots: 5000, models: [{name: m-silent, upstream: m-at-hasty}, {name: m-slow, upstream: m-at-hasty}]}
  - {name: refusing, provider: refusing, secret: "file:{{(index .Faces 0).Secret}}", slots: 5000, models: [{name: m-refused, upstream: m-at-refusing}]}
  - {name: untrusted, provider: untrusted, secret: "file:{{(index .Faces 3).Secret}}", slots: 5000, models: [{name: m-untrusted}]}
  - {name: without-tls, provider: without-tls, secret: "file:{{(index .Faces 0).Secret}}", slots: 5000, models: [{name: m-without-tls}]}
  - {name: first, provider: a, secret: "file:{{(index .Faces 0).Secret}}", slots: 5000, models: [{name: two, upstream: m-first}]}
  - {name: second, provider: b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 5000, models: [{name: two, upstream: m-second-longer}, {name: m-silent, upstream: m-second-longer}, {name: m-refused, upstream: m-second-longer}, {name: m-untrusted, upstream: m-second-longer}, {name: m-without-tls, upstream: m-second-longer}]}
  - {name: narrow, provider: c, secret: "file:{{(index .Faces 2).Secret}}", slots: 2, models: [{name: narrow}]}
  - {name: first-tls, provider: tlsa, secret: "file:{{(index .Faces 3).Secret}}", slots: 5000, models: [{name: two-tls, upstream: m-first}]}
  - {name: second-tls, provider: tlsb, secret: "file:{{(index .Faces 4).Secret}}", priority: 1, slots: 5000, models: [{name: two-tls, upstream: m-second-longer}]}
  - {name: brittle-1-a, provider: a, secret: "file:{{(index .Faces 0).Secret}}", models: [{name: brittle-1-a, upstream: m}]}
  - {name: brittle-1-tlsa, provider: tlsa, secret: "file:{{(index .Faces 3).Secret}}", models: [{name: brittle-1-tlsa, upstream: m}]}
  - {name: brittle-2-a, provider: a, secret: "file:{{(index .Faces 0).Secret}}", models: [{name: brittle-2-a, upstream: m}]}
  - {name: brittle-2-tlsa, provider: tlsa, secret: "file:{{(index .Faces 3).Secret}}", models: [{name: brittle-2-tlsa, upstream: m}]}
  - {name: scoped, provider: c, secret: "file:{{(index .Faces 2).Secret}}", organization: org-of-the-channel, project: project-of-the-channel, models: [{name: m-scoped}]}
  - {name: failing, provider: a, secret: "file:{{(index .Faces 0).Secret}}", slots: 500, models: [{name: fail, upstream: m-failing}]}
  - {name: healthy, provider: b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 500, models: [{name: fail, upstream: m-healthy-longer}]}
  - {name: failing-h2, provider: tlsa, secret: "file:{{(index .Faces 3).Secret}}", slots: 500, models: [{name: fail-h2, upstream: m-failing}]}
  - {name: healthy-h2, provider: tlsb, secret: "file:{{(index .Faces 4).Secret}}", priority: 1, slots: 500, models: [{name: fail-h2, upstream: m-healthy-longer}]}
  - {name: brisk-a, provider: brisk-a, secret: "file:{{(index .Faces 0).Secret}}", slots: 500, models: [{name: silent, upstream: m-failing}]}
  - {name: brisk-b, provider: brisk-b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 500, models: [{name: silent, upstream: m-healthy-longer}]}
  - {name: tight, provider: a, secret: "file:{{(index .Faces 0).Secret}}", slots: 1, models: [{name: spill}]}
  - {name: sized, provider: b, secret: "file:{{(index .Faces 1).Secret}}", models: [{name: sized, upstream: m-sized}, {name: learned}]}
  - {name: spare, provider: b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 1, models: [{name: spill}]}
  - {name: think-a, provider: patient-a, secret: "file:{{(index .Faces 0).Secret}}", slots: 500, models: [{name: think-a, upstream: m-think}, {name: think-dead, upstream: m-think}, {name: think-two, upstream: m-think-first}, {name: muse-a}]}
  - {name: think-hasty, provider: hasty, secret: "file:{{(index .Faces 0).Secret}}", slots: 500, models: [{name: think-hasty, upstream: m-think}]}
  - {name: think-b, provider: b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 500, models: [{name: think-two, upstream: m-think-second-longer}]}
  - {name: think-brisk, provider: brisk-b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 500, models: [{name: think-hasty}]}
  - {name: think-tlsa, provider: patient-tlsa, secret: "file:{{(index .Faces 3).Secret}}", slots: 500, models: [{name: think-tlsa, upstream: m-think}, {name: muse-tlsa}]}
  - {name: think-tlsb, provider: tlsb, secret: "file:{{(index .Faces 4).Secret}}", slots: 500, models: [{name: muse-tlsb}]}
  - {name: silent-a, provider: a, secret: "file:{{(index .Faces 0).Secret}}", models: [{name: quiet-a, upstream: m-quiet}, {name: dead-a, upstream: m-dead}]}
  - {name: silent-tlsa, provider: tlsa, secret: "file:{{(index .Faces 3).Secret}}", models: [{name: quiet-tlsa, upstream: m-quiet}, {name: dead-tlsa, upstream: m-dead}]}
  - {name: later, provider: a, secret: "file:{{(index .Faces 0).Secret}}", slots: 500, models: [{name: later, upstream: m-later}]}
  - {name: native, egress: native, provider: c, secret: "file:{{.Dir}}/native.sk", models: [{name: native, upstream: m-native}]}
  - {name: priced, provider: c, secret: "file:{{(index .Faces 2).Secret}}", models: [{name: priced}]}
  - {name: probed, provider: c, secret: "file:{{.Probed}}", cooldown: obey, probe: {path: /files, every: 1s}, models: [{name: probed}]}
{{- range .Rests}}
  - {name: {{.}}-a, provider: a, secret: "file:{{(index $.Faces 0).Secret}}", cooldown: obey, slots: 5000, models: [{name: {{.}}, upstream: m-{{.}}}, {name: {{.}}-other, upstream: m-{{.}}-other}, {name: {{.}}-alone, upstream: m-{{.}}-alone}]}
  - {name: {{.}}-b, provider: b, secret: "file:{{(index $.Faces 1).Secret}}", cooldown: obey, priority: 1, models: [{name: {{.}}, upstream: m-{{.}}}, {name: {{.}}-other, upstream: m-{{.}}-other}]}
{{- end}}
  - {name: share-a, provider: a, secret: "file:{{(index .Faces 0).Secret}}", models: [{name: shares}]}
  - {name: share-b, provider: b, secret: "file:{{(index .Faces 1).Secret}}", weight: 3, models: [{name: shares}]}
  - {name: stuck-b, provider: b, secret: "file:{{(index .Faces 1).Secret}}", cooldown: obey, models: [{name: stuck}]}
  - {name: stuck-c, provider: c, secret: "file:{{(index .Faces 2).Secret}}", cooldown: obey, models: [{name: stuck}]}
  - {name: home-b, provider: b, secret: "file:{{(index .Faces 1).Secret}}", slots: 1, models: [{name: home}]}
  - {name: home-c, provider: c, secret: "file:{{(index .Faces 2).Secret}}", slots: 1, models: [{name: home}]}
  - {name: fall-a, provider: a, secret: "file:{{(index .Faces 0).Secret}}", cooldown: obey, models: [{name: fall}]}
  - {name: fall-b, provider: b, secret: "file:{{(index .Faces 1).Secret}}", models: [{name: fallen, upstream: m-fallen}]}
  - {name: nap-a, provider: a, secret: "file:{{(index .Faces 0).Secret}}", cooldown: obey, models: [{name: nap}, {name: nap-early}]}
  - {name: both, provider: a, secret: "file:{{(index .Faces 0).Secret}}", models: [{name: fell, upstream: 'm-fell@{"status":500}'}, {name: fell-small, upstream: m-small}]}
  - {name: both-native, egress: native, provider: c, secret: "file:{{(index .Faces 2).Secret}}", models: [{name: fell-native, upstream: 'm-fell@{"status":500}'}, {name: fell-small-native, upstream: m-small}]}
  - {name: lossy, provider: lossy, secret: "file:{{(index .Faces 4).Secret}}", slots: 500, models: [{name: lossy}]}
  - {name: lossy-b, provider: b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 500, models: [{name: lossy}]}
  - {name: media, provider: c, secret: "file:{{(index .Faces 2).Secret}}", slots: 500, models: [{name: ranked}, {name: spoken, upstream: tts-of-c}, {name: heard}, {name: drawn}, {name: files}]}
  - {name: media-spare, provider: b, secret: "file:{{(index .Faces 1).Secret}}", priority: 1, slots: 500, models: [{name: spoken, upstream: tts-of-b}, {name: files}]}
  - {name: voice-a, provider: a, secret: "file:{{(index .Faces 0).Secret}}", slots: 500, models: [{name: voice-a, upstream: tts-a}]}
  - {name: voice-tlsa, provider: tlsa, secret: "file:{{(index .Faces 3).Secret}}", slots: 500, models: [{name: voice-tlsa, upstream: tts-tlsa}]}
{{- range $n := .Hoarse}}
  - {name: hoarse-{{$n}}-a, provider: a, secret: "file:{{(index $.Faces 0).Secret}}", models: [{name: hoarse-{{$n}}-a, upstream: tts}]}
  - {name: hoarse-{{$n}}-tlsa, provider: tlsa, secret: "file:{{(index $.Faces 3).Secret}}", models: [{name: hoarse-{{$n}}-tlsa, upstream: tts}]}
{{- end}}
{{.ExtraChannels}}
models:
{{- range $voice := .Voices}}
  - {name: {{$voice}}, prices: [{version: v1, input: "0", output: "0", tools: [{tool: character, per_thousand: "0.015"}]}]}
{{- end}}
  - {name: probed, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
{{- range .Rests}}
  - {name: {{.}}, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: {{.}}-other, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: {{.}}-alone, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
{{- end}}
{{- range .Faces}}
  - {name: only-{{.Name}}, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
{{- end}}
  - {name: m, context_window: 200000, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m-h2, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: native, max_output: 64, background: poll, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: later, max_output: 64, background: poll, early_heartbeat: true, prices: [{version: v1, input: "1", output: "2"}]}
  - {name: two, max_output: 64, prices: [{version: v1, input: "2", cache_read: "0.2", output: "8"}]}
  - {name: m-silent, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m-slow, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m-untrusted, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m-without-tls, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m-refused, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: narrow, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: two-tls, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: brittle-1-a, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: brittle-1-tlsa, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: brittle-2-a, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: brittle-2-tlsa, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: m-scoped, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: fail, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: fail-h2, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: silent, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: spill, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: sized, max_output: 500, hidden_prompt_floor: 3000, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: ranked, prices: [{version: v1, input: "1", output: "0", tools: [{tool: search_unit, per_call: "0.002"}]}]}
  - {name: heard, prices: [{version: v1, input: "1", input_audio: "3", output: "5", tools: [{tool: audio_second, per_call: "0.0001"}]}]}
  - name: drawn
    prices:
      - version: v1
        input: "5"
        output: "10"
        output_image: "40"
        images: [{quality: high, size: 1024x1024, price: "0.17"}, {quality: low, price: "0.01"}, {price: "0.04"}]
  - {name: files, raw: [/v1/files], prices: [{version: v1, input: "1", output: "1", tools: [{tool: call, per_call: "0.0005"}]}]}
  - {name: lossy, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: learned, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: think-a, max_output: 64, heartbeat: 0.2s, idle_limit: 30s, early_heartbeat: true, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: think-tlsa, max_output: 64, heartbeat: 0.2s, idle_limit: 30s, early_heartbeat: true, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: think-two, max_output: 64, heartbeat: 0.2s, idle_limit: 30s, early_heartbeat: true, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: think-dead, max_output: 64, heartbeat: 0.2s, idle_limit: 1s, early_heartbeat: true, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: think-hasty, max_output: 64, heartbeat: 0.2s, early_heartbeat: true, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: muse-a, max_output: 64, early_heartbeat: true, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: muse-tlsb, max_output: 64, early_heartbeat: true, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: muse-tlsa, max_output: 64, early_heartbeat: true, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: quiet-a, max_output: 64, heartbeat: 0.2s, idle_limit: 30s, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: quiet-tlsa, max_output: 64, heartbeat: 0.2s, idle_limit: 30s, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: dead-a, max_output: 64, heartbeat: 0.2s, idle_limit: 1s, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: dead-tlsa, max_output: 64, heartbeat: 0.2s, idle_limit: 1s, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: shares, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: stuck, strategy: sticky, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: home, strategy: sticky, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: fall, fallbacks: [fallen], state: deprecated, notice: Use fallen., sunset: 2027-03-31, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: nap, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: nap-early, early_heartbeat: true, max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: fell, fallbacks: [fell-small], max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: fell-small, max_output: 64, prices: [{version: v2, input: "3", output: "5"}]}
  - {name: fell-native, fallbacks: [fell-small-native], max_output: 64, prices: [{version: v1, input: "1", output: "1"}]}
  - {name: fell-small-native, max_output: 64, prices: [{version: v2, input: "3", output: "5"}]}
  - {name: fallen, max_output: 64, prices: [{version: v7, input: "3", output: "5"}]}
  - name: priced
    max_output: 64
    prices:
      - version: v2
        input: "2"
        cache_read: "0.2"
        cache_write: "2.5"
        cache_write_1h: "4"
        output: "8"
        reasoning: "9"
        input_audio: "20"
        output_audio: "40"
        tools: [{tool: web_search, per_thousand: "10"}]
        tiers: [{tier: priority, multiplier: "1.5"}]
        steps: [{above: 1000, input: "4", cache_read: "0.4", output: "16"}]
{{with .Ceiling}}ceiling: {{.}}{{end}}
policies:
  - {name: budget1000, budget_day: "0.001"}
  - {name: single, budget_day: "0.0001"}
  - {name: rpm1, rpm: 1, in_flight: 1}
  - {name: flight1, in_flight: 1}
  - {name: soonrpm, rpm: 12, rpm_burst: 1, tpm: 60, tpm_burst: 120}
  - {name: soontpm, rpm: 1, tpm: 600, tpm_burst: 120}
  - {name: latetpm, tpm: 10, tpm_burst: 120}
  - {name: quick, rpm: 30, rpm_burst: 1}
  - {name: counting, rpm: 1, in_flight: 1, budget_day: "1", count_tokens_rpm: 60}
  - {name: pictures, rpm: 100, budget_day: "1", images_day: 5}
  - {name: flight5, in_flight: 5}
  - {name: wide, rpm: 1000000, tpm: 1000000000, in_flight: 100000, budget_day: "1000000", budget_month: "1000000"}
  - {name: tpm500, tpm: 500}
  - {name: metered, rpm: 6, tpm: 6000, in_flight: 6, budget_day: "1", budget_month: "10"}
  - {name: rpm2, rpm: 2, in_flight: 1}
  - {name: injected, budget_day: "1", cap: inject}
  - {name: trusted, budget_day: "1"}
  - {name: open, rpm: 80, on_store_down: open_window, open_window: 30s}
  - {name: trusting, budget_day: "1", in_flight: 1000, on_store_down: optimistic, optimistic_budget: "0.001", open_window: 30s}
  - {name: leased, rpm: 6000, tpm: 60000000, rate_mode: leased}
aliases:
  - {name: fall-latest, model: fall}
identities:
  - {id: capped, policy: budget1000}
  - {id: purse, policy: budget1000}
  - {id: wide, policy: wide}
  - {id: partner, policy: wide, price_multiplier: "0.9"}
  - {id: prepaid-chat, prepaid: true}
  - {id: prepaid-messages, prepaid: true}
  - {id: prepaid-web, prepaid: true}
  - {id: prepaid-lost, prepaid: true}
`))
