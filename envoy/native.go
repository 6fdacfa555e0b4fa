package envoy

import (
	_ "embed"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	injectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/credential_injector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	genericv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/injected_credentials/generic/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// KeptHeaders may go from a client to a provider, and only these: every other
// header is ours, a credential, or nobody's business. Those that end in "-" are
// prefixes. Both forms of egress go by them.
var KeptHeaders = []string{
	"content-type", "content-length", "accept", "user-agent", "idempotency-key",
	// Envoy's own header map: other parts still read these behind us.
	"x-request-id", "transfer-encoding", "te",
	"anthropic-", "openai-", "x-stainless-",
}

// PerChannelHeaders are set from the channel and never passed on, although a
// prefix of KeptHeaders covers them.
var PerChannelHeaders = []string{"openai-organization", "openai-project"}

// Native is what the script of native egress needs of a decision: lines that
// hold the dialect, the path below the provider's base URL, the length of the
// client's body, and for each patch of the nth candidate "n channel offset delete
// text": a channel that serves a fallback model too may be there twice.
// It is for every candidate, whatever its form: which one the channel has when the
// attempt comes there is Envoy's to know. An error is a patch that does not fit
// into a line.
func Native(d domain.Decision) (string, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n%s\n%d\n", d.API.Dialect(), d.Path, d.BodyLen)
	for i, c := range d.Candidates {
		for _, p := range c.Patches {
			if strings.Contains(p.Insert, "\n") || !utf8.ValidString(p.Insert) {
				return "", fmt.Errorf("the patch at %d for channel %q is not a line of text", p.Offset, c.Channel)
			}
			fmt.Fprintf(&out, "%d %s %d %d %s\n", i+1, c.Channel, p.Offset, p.Delete, p.Insert)
		}
	}
	return out.String(), nil
}

// SecretOf is the name of the SDS resource that holds a channel's SK.
func SecretOf(channel string) string { return "sk_" + channel }

// Secret is the SDS resource of that name; with an empty value Envoy sends
// nothing to the channel any more.
func Secret(name, value string) *tlsv3.Secret {
	return &tlsv3.Secret{
		Name: name,
		Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{
			Secret: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: value}},
		}},
	}
}

// DetailsNoCredential is Envoy's word for a request to a channel whose SK it
// does not have.
const DetailsNoCredential = "failed_to_inject_credential"

// secretWait is how long a new cluster may wait for its secret, which was
// served before it.
const secretWait = 500_000_000

// carriers are where each dialect's credential stands.
var carriers = map[domain.Dialect]struct{ header, prefix string }{
	domain.DialectOpenAI:    {"authorization", "Bearer "},
	domain.DialectAnthropic: {"x-api-key", ""},
}

// nativeFilters are the filters of a channel's chain in native form: the SK
// from SDS, and one script for both phases.
func nativeFilters(ch *keywayv1.Channel, p *keywayv1.Provider, base *url.URL) ([]*hcmv3.HttpFilter, error) {
	var filters []*hcmv3.HttpFilter
	for _, d := range p.GetDialects() {
		carrier := carriers[domain.Dialect(d)]
		source := adsSource()
		source.InitialFetchTimeout = &durationpb.Duration{Nanos: secretWait}
		credential, err := pack(&genericv3.Generic{
			Credential:        &tlsv3.SdsSecretConfig{Name: SecretOf(ch.GetName()), SdsConfig: source},
			Header:            carrier.header,
			HeaderValuePrefix: carrier.prefix,
		})
		if err != nil {
			return nil, err
		}
		injector, err := pack(&injectorv3.CredentialInjector{
			Overwrite:  true,
			Credential: &corev3.TypedExtensionConfig{Name: "envoy.http.injected_credentials.generic", TypedConfig: credential},
		})
		if err != nil {
			return nil, err
		}
		filters = append(filters, httpFilter("keyway.credential."+d, injector))
	}
	script, err := luaFilter(verdictScript(ch.GetName()) + "\n" + nativeScript(ch, p, base))
	if err != nil {
		return nil, err
	}
	return append(filters, httpFilter("keyway.native", script)), nil
}

// nativeSource is the request phase of a channel in native form.
//
//go:embed native.lua
var nativeSource string

// nativeScript is the request-phase script of one channel; it stands behind the
// verdict script, whose channel it shares.
func nativeScript(ch *keywayv1.Channel, p *keywayv1.Provider, base *url.URL) string {
	kept, families := map[string]string{}, []string(nil)
	for _, name := range KeptHeaders {
		if strings.HasSuffix(name, "-") {
			families = append(families, name)
		} else {
			kept[name] = "true"
		}
	}
	set := map[string]string{}
	for i, value := range []string{ch.GetOrganization(), ch.GetProject()} {
		if value != "" {
			set[PerChannelHeaders[i]] = luaString(value)
		}
	}
	return strings.NewReplacer(
		"NAMESPACE", luaString(MetadataNamespace),
		"NATIVE", luaString(MetadataNative),
		"AUTHORITY", luaString(domain.AuthorityOf(base)),
		"BASE", luaString(base.EscapedPath()),
		"KEPT", luaTable(kept),
		"FAMILIES", luaList(families),
		"PERCHANNEL", luaList(PerChannelHeaders),
		"SET", luaTable(set),
		"VERSION", luaString(p.GetAnthropicVersion()),
	).Replace(nativeSource)
}

// luaString writes s as a Lua string: everything but plain characters by its number.
func luaString(s string) string {
	var out strings.Builder
	out.WriteByte('"')
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			fmt.Fprintf(&out, `\%03d`, c)
		} else {
			out.WriteByte(c)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// luaTable writes a table whose values are Lua already, in the keys' order.
func luaTable(m map[string]string) string {
	var out strings.Builder
	out.WriteString("{ ")
	for _, name := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&out, "[%s] = %s, ", luaString(name), m[name])
	}
	out.WriteString("}")
	return out.String()
}

func luaList(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = luaString(v)
	}
	return "{ " + strings.Join(quoted, ", ") + " }"
}
