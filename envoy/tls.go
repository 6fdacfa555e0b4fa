package envoy

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// BootstrapTLS names the files of an Envoy's own certificate, as Envoy sees them.
// A static configuration is read once; so that Envoy follows the files, it is told
// of them in two more, which TLSSecrets makes and whose names begin with Secrets.
// All are needed or none.
type BootstrapTLS struct{ Cert, Key, CA, Secrets string }

// The secrets of those files.
const (
	secretOwn         = "keyway_own"
	secretAuthorities = "keyway_authorities"
)

var errTLSFiles = errors.New("certificate, key, authorities and the files that tell of them go together")

// serviceTLS is how a service at address is called; nil is plain text, as on
// every Unix socket.
func serviceTLS(address string, t BootstrapTLS) (*corev3.TransportSocket, error) {
	switch {
	case t == BootstrapTLS{} || strings.HasPrefix(address, "unix:"):
		return nil, nil
	case t.Cert == "" || t.Key == "" || t.CA == "" || t.Secrets == "":
		return nil, errTLSFiles
	}
	host, _, err := splitAddress(address)
	if err != nil {
		return nil, err
	}
	sni, sans := peerName(host)
	return tlsSocket(&tlsv3.UpstreamTlsContext{
		Sni: sni,
		CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsParams: &tlsv3.TlsParameters{
				TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
			},
			AlpnProtocols:                  []string{"h2"},
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{t.secret(secretOwn)},
			ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: sans},
				ValidationContextSdsSecretConfig: t.secret(secretAuthorities),
			}},
		},
	})
}

// peerName is what to ask of a server at host by TLS, and what its certificate has
// to be for; an address is not asked for.
func peerName(host string) (sni string, sans []*tlsv3.SubjectAltNameMatcher) {
	sni, kind := host, tlsv3.SubjectAltNameMatcher_DNS
	if _, err := netip.ParseAddr(host); err == nil {
		sni, kind = "", tlsv3.SubjectAltNameMatcher_IP_ADDRESS
	}
	return sni, []*tlsv3.SubjectAltNameMatcher{{
		SanType: kind, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: host}},
	}}
}

func tlsSocket(config *tlsv3.UpstreamTlsContext) (*corev3.TransportSocket, error) {
	packed, err := pack(config)
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed},
	}, nil
}

// fileOf is the file that tells of a secret: Envoy takes one from each.
func (t BootstrapTLS) fileOf(secret string) string {
	return t.Secrets + "-" + strings.TrimPrefix(secret, "keyway_") + ".yaml"
}

// secret is one that a file tells of.
func (t BootstrapTLS) secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{
			PathConfigSource: &corev3.PathConfigSource{Path: t.fileOf(name)},
		},
	}}
}

// TLSSecrets makes the content of those files, by their names. Envoy reads
// certificate and authorities again whenever a file is moved into their folder.
func TLSSecrets(t BootstrapTLS) (map[string]*discoveryv3.DiscoveryResponse, error) {
	files := make(map[string]*discoveryv3.DiscoveryResponse)
	for _, s := range []*tlsv3.Secret{
		{Name: secretOwn, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: fileSource(t.Cert), PrivateKey: fileSource(t.Key), WatchedDirectory: folderOf(t.Cert),
		}}},
		{Name: secretAuthorities, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: fileSource(t.CA), WatchedDirectory: folderOf(t.CA),
		}}},
	} {
		packed, err := pack(s)
		if err != nil {
			return nil, fmt.Errorf("pack secret: %w", err)
		}
		files[t.fileOf(s.GetName())] = &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{packed}}
	}
	return files, nil
}

func fileSource(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

func folderOf(path string) *corev3.WatchedDirectory {
	return &corev3.WatchedDirectory{Path: filepath.Dir(path)}
}
