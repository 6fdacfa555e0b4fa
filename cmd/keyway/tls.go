package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/tls/certprovider"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"
	"google.golang.org/grpc/security/advancedtls"
)

// tlsReload is how often the files are looked at: a renewed certificate counts for
// the connections that are made so much later.
const tlsReload = 2 * time.Second

// tlsFlags are the certificate of a process, for those it calls and those that
// call it, over TCP. Without them its connections are plain text.
type tlsFlags struct {
	Cert, Key, CA string
	// Clients are the names of which a client has to have one; none is any.
	Clients []string
}

func (f *tlsFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Cert, "tls-cert", "",
		"File with this process's certificate chain, PEM, for every connection over TCP with Envoy and other services; empty is plain text.")
	flags.StringVar(&f.Key, "tls-key", "", "File with the certificate's private key, PEM.")
	flags.StringVar(&f.CA, "tls-ca", "", "File with the authorities, PEM, one of which has to have signed the other side's certificate.")
}

// addClients adds the flag of those that are called.
func (f *tlsFlags) addClients(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.Clients, "tls-clients", nil,
		"DNS names or URIs of which a client's certificate has to have one; empty takes every certificate of --tls-ca.")
}

var errTLSFlags = errors.New("--tls-cert, --tls-key and --tls-ca go together")

// given reports whether there is a certificate, and refuses flags that cannot be meant.
func (f tlsFlags) given() (bool, error) {
	missing := 0
	for _, file := range []string{f.Cert, f.Key, f.CA} {
		if file == "" {
			missing++
		}
	}
	switch {
	case missing == 3 && len(f.Clients) > 0:
		return false, errors.New("--tls-clients is given without --tls-cert")
	case missing == 3:
		return false, nil
	case missing > 0:
		return false, errTLSFlags
	}
	return true, nil
}

// open follows the files until it is closed. What is wrong with them at the start
// is an error; later, what was good last is kept.
func (f tlsFlags) open() (certprovider.Provider, error) {
	if _, err := tls.LoadX509KeyPair(f.Cert, f.Key); err != nil {
		return nil, fmt.Errorf("read --tls-cert and --tls-key: %w", err)
	}
	authorities, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("read --tls-ca: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("read --tls-ca: %s has no certificate", f.CA)
	}
	provider, err := pemfile.NewProvider(pemfile.Options{CertFile: f.Cert, KeyFile: f.Key, RootFile: f.CA, RefreshDuration: tlsReload})
	if err != nil {
		return nil, fmt.Errorf("follow certificate: %w", err)
	}
	return provider, nil
}

// providerFor follows the files for connections at address; nil where they are
// plain text, as on every Unix socket.
func (f tlsFlags) providerFor(address string) (certprovider.Provider, error) {
	given, err := f.given()
	if err != nil || !given || strings.HasPrefix(address, unixPrefix) {
		return nil, err
	}
	return f.open()
}

// noTLS ends what was not begun.
func noTLS() {}

// server makes what a listener at address asks of its clients; nil is plain text.
// stop ends the following of the files.
func (f tlsFlags) server(address string) (creds credentials.TransportCredentials, stop func(), err error) {
	provider, err := f.providerFor(address)
	if provider == nil {
		return nil, noTLS, err
	}
	creds, err = advancedtls.NewServerCreds(&advancedtls.Options{
		IdentityOptions: advancedtls.IdentityCertificateOptions{IdentityProvider: provider},
		RootOptions:     advancedtls.RootCertificateOptions{RootProvider: provider},
		// A server knows no host to compare a client with.
		RequireClientCert: true, VerificationType: advancedtls.CertVerification,
		AdditionalPeerVerification: f.knows, MinTLSVersion: tls.VersionTLS13, MaxTLSVersion: tls.VersionTLS13,
	})
	if err != nil {
		provider.Close()
		return nil, noTLS, fmt.Errorf("make credentials of a server: %w", err)
	}
	return creds, provider.Close, nil
}

// knows refuses a client that is not among those named.
func (f tlsFlags) knows(of *advancedtls.HandshakeVerificationInfo) (*advancedtls.PostHandshakeVerificationResults, error) {
	names := slices.Clone(of.Leaf.DNSNames)
	for _, uri := range of.Leaf.URIs {
		names = append(names, uri.String())
	}
	known := func(name string) bool { return slices.Contains(f.Clients, name) }
	if len(f.Clients) > 0 && !slices.ContainsFunc(names, known) {
		return nil, fmt.Errorf("the certificate of %v is not among --tls-clients", names)
	}
	return &advancedtls.PostHandshakeVerificationResults{}, nil
}

// client makes what calls of address say of this process and ask of the other; nil
// is plain text.
func (f tlsFlags) client(address string) (creds credentials.TransportCredentials, stop func(), err error) {
	provider, err := f.providerFor(address)
	if provider == nil {
		return nil, noTLS, err
	}
	creds, err = advancedtls.NewClientCreds(&advancedtls.Options{
		IdentityOptions: advancedtls.IdentityCertificateOptions{IdentityProvider: provider},
		RootOptions:     advancedtls.RootCertificateOptions{RootProvider: provider},
		MinTLSVersion:   tls.VersionTLS13,
		MaxTLSVersion:   tls.VersionTLS13,
	})
	if err != nil {
		provider.Close()
		return nil, noTLS, fmt.Errorf("make credentials of a client: %w", err)
	}
	return creds, provider.Close, nil
}
